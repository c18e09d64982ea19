"""Lookahead's tries and trees against windows kept as tuples."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference import windows as twin
from tests.reference.cases import ints

MEDIA, EOS = frozenset({5}), frozenset({4})
MEDIA_SET = _core.TokenSet(6, sorted(MEDIA))
EOS_SET = _core.TokenSet(6, sorted(EOS))
NONE = _core.TokenSet(6, [])

texts = st.lists(st.integers(0, 5) | st.integers(0, 2), max_size=40)


def counts_agree(core: _core.WindowTrie, reference: twin.WindowTrie) -> None:
    assert core.check_integrity() == ""
    assert len(core) == len(reference)
    for window, count in reference.counts.items():
        assert core.count(window) == count


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_windows_are_counted_and_squeezed_as_by_the_twin(data: st.DataObject) -> None:
    depth = data.draw(st.integers(1, 5))
    limits = {
        "depth": depth,
        "max_nodes": data.draw(st.integers(2 * (depth + 1), 60)),
        "trie_nodes": data.draw(st.integers(1, 9)),
        "touched_tries": data.draw(st.integers(1, 4)),
    }
    core, reference = _core.WindowTrie(**limits), twin.WindowTrie(**limits)
    for text in data.draw(st.lists(texts, max_size=6)):
        starts = data.draw(st.integers(0, 45))
        core.add_windows(ints(text), starts, MEDIA_SET, EOS_SET)
        reference.add_windows(text, starts, MEDIA, EOS)
        counts_agree(core, reference)
        assert len(core) <= limits["max_nodes"]
        if data.draw(st.booleans()):
            core.end_request()
            reference.end_request()
            counts_agree(core, reference)
    core.clear()
    assert len(core) == 0
    assert core.check_integrity() == ""


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_draft_is_the_twins(data: st.DataObject) -> None:
    sizes = {"depth": data.draw(st.integers(1, 5)), "max_nodes": 999, "trie_nodes": 5}
    rules = {"nodes": data.draw(st.integers(2, 20)), "depth": data.draw(st.integers(1, 6))}
    weight = data.draw(st.sampled_from([0.0, 1e-4, 0.5, 1.0]))
    cores, twins = [], []
    for _ in range(2):
        core, reference = _core.WindowTrie(**sizes), twin.WindowTrie(**sizes, touched_tries=1024)
        for text in data.draw(st.lists(texts, max_size=3)):
            core.add_windows(ints(text), len(text), MEDIA_SET, EOS_SET)
            reference.add_windows(text, len(text), MEDIA, EOS)
        cores.append(core)
        twins.append(reference)
    query = data.draw(st.lists(st.integers(0, 5), max_size=3))
    budget = data.draw(st.integers(0, 20))
    tokens, parents, scores = _core.lookahead(
        *cores,
        ints(query),
        _core.LookaheadRules(output_weight=weight, **rules),
        MEDIA_SET,
        budget,
    )
    expected = twin.lookahead(*twins, query, weight=weight, budget=budget, **rules)
    got = list(zip(tokens.tolist(), parents.tolist(), strict=True))
    assert got == [node[:2] for node in expected]
    assert scores.tolist() == pytest.approx([node[2] for node in expected])


def test_inputs_decide_and_outputs_break_ties() -> None:
    """After 1: the prompt says 2 twice, 3 and 4 once; answers said 4 twice and 5 nine times."""
    prompt = _core.WindowTrie(depth=12, max_nodes=999)
    answers = _core.WindowTrie(depth=12, max_nodes=999)
    for text in ([1, 2], [1, 2], [1, 3], [1, 4]):
        prompt.add_windows(ints(text), 2, NONE, NONE)
    for text in [[1, 4]] * 2 + [[1, 5, 6]] * 9:
        answers.add_windows(ints(text), 3, NONE, NONE)
    rules = _core.LookaheadRules()
    tokens, parents, _ = _core.lookahead(prompt, answers, ints([0, 1]), rules, NONE, 63)
    assert tokens.tolist() == [2, 4, 3, 5, 6]
    assert parents.tolist() == [-1, -1, -1, -1, 3]
    small = _core.lookahead(prompt, answers, ints([1]), _core.LookaheadRules(nodes=3), NONE, 63)
    # More nodes than fit: only what the (3 / 2)-th largest output count reaches is left.
    assert small[0].tolist() == [5, 6]


def test_the_longer_key_is_enough_when_it_gives_a_whole_branch() -> None:
    answers = _core.WindowTrie(depth=12, max_nodes=9999)
    answers.add_windows(ints([7, 1, *range(20, 31)]), 2, NONE, NONE)
    answers.add_windows(ints([1, 9, 9]), 1, NONE, NONE)
    empty = _core.WindowTrie(depth=12, max_nodes=99)
    rules = _core.LookaheadRules()
    long = _core.lookahead(empty, answers, ints([7, 1]), rules, NONE, 63)
    assert long[0].tolist() == list(range(20, 31))  # 11 nodes and the root: a branch of 12
    other = _core.lookahead(empty, answers, ints([8, 1]), rules, NONE, 63)
    assert 9 in other[0].tolist()
    cut = _core.lookahead(empty, answers, ints([7, 1]), rules, NONE, 3)
    assert cut[0].tolist() == [20, 21, 22]


def test_a_full_store_keeps_what_was_seen_often() -> None:
    rng = random.Random(2)
    store = _core.WindowTrie(depth=4, max_nodes=300)
    for _ in range(300):
        store.add_windows(ints([1, 2, 3, 4, 5]), 1, NONE, NONE)
        store.add_windows(ints([rng.randrange(50) for _ in range(6)]), 2, NONE, NONE)
        assert len(store) <= 300
    assert store.check_integrity() == ""
    assert store.count([1, 2, 3, 4, 5]) > 5
    assert store.nbytes < 300 * 100


def test_wrong_calls_are_refused() -> None:
    for wrong in ({"depth": 0}, {"max_nodes": 9}, {"trie_nodes": 0}, {"touched_tries": 0}):
        with pytest.raises(ValueError, match="must"):
            _core.WindowTrie(**{"depth": 4, "max_nodes": 99, **wrong})
    for wrong_rule in ({"nodes": 1}, {"nodes": 129}, {"depth": 0}, {"output_weight": -0.1}):
        with pytest.raises(ValueError, match="must lie"):
            _core.LookaheadRules(**wrong_rule)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token id -1"):
        _core.WindowTrie(depth=4, max_nodes=99).add_windows(ints([-1, 2]), 2, NONE, NONE)
