"""Counted substrings and SuffixDecoding's guess against a search through the plain text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference.cases import ints
from tests.reference.counts import guess_suffix, nexts
from tests.reference.suffix import SuffixText

MEDIA, EOS = frozenset({4}), frozenset({3})
MEDIA_SET = _core.TokenSet(5, sorted(MEDIA))
EOS_SET = _core.TokenSet(5, sorted(EOS))
NONE = _core.TokenSet(5, [])

symbols = st.lists(st.integers(0, 4) | st.just(0), max_size=80)


def guess(text: _core.SuffixAutomaton, context: list[int], budget: int, **rules: object) -> object:
    (tokens, parents, scores), score, match = _core.guess_suffix(
        text,
        ints(context),
        _core.SuffixRules(**rules),  # type: ignore[arg-type]
        MEDIA_SET,
        EOS_SET,
        budget,
    )
    nodes = list(zip(tokens.tolist(), parents.tolist(), scores.tolist(), strict=True))
    return nodes, score, match


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_guess_is_the_slow_searchs(data: st.DataObject) -> None:
    depth = data.draw(st.integers(2, 9))
    limit = data.draw(st.integers(2, 90))
    core = _core.SuffixAutomaton(max_tokens=limit, count_depth=data.draw(st.integers(depth, 12)))
    reference = SuffixText(limit)
    for part in data.draw(st.lists(symbols, max_size=3)):
        core.extend(ints(part), MEDIA_SET)
        reference.extend(part, MEDIA)
        core.barrier()
        reference.barrier()
        assert core.check_integrity() == ""
    rules = {
        "max_factor": data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5])),
        "max_offset": data.draw(st.sampled_from([-1.0, 0.0, 0.3, 4.0])),
        "min_prob": data.draw(st.sampled_from([0.0, 0.1, 0.3, 1.0])),
        "max_depth": depth,
        "tree": data.draw(st.booleans()),
    }
    context = data.draw(symbols)
    budget = data.draw(st.integers(0, 20))
    nodes, score, match = guess(core, context, budget, **rules)  # type: ignore[misc]
    expected = guess_suffix(
        reference.text, context, media=MEDIA, eos=EOS, budget=budget, **rules  # type: ignore[arg-type]
    )  # fmt: skip
    assert [node[:2] for node in nodes] == [node[:2] for node in expected[0]]
    assert [node[2] for node in nodes] == pytest.approx([node[2] for node in expected[0]])
    assert (score, match) == expected[1:]


@settings(deadline=None, max_examples=60)
@given(text=symbols, depth=st.integers(1, 8), limit=st.integers(2, 60))
def test_counts_are_exact_after_every_token(text: list[int], depth: int, limit: int) -> None:
    core, reference = _core.SuffixAutomaton(max_tokens=limit, count_depth=depth), SuffixText(limit)
    for token in text:
        core.extend(ints([token]), MEDIA_SET)
        reference.extend([token], MEDIA)
        assert core.check_integrity() == ""
    if depth < 2:
        return
    for length in range(1, min(depth, len(reference.text))):
        pattern = reference.text[-length:]
        if -1 in pattern:
            break
        total = sum(count for _, count in nexts(reference.text, pattern))
        (tokens, _, scores), _, match = _core.guess_suffix(
            core,
            ints(pattern),
            _core.SuffixRules(max_factor=9.0, min_prob=0.0, max_depth=length + 1),
            NONE,
            NONE,
            9,
        )
        if match == length:
            expected = nexts(reference.text, pattern)
            assert tokens.tolist() == [token for token, _ in expected]
            assert scores.tolist() == pytest.approx([count / total for _, count in expected])


def test_the_example_of_the_method() -> None:
    """After [1, 2] came 3 twice and 4 once; after that 3 came 5 and 6."""
    core = _core.SuffixAutomaton(max_tokens=99, count_depth=8)
    core.extend(ints([1, 2, 3, 5, 0, 1, 2, 4, 0, 1, 2, 3, 6]), NONE)
    tree, score, match = _core.guess_suffix(
        core, ints([9, 1, 2]), _core.SuffixRules(max_factor=2.0, max_depth=8), NONE, NONE, 63
    )
    assert match == 2
    assert tree[0].tolist() == [3, 4, 5, 6]  # ties to the one found first
    assert tree[1].tolist() == [-1, -1, 0, 0]
    assert tree[2].tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert score == pytest.approx(5 / 3)
    rules = _core.SuffixRules(max_factor=2.0, max_depth=8, tree=False)
    path, score, _ = _core.guess_suffix(core, ints([1, 2]), rules, NONE, NONE, 63)
    assert path[0].tolist() == [3, 5, 0, 1]


def test_a_long_repetitive_text_counts_in_bounded_time_and_space() -> None:
    core = _core.SuffixAutomaton(max_tokens=4096, count_depth=24)
    core.extend(ints([0] * 20_000), NONE)
    assert core.check_integrity() == ""
    rng = random.Random(1)
    core.extend(ints([rng.choice([0, 0, 0, 1, 2]) for _ in range(20_000)]), NONE)
    assert len(core) <= 4096
    assert core.check_integrity() == ""


def test_of_very_many_continuations_the_latest_met_are_looked_at() -> None:
    """A guess costs the same however many tokens have followed a frequent one."""
    none = _core.TokenSet(1000, [])
    core = _core.SuffixAutomaton(max_tokens=4096, count_depth=3)
    core.extend(ints([part for token in range(1, 601) for part in (0, token)]), none)
    rules = _core.SuffixRules(max_factor=3.0, min_prob=0.0, max_depth=2)
    tree, score, _ = _core.guess_suffix(core, ints([0]), rules, none, none, 63)
    assert tree[0].tolist() == [89, 90, 91]
    assert score == pytest.approx(3 / 512)


def test_wrong_rules_are_refused() -> None:
    for wrong in (
        {"max_factor": -1.0},
        {"max_factor": float("nan")},
        {"max_offset": float("inf")},
        {"min_prob": 1.5},
        {"max_depth": 1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            _core.SuffixRules(**wrong)  # type: ignore[arg-type]
    shallow = _core.SuffixAutomaton(max_tokens=9, count_depth=3)
    with pytest.raises(ValueError, match="max_depth"):
        _core.guess_suffix(shallow, ints([1]), _core.SuffixRules(), NONE, NONE, 5)
