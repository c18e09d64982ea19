"""The whole of RECAP: the drafter on the core against the twin, round by round, and the twin's
replay of a recorded trace.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from eyespan.drafters.recap import Recap
from eyespan.types import PackedTree, Prefill, Request, Step, TargetOut, Verdict
from tests.reference import cases, recap
from tests.reference import rows as twin
from tests.reference.cases import EOS, MEDIA, VOCAB, ints

switches = st.fixed_dictionaries(
    {},
    optional={
        "orders": st.sampled_from(["U", "U+C"]),
        "fusion": st.sampled_from(["fixed_prior", "no_prior", "uniform", "gate", "backoff"]),
        "priors": st.sampled_from(["soft", "sharp", (0.4, 0.4, 0.2)]),
        "eta": st.sampled_from([(0.9,), (0.5, 0.25)]),
        "nodes": st.integers(1, 20),
        "width": st.integers(1, 7),
        "depth": st.integers(1, 6),
        "search": st.just("fixed"),
        "suffix_tokens": st.integers(0, 8),
        "suffix_min_match": st.integers(2, 3),
        "suffix_occurrence": st.just("earliest"),
        "suffix_inside_budget": st.just(True),
        "seed_context": st.just(True),
        "max_rows": st.integers(1, 40),
        "max_suffix_tokens": st.integers(2, 30),
        "persist": st.just("request"),
    },
)


class Script:
    """A target that is a random function of the last few tokens: rows repeat where text does."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def row(self, history: list[int]) -> cases.Row:
        return cases.row(random.Random(f"{self.seed} {history[-2:]}"))


def answer(
    drafter: Recap, script: Script, u: twin.RowMap, prompt: list[int], rounds: int, name: str
) -> list[dict[str, Any]]:
    """Run one request on both sides, compare every tree, and return its trace."""
    config = drafter.config_dict()
    at = [i for i, token in enumerate(prompt) if token not in MEDIA]
    if not config["seed_context"]:
        at = [i for i in at if prompt.index(prompt[i]) == i]
    rows = [script.row(prompt[: i + 1]) for i in at]
    first = script.row(prompt)
    row_ids, row_logits = cases.columns(rows)
    request = Request(
        id=name, prompt_ids=ints(prompt), media_ids=MEDIA, eos_ids=EOS, max_new_tokens=99
    )
    prefill = Prefill(
        next_row_ids=ints(first[0]),
        next_row_logits=np.array(first[1], np.float32),
        logits=None,
        positions=ints(at),
        row_ids=row_ids,
        row_logits=row_logits,
    )
    session = drafter.begin(request, prefill)
    seeds = [(i, *row) for i, row in zip(at, rows, strict=True)]
    if config["persist"] == "request":
        u.clear()
    mirror = recap.Session(config, u=u, prompt=prompt, rows=seeds, media=MEDIA, eos=EOS)
    mirror.commit([first[0][0]])
    trace: list[dict[str, Any]] = [
        {
            "type": "request",
            "config": config,
            "prompt_ids": prompt,
            "media_ids": sorted(MEDIA),
            "eos_ids": sorted(EOS),
        },
        {"type": "prefill", "rows": seeds, "next": first[0][0]},
    ]
    for _ in range(rounds):
        prefix = ints(mirror.committed)
        nodes = mirror.propose()
        tree = session.propose(prefix, 63)
        again = session.propose(prefix, 63)
        assert tree.tokens.tolist() == [node.token for node in nodes]
        assert tree.parents.tolist() == [node.parent for node in nodes]
        assert tree.scores is not None
        assert tree.origins is not None
        assert tree.scores.tolist() == [float(np.float32(node.score)) for node in nodes]
        assert tree.origins.tolist() == [node.origin for node in nodes]
        assert again.tokens.tolist() == tree.tokens.tolist()  # proposing changes nothing

        packed = PackedTree(*_core.pack(tree.tokens, tree.parents, tree.scores, int(prefix[-1])))
        paths: list[list[int]] = []
        for token, parent in zip(packed.tokens.tolist(), packed.parents.tolist(), strict=True):
            paths.append([*(mirror.committed[:-1] if parent < 0 else paths[parent]), token])
        said = [script.row(path) for path in paths]
        greedy = [ids[0] for ids, _ in said]
        path, after = recap.accepted_path(packed.tokens.tolist(), packed.parents.tolist(), greedy)
        committed = (*(int(packed.tokens[i]) for i in path), after)
        row_ids, row_logits = cases.columns(said)
        out = TargetOut(row_ids=row_ids, row_logits=row_logits, logits=None)
        session.observe(Step(prefix, packed, out, Verdict(ints(path), after, committed)))
        mirror.observe(packed.tokens.tolist(), packed.parents.tolist(), said, committed)
        trace.append(
            {
                "type": "step",
                "tokens": packed.tokens.tolist(),
                "parents": packed.parents.tolist(),
                "row_ids": row_ids.tolist(),
                "row_logits": row_logits.tolist(),
                "accepted": path,
                "next": after,
                "origin": ["root", *(tree.origin_names[tree.origins[i]] for i in packed.order)],
            }
        )
    return [*trace, {"type": "end"}]


streams = {
    "seed": st.integers(0, 2**32),
    "options": switches,
    "lengths": st.lists(st.integers(1, 25), min_size=1, max_size=3),
}


@settings(deadline=None, max_examples=15)
@given(**streams)
def test_recap_is_its_twin_over_a_stream_of_requests(**stream: Any) -> None:
    run_stream(**stream)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(**streams)
def test_recap_is_its_twin_over_many_streams(**stream: Any) -> None:
    run_stream(**stream)


def run_stream(seed: int, options: dict[str, Any], lengths: list[int]) -> None:
    rng = random.Random(seed)
    drafter, script = Recap(vocab_size=VOCAB, **options), Script(seed)
    u = twin.RowMap(1, drafter.config.max_rows)
    trace: list[dict[str, Any]] = []
    for i, length in enumerate(lengths):
        prompt = cases.tokens(rng, length)
        trace += answer(drafter, script, u, prompt, rng.randint(1, 8), str(i))

    replayed = [step for request in recap.replay(trace) for step in request]
    recorded = [line for line in trace if line["type"] == "step"]
    for step, line in zip(replayed, recorded, strict=True):
        assert step.tokens == line["tokens"]
        assert step.parents == line["parents"]
        assert step.origins == line["origin"]
        assert step.path == line["accepted"]
        assert step.next == line["next"]


def test_a_repeating_target_is_soon_guessed_right() -> None:
    """Fails when anything above compares empty trees: here every round must accept several."""
    script = Script(5)
    script.row = lambda history: cases.row(random.Random(f"{history[-1]}"))  # type: ignore[method-assign]
    drafter = Recap(vocab_size=VOCAB)
    trace = answer(drafter, script, twin.RowMap(1, 99), [1, 2, 3], 12, "a")
    accepted = [len(line["accepted"]) for line in trace if line["type"] == "step"]
    assert np.mean(accepted[4:]) > 4
