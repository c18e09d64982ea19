"""STAND against rows in plain dicts, its backing off, and how long rows live."""

from __future__ import annotations

import json
import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from eyespan.drafters import make_drafter
from eyespan.drafters.stand import Stand
from eyespan.errors import ConfigError
from eyespan.types import DraftTree, Prefill, Step, TargetOut, Verdict
from tests.drafting import ints, open_session, packed_of, prefill_of, request_of, show
from tests.reference import cases, trees
from tests.reference import rows as twin
from tests.reference.cases import EOS, MEDIA, VOCAB


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 1 << 30), row_size=st.integers(1, 8), longest=st.integers(1, 4))
def test_a_session_is_its_twins(seed: int, row_size: int, longest: int) -> None:
    rng = random.Random(seed)
    budget, depth = rng.randint(1, 30), rng.randint(1, 7)
    drafter = Stand(vocab_size=VOCAB, row_size=row_size, longest=longest, nodes=budget, depth=depth)
    maps = [twin.RowMap(order, 1 << 17) for order in range(1, longest + 1)]
    memory = twin.Memory(*(maps + [None] * 4)[:4])  # type: ignore[arg-type]

    prompt = cases.tokens(rng, rng.randint(1, 12))
    first = {token: at for at, token in reversed([*enumerate(prompt)]) if token not in MEDIA}
    positions = sorted(first.values())
    seeds = [cases.row(rng) for _ in positions]
    ids, logits = cases.columns(seeds)
    prefill = Prefill(
        next_row_ids=ints(range(8)), next_row_logits=np.zeros(8, np.float32), logits=None,
        positions=ints(positions), row_ids=ids, row_logits=logits,
    )  # fmt: skip
    session = drafter.begin(request_of(prompt, media=MEDIA, eos=EOS), prefill)
    best = [(ids[:row_size], logits[:row_size]) for ids, logits in seeds]
    memory.seed(
        prompt,
        [(at, *row) for at, row in zip(positions, best, strict=True)],
        MEDIA,
        contexts=True,
    )

    prefix = prompt
    for _ in range(4):
        prefix = [*prefix, rng.randrange(VOCAB)]

        def expand(path: tuple[int, ...], prefix: list[int] = prefix) -> list[tuple[int, float]]:
            found = memory.find([*prefix, *path], MEDIA)[:1]
            known = [(t, p) for row in found for t, p in zip(row.ids, row.probs, strict=True)]
            return [item for item in known if item[0] not in MEDIA]

        expected = trees.best_first(expand, eta=[1.0], budget=budget, depth=depth, eos=EOS)
        draft = session.propose(ints(prefix), 63)
        assert draft.tokens.tolist() == [node.token for node in expected]
        assert draft.parents.tolist() == [node.parent for node in expected]
        assert draft.scores is not None
        assert draft.scores.tolist() == pytest.approx([node.score for node in expected])

        tokens, parents = cases.tree(rng, rng.randint(1, 9))
        tokens[0] = prefix[-1]
        draft = DraftTree(ints(tokens[1:]), ints(parents[1:]) - 1)
        tree = packed_of(draft, tokens[0])
        rows = [cases.row(rng) for _ in range(len(tree))]
        ids, logits = cases.columns(rows)
        out = TargetOut(row_ids=ids, row_logits=logits, logits=None)
        session.observe(Step(ints(prefix), tree, out, Verdict(ints([]), 1, (1,))))
        best = [(ids[:row_size], logits[:row_size]) for ids, logits in rows]
        memory.refresh(prefix[:-1], tree.tokens.tolist(), tree.parents.tolist(), best, MEDIA)


def test_the_longest_known_ngram_speaks_alone() -> None:
    session = open_session(Stand(vocab_size=64, nodes=4, depth=1), [50])
    for context, first in [([1, 2, 3, 4], 20), ([9, 2, 3, 4], 30), ([8, 8, 3, 4], 40)]:
        rows = [[first, first + 1, first + 2, first + 3, 1, 2, 3, 4]]
        show(session, [50, *context], [5], row_ids=rows)
    for context, expected in [
        ([1, 2, 3, 4], 20),
        ([9, 2, 3, 4], 30),
        ([7, 2, 3, 4], 30),  # [2, 3, 4], last written after 9
        ([7, 7, 3, 4], 40),
        ([7, 7, 7, 4], 40),
    ]:
        tree = session.propose(ints([50, *context]), 63)
        assert tree.tokens.tolist() == list(range(expected, expected + 4))
    assert len(session.propose(ints([50, 1, 2, 3]), 63)) == 0


def test_four_tokens_are_told_apart_in_every_place() -> None:
    keys = {_core.pack_key([*ngram]) for ngram in product(range(9), repeat=4)}
    assert len(keys) == 9**4
    assert max(keys) < 1 << 63


@pytest.mark.parametrize(("persist", "kept"), [("stream", True), ("request", False)])
def test_rows_live_in_their_scope_or_their_request(persist: str, kept: bool) -> None:
    drafter = Stand(vocab_size=64, persist=persist, max_scopes=2)
    show(open_session(drafter, [1], scope="a"), [1, 2], [3])
    assert drafter.is_warm("a") == kept
    assert not drafter.is_warm("b")
    session = open_session(drafter, [1], scope="a")
    assert (len(session.propose(ints([1, 2]), 63)) > 0) == kept
    assert len(open_session(drafter, [1], scope="b").propose(ints([1, 2]), 63)) == 0
    drafter.reset()
    assert len(session.propose(ints([1, 2]), 63)) == 0


def test_rows_are_bounded() -> None:
    drafter = Stand(vocab_size=64, max_rows=10, max_scopes=2)
    session = open_session(drafter, [1])
    for at in range(40):
        show(session, [1, at % 50, (at * 3) % 50, at], [at + 1])
    maps = drafter._scopes.open(None)
    assert [len(rows) for rows in maps] == [10] * 4
    assert all(rows.check_integrity() == "" for rows in maps)
    for scope in "abc":
        open_session(drafter, [1], scope=scope)
    assert len(drafter._scopes) == 2


def test_budgets_cap_the_tree_and_media_are_left_out() -> None:
    drafter = Stand(vocab_size=64)
    session = drafter.begin(request_of([1], media=[2, 3]), prefill_of())
    show(session, [1, 4], [5])
    for budget in (0, 1, 2, 63):
        tree = session.propose(ints([1, 4]), budget)
        assert len(tree) <= budget
        assert not {2, 3} & set(tree.tokens.tolist())
    assert len(session.propose(ints([4, 2]), 63)) == 0


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("row_size", 9, "from 1 to 8"),
        ("longest", 5, "from 1 to 4"),
        ("nodes", 128, "from 1 to 127"),
        ("depth", 22, "from 1 to 21"),
        ("prompt_rows", "some", "none, first, all"),
        ("persist", "task", "stream, request"),
        ("max_rows", 0, "from 1"),
        ("max_scopes", 0, "from 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: object, range_: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter("stand", vocab_size=VOCAB, **{option: value})
    assert range_ in refused.value.needed
    assert f"'{option}'" in refused.value.asked


def test_sizes_needs_and_json() -> None:
    drafter = Stand(vocab_size=VOCAB, prompt_rows="none")
    assert drafter.fixed_budget == 63
    assert drafter.needs.rows
    assert drafter.needs.prompt_rows == "none"
    config = json.loads(json.dumps(drafter.config_dict()))
    assert Stand(vocab_size=VOCAB, **config).config == drafter.config


def test_rows_of_four_tokens_can_be_chosen_but_not_mixed() -> None:
    maps = [_core.RowMap(order=order, max_rows=9) for order in (1, 2, 3, 4)]
    for rows in maps:
        rows.put([5] * rows.order, ints(range(8)), np.arange(8, 0, -1, dtype=np.float32))
    memory, nothing = _core.Memory(*maps), _core.TokenSet(9, [])
    for fusion, fine in [("backoff", True), ("gate", True), ("entropy", False)]:
        rules = _core.ProposeRules(fusion=_core.Fusion[fusion])
        if fine:
            assert len(memory.propose(ints([5] * 4), rules, 3, nothing, nothing)[0]) == 3
        else:
            with pytest.raises(ValueError, match="at most 3 rows"):
                memory.propose(ints([5] * 4), rules, 3, nothing, nothing)
