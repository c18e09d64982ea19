"""A memory that was saved and loaded drafts the same trees, for every drafter that keeps one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from eyespan._core import SuffixAutomaton, TokenSet, WindowTrie
from eyespan.drafters import DRAFTERS
from eyespan.drafters.base import Remembers
from eyespan.saved_memory import load_memory, save_memory
from tests.property.test_conformance import answer, toy_drafter

TARGET = {"name": "toy", "weights": [0.5]}
REMEMBERING: dict[str, dict[str, Any]] = {
    "recap": {"max_rows": 32},
    "lookahead": {"max_nodes": 256, "touched_tries": 3, "trie_nodes": 8},
    "suffix": {"max_global_tokens": 64},
    "stand": {"max_rows": 16},
    "token_recycling": {},
    "sam": {"fallback": "recap"},
    "hybrid": {"max_rows": 32},
    "viskip": {"wrapped": "suffix", "max_global_tokens": 64},
}
"""Options that make memories so small that they evict, squeeze and rebuild."""

prompts = st.lists(st.integers(0, 12), min_size=1, max_size=20)


def test_the_table_knows_every_drafter_with_a_memory() -> None:
    found = {name for name in DRAFTERS if isinstance(toy_drafter(name), Remembers)}
    assert found == set(REMEMBERING)


@pytest.mark.parametrize("name", REMEMBERING)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=st.lists(prompts, min_size=1, max_size=4), after=st.lists(prompts, max_size=2))
def test_a_loaded_memory_drafts_the_same_trees(
    name: str, before: list[list[int]], after: list[list[int]], tmp_path: Path
) -> None:
    limit = 8 if name == "hybrid" else 30  # it runs a network
    old, new = (toy_drafter(name, **REMEMBERING[name]) for _ in range(2))
    for prompt in before:
        answer(old, prompt, limit, scope="a")
    answer(new, [1, 2, 3], limit, scope="b")  # is replaced
    untouched = answer(toy_drafter(name, **REMEMBERING[name]), [4, 5], limit, scope="c")
    assume(old.is_warm("a"))  # an answer of one token leaves lookahead nothing
    save_memory(tmp_path / "memory", old, "a", TARGET)
    load_memory(tmp_path / "memory", new, "b", TARGET)
    assert new.is_warm("b")
    for prompt in (*after, [3, 4, 5]):
        assert answer(new, prompt, limit, scope="b") == answer(old, prompt, limit, scope="a")
    assert answer(new, [4, 5], limit, scope="c") == untouched


@settings(max_examples=50, deadline=None)
@given(
    text=st.lists(st.integers(0, 5), max_size=120),
    limit=st.integers(2, 60),
    more=st.lists(st.integers(0, 5), max_size=10),
)
def test_a_text_appended_anew_is_the_same_automaton(
    text: list[int], limit: int, more: list[int]
) -> None:
    """0 is a barrier."""
    media = TokenSet(8, [0])
    one, two = (SuffixAutomaton(max_tokens=limit, count_depth=4) for _ in range(2))
    one.extend(np.array(text, np.int32), media)
    kept = one.text()
    assert len(kept) <= limit
    if len(text) <= limit:
        expected = [token if token else -1 for token in text]
        while expected and expected[0] < 0:
            expected.pop(0)
        expected = [x for i, x in enumerate(expected) if x >= 0 or i == 0 or expected[i - 1] >= 0]
        assert kept.tolist() == expected
    two.extend(np.where(kept < 0, 0, kept).astype(np.int32), media)
    for token in more:
        assert one.text().tolist() == two.text().tolist()
        assert one.match() == two.match()
        for automaton in (one, two):
            automaton.extend(np.array([token], np.int32), media)
    assert two.check_integrity() == ""


@settings(max_examples=50, deadline=None)
@given(
    windows=st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=20),
    spoil=st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(-3, 9)),
)
def test_nodes_come_back_or_are_refused(
    windows: list[list[int]], spoil: tuple[int, int, int]
) -> None:
    """A listing that was tampered with is refused, or is another whole trie: never a broken one."""
    nothing = TokenSet(8, [])
    trie, other = (WindowTrie(depth=3, max_nodes=64, touched_tries=2) for _ in range(2))
    for window in windows:
        trie.add_windows(np.array(window, np.int32), len(window), nothing, nothing)
    nodes = trie.export_nodes()
    other.import_nodes(*nodes)
    assert all(map(np.array_equal, other.export_nodes(), nodes))
    if len(nodes[0]):
        array, place, value = spoil
        spoilt = [each.copy() for each in nodes]
        spoilt[array][place % len(nodes[0])] = np.array(value).astype(spoilt[array].dtype)
        try:
            other.import_nodes(*spoilt)
        except ValueError:
            assert all(map(np.array_equal, other.export_nodes(), nodes))
        assert other.check_integrity() == ""
