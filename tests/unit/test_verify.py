"""The acceptance walk: what is committed is the target's, the guess only decides how fast."""

from __future__ import annotations

import numpy as np

from eyespan.types import Cut, PackedTree
from eyespan.verify import verify


def tree(tokens: list[int], parents: list[int]) -> PackedTree:
    """A packed tree; only tokens and parents matter to the walk."""
    n = len(tokens)
    return PackedTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.zeros(n, np.int32),
        np.zeros((n, 2), np.uint64),
        np.zeros(n - 1, np.int32),
    )


def walk(
    packed: PackedTree, draws: dict[int, int], cut_at: dict[int, Cut] | None = None
) -> tuple[list[int], list[int], int | None, Cut | None, list[int]]:
    asked: list[int] = []
    cuts = cut_at or {}

    def choose(node: int) -> int:
        asked.append(node)
        return draws[node]

    seen: list[tuple[int, int]] = []

    def emit(token: int, node: int) -> Cut | None:
        seen.append((token, node))
        return cuts.get(token)

    verdict = verify(packed, choose, emit)
    assert [token for token, _ in seen] == list(verdict.tokens)
    return verdict.path.tolist(), list(verdict.tokens), verdict.next, verdict.cut, asked


def test_no_guess_is_a_plain_step() -> None:
    assert walk(tree([5], [-1]), {0: 9}) == ([], [9], 9, None, [0])


def test_the_walk_follows_the_child_that_equals_the_draw() -> None:
    #        5
    #      7   8
    #     9     6
    packed = tree([5, 7, 9, 8, 6], [-1, 0, 1, 0, 3])
    assert walk(packed, {0: 8, 3: 6, 4: 2}) == ([3, 4], [8, 6, 2], 2, None, [0, 3, 4])


def test_it_stops_where_no_child_does_and_asks_nothing_further() -> None:
    packed = tree([5, 7, 9], [-1, 0, 1])
    assert walk(packed, {0: 7, 1: 3}) == ([1], [7, 3], 3, None, [0, 1])


def test_the_same_token_elsewhere_in_the_tree_is_no_child() -> None:
    packed = tree([5, 7, 9, 8], [-1, 0, 1, 0])
    assert walk(packed, {0: 9}) == ([], [9], 9, None, [0])


def test_of_equal_siblings_the_first_is_followed() -> None:
    packed = tree([5, 7, 7, 4], [-1, 0, 0, 2])
    assert walk(packed, {0: 7, 1: 3}) == ([1], [7, 3], 3, None, [0, 1])


def test_a_cut_on_a_guess_ends_the_text_there_and_draws_no_more() -> None:
    packed = tree([5, 7, 9], [-1, 0, 1])
    assert walk(packed, {0: 7}, {7: "eos"}) == ([1], [7], None, "eos", [0])


def test_a_cut_on_the_targets_own_token_reports_it() -> None:
    packed = tree([5, 7], [-1, 0])
    assert walk(packed, {0: 7, 1: 2}, {2: "length"}) == ([1], [7, 2], 2, "length", [0, 1])


def test_guesses_that_may_not_count_are_not_there() -> None:
    packed = tree([5, 7, 9], [-1, 0, 1])
    verdict = verify(packed, lambda node: 7, lambda token, node: None, accept=False)
    assert (verdict.path.tolist(), verdict.tokens, verdict.next) == ([], (7,), 7)
