"""Replay against what was recorded, and against a slow twin that reads the trace's own lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyespan.diagnostics import sources
from eyespan.diagnostics.growth import grow
from eyespan.diagnostics.matched import compare
from eyespan.diagnostics.recorded import Recording, Rows, read_recordings, vocabulary
from eyespan.diagnostics.replay import Replayed, replay
from eyespan.diagnostics.replay_tables import BACKOFF
from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.sequence import Observer, Running
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import RandomDrafter, tiny_images, tiny_target
from eyespan.trace import Trace, read_trace
from eyespan.types import Step
from tests.parity.recap_switches import SWITCHES
from tests.reference import replay as twin
from tests.reference.rows import make_row

PROMPTS = ("abcabc what is this? abcabc", "what is this? abc", "abcabc abcabc abcabc")
MORE = 60


@pytest.fixture(scope="module")
def target() -> HuggingFaceTarget:
    return tiny_target("llava")


def record(target: HuggingFaceTarget, drafter: Any, file: Path, budget: Any = "fixed") -> list[Any]:
    """Three answers on one memory; returns what the engine said about them."""
    engine = Engine(target, drafter, budget=budget)
    with Trace(file) as trace:
        return [
            engine.generate(prompt, tiny_images(at), max_new_tokens=MORE, trace=trace)
            for at, prompt in enumerate(PROMPTS)
        ]


@pytest.fixture(scope="module")
def file(target: HuggingFaceTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "words.jsonl"
    record(target, make_drafter("recap", vocab_size=target.info.vocab_size), file)
    return file


@pytest.fixture(scope="module")
def recording(file: Path) -> Recording:
    (found,) = read_recordings([file])
    return found


class Watch(Observer):
    """Keeps every replayed pack."""

    def __init__(self) -> None:
        self.packs: list[tuple[list[int], list[int], list[int]]] = []

    def step(self, running: Running, step: Step, **_: Any) -> None:
        tree = step.tree
        self.packs.append((tree.tokens.tolist(), tree.parents.tolist(), step.verdict.path.tolist()))


def replayed(recording: Recording, options: dict[str, Any]) -> tuple[Replayed, Watch]:
    size, watch = vocabulary([recording]), Watch()
    drafter = make_drafter("recap", vocab_size=size, **options)
    return replay(recording, drafter, vocab_size=size, watch=watch), watch


@pytest.mark.parametrize("name", ["default", "U", "suffix inside", "per request", "evicting"])
def test_a_run_drafts_itself_again(target: HuggingFaceTarget, name: str, tmp_path: Path) -> None:
    """The same drafter, replayed on its own trace, sends the same packs; all rows are known."""
    options, file = SWITCHES[name], tmp_path / "trace.jsonl"
    said = record(target, make_drafter("recap", vocab_size=264, **options), file)
    (recording,) = read_recordings([file])
    found, watch = replayed(recording, options)
    steps = [line for lines in read_trace(file) for line in lines if line["type"] == "step"]
    assert watch.packs == [(s["tokens"], s["parents"], s["accepted"]) for s in steps]
    assert found.known == found.drafted + found.rounds
    assert found.tokens == sum(len(one.token_ids) for one in said)
    assert found.forwards == sum(one.forwards for one in said)
    assert found.accepted == sum(one.accepted for one in said) > 0
    assert found.hits == found.accepted_by_depth[0]


def test_what_reads_tokens_alone_is_replayed_exactly_on_anybodys_trace(
    target: HuggingFaceTarget, recording: Recording, tmp_path: Path
) -> None:
    drafter = RandomDrafter(vocab_size=264, seed=3)
    said = record(target, drafter, tmp_path / "random.jsonl")
    drafter.reset()
    found = replay(recording, drafter, vocab_size=264)
    assert (found.forwards, found.accepted) == (
        sum(one.forwards for one in said),
        sum(one.accepted for one in said),
    )
    assert found.drafted == sum(one.drafted for one in said) > 0


def test_plain_decoding_takes_a_pass_a_token(recording: Recording) -> None:
    size = vocabulary([recording])
    found = replay(recording, make_drafter("none", vocab_size=size), vocab_size=size)
    assert found.tau == 1.0
    assert found.forwards == sum(len(one.output) for one in recording.requests)


def test_rows_of_another_run_are_seen_in_part(recording: Recording) -> None:
    """U alone sends nodes that the recorded run never sent; the accepted ones are always known."""
    found, _ = replayed(recording, {"orders": "U", "suffix_tokens": 0})
    assert found.accepted + found.rounds <= found.known < found.drafted + found.rounds


def test_a_trace_cut_by_the_budget_rule_has_all_rows_of_its_answer(
    target: HuggingFaceTarget, recording: Recording, tmp_path: Path
) -> None:
    file = tmp_path / "words.jsonl"
    record(target, make_drafter("recap", vocab_size=264), file, budget="auto")
    (other,) = read_recordings([file])
    for one, same in zip(recording.requests, other.requests, strict=True):
        assert np.array_equal(one.output, same.output)
        assert np.array_equal(one.rows.ids[: one.states], same.rows.ids[: one.states])


@pytest.mark.parametrize("seeded", [False, True])
def test_coverage_and_recall(file: Path, recording: Recording, seeded: bool) -> None:
    found = sources.coverage(recording, 264, seeded=seeded)
    every = list(twin.states(read_trace(file), seeded=seeded))
    assert found.states == len(every) == recording.states > 100
    for order, name in enumerate("UCG", 1):
        covered = [state for state in every if order in state.rows]
        hits = [state.ahead[0] in state.rows[order].ids for state in covered]
        assert (found.recall[name].states, found.recall[name].hits) == (len(covered), sum(hits))
        assert hits
    both = [state for state in every if {1, 3} <= state.rows.keys()]
    gain = [
        (state.ahead[0] in state.rows[3].ids) - (state.ahead[0] in state.rows[1].ids)
        for state in both
    ]
    assert (found.paired.states, found.paired.hits) == (len(both), sum(gain))


def test_fusion_rules(file: Path, recording: Recording) -> None:
    found = sources.fusion(recording, 264)
    every = list(twin.states(read_trace(file), seeded=True))
    hits: dict[str, list[bool]] = {name: [] for name in sources.VARIANTS}
    disputed = []
    for state in every:
        for name, options in sources.VARIANTS.items():
            rule, priors = options.get("fusion", "entropy"), options.get("priors", "default")
            hits[name].append(state.ahead[0] in twin.candidates(state, rule, priors))
        disputed.append(len({row.ids[0] for row in state.rows.values()}) > 1)
    for name, tally in found.recall.items():
        assert (tally.states, tally.hits) == (len(every), sum(hits[name]))
    for name, tally in found.disputed.items():
        chosen = [hit for hit, where in zip(hits[name], disputed, strict=True) if where]
        assert (tally.states, tally.hits) == (sum(disputed), sum(chosen))
    assert sum(disputed) > 0
    assert found.gain.hits == found.disputed["RECAP"].hits - found.disputed["Confidence gate"].hits


def test_fusion_weights(file: Path, recording: Recording) -> None:
    found = sources.fusion(recording, 264)
    rows = {2: [], 3: []}  # type: dict[int, list[list[float]]]
    for state in twin.states(read_trace(file), seeded=True):
        if state.rows:
            for weights in twin.weights(state):
                if len(weights) in rows:
                    rows[len(weights)].append(weights)
    for count, expected in rows.items():
        assert found.calls[count] == len(expected) > 0
        assert found.weights[count] == pytest.approx(np.sum(expected, axis=0), rel=1e-5)


def test_rows_of_another_picture(file: Path, recording: Recording) -> None:
    """In place of another picture's rows the own ones stand a place too late."""
    late = [
        replace(
            one,
            swapped=Rows(one.rows.at, np.roll(one.rows.ids, 1, 0), np.roll(one.rows.logits, 1, 0)),
        )
        for one in recording.requests
    ]
    found = sources.swapped(Recording("late", tuple(late)), 264)
    assert found is not None
    hits: list[tuple[bool, ...]] = []
    single: dict[int, list[int]] = {order: [] for order in (1, 2, 3)}
    for lines in read_trace(file):
        rows = twin.answer_rows(lines)
        instead = {at: rows[(at - 1) % len(rows)] for at in rows}
        both = (
            twin.states([lines], seeded=False),
            twin.states([lines], seeded=False, instead=instead),
        )
        for pair in zip(*both, strict=True):
            token = pair[0].ahead[0]
            if all(state.rows for state in pair):
                hits.append(tuple(token in twin.candidates(one, "fixed_prior") for one in pair))
            for order in pair[0].rows.keys() & pair[1].rows.keys():
                own, other = (token in state.rows[order].ids for state in pair)
                single[order].append(own - other)
    own, other = (sum(side) for side in zip(*hits, strict=True))
    assert (found.own.states, found.own.hits, found.other.hits) == (len(hits), own, other)
    assert found.gain["fused"].hits == own - other > 0
    for order, name in enumerate("UCG", 1):
        one = found.gain[name]
        assert (one.states, one.hits) == (len(single[order]), sum(single[order]))
        assert one.states


def test_matched_length_at_equal_counts(file: Path, recording: Recording) -> None:
    drafters = {
        name: make_drafter("recap", vocab_size=264, **options) for name, options in BACKOFF.items()
    }
    found = compare(recording, drafters, seeded=False)
    rules = {
        "U": (1, "backoff"), "U+C backoff": (2, "backoff"), "U+C+G backoff": (3, "backoff"),
        "Uniform fusion": (3, "uniform"), "Prior-weighted fusion": (3, "fixed_prior"),
    }  # fmt: skip
    lengths = dict.fromkeys(rules, 0)
    nodes = 0
    for state in twin.states(read_trace(file), seeded=False):
        trees = {name: twin.tree(state, *rule, 63) for name, rule in rules.items()}
        equal = min(len(tree) for tree in trees.values())
        nodes += equal
        for name, tree in trees.items():
            lengths[name] += twin.matched(tree[:equal], state.ahead)
    assert {name: one.length for name, one in found.policies.items()} == lengths
    assert len(set(lengths.values())) > 1
    for one in found.policies.values():
        assert (one.nodes, one.states) == (nodes, recording.states)
        assert sum(total for total, _ in one.by_group.values()) == one.length


def test_growth_counts_keys_and_stops_growing(recording: Recording) -> None:
    """After every request has been seen once, U holds one row for each text token that any of them
    evaluated, and stays so.
    """
    curve = grow(recording.requests, 264, requests=20, seed=17)
    assert curve.requests == (1, 2, 5, 10, 20)
    keys: set[int] = set()
    for one in recording.requests:
        rows = [
            *zip(one.request.prompt_ids[one.seeds.at], one.seeds.ids, one.seeds.logits, strict=True)
        ]
        for each in one.rounds:
            assert each.row_ids is not None
            assert each.row_logits is not None
            rows += zip(each.tokens, each.row_ids, each.row_logits, strict=True)
        usable = [int(token) for token, ids, logits in rows if make_row(ids, logits) is not None]
        keys |= set(usable) - one.request.media_ids
    assert curve.rows[0] < curve.rows[2] == curve.rows[3] == curve.rows[4] == len(keys)
    assert all(later >= earlier for earlier, later in zip(curve.mib, curve.mib[1:], strict=False))
    assert min(curve.propose_ns) > 0
