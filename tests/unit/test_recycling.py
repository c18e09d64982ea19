"""Token Recycling and Tree Recycling against slow twins, and the published tree in three forms."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan._core import TokenSet, recycled_tree, token_recycling_shape
from eyespan.drafters import make_drafter
from eyespan.drafters.token_recycling import PATHS, TokenRecycling
from eyespan.drafters.tree_recycling import TreeRecycling
from eyespan.errors import ConfigError
from eyespan.types import DraftTree
from tests.drafting import by_rank, ints, open_session, packed_of, show
from tests.reference.recycling import (
    fill_binary,
    fill_static,
    worth_static,
    write_first,
    write_static,
)

IMAGE, END = 9, 8

COUNTS = [
    8, 8,4,3,2,1,1,1,1, 8,3,2,1,1,1,1,1,2,1,0,0,1,0,0,1,0,1,1,0,0,
    5,2,1,1,1,0,0,0,1,0,0,1,0,0,0,0,0,0,1,0,0,1,1,0,0,
    3,1,1,0,0,1,0,0,0,0,1,0,1,0,0, 2,0,0,1,0,0,0,0, 0,0,0,
]  # fmt: skip
NESTED: Any = [
    [[[[[[],[]],[],[]],[[[]]],[[]],[],[]],[[[]],[]],[[]],[[]],[[]],[],[],[]],
     [[[[]]],[],[]],[[[]],[]],[[]],[[]],[[]],[[]],[[]]],
    [[[[[]]],[]],[[]],[],[]],
    [[[[]]],[],[]],[[[[]]],[]],[[[]]],[[[]]],[[]],[[]],
]  # fmt: skip


# The tree


def paths_of_counts(counts: list[int]) -> list[str]:
    """Rank paths of a tree given as child counts in breadth-first order."""
    paths = [""]
    for at, count in enumerate(counts):
        paths += [paths[at] + str(rank) for rank in range(count)]
    return paths[1:]


def paths_of_nested(node: Any, path: str = "") -> list[str]:
    """Rank paths of a tree given as lists of children."""
    below = [paths_of_nested(child, path + str(rank)) for rank, child in enumerate(node)]
    return ([path] if path else []) + [found for paths in below for found in paths]


def test_three_descriptions_of_the_tree_agree() -> None:
    assert paths_of_counts(COUNTS) == list(PATHS)
    assert sorted(paths_of_nested(NESTED)) == sorted(PATHS)
    assert token_recycling_shape() == COUNTS


def test_the_tree_is_the_published_one() -> None:
    assert len(PATHS) == len(set(PATHS)) == 80
    assert Counter(map(len, PATHS)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert all(path[:-1] in {"", *PATHS} for path in PATHS)
    assert sum(not any(other[:-1] == path for other in PATHS) for path in PATHS) == 40


def test_what_hangs_below_a_rank_hangs_below_every_better_sibling() -> None:
    """So the first of two equal siblings has the longest continuation: a walk that follows it
    accepts as much as a search over all leaves.
    """
    for path in PATHS:
        head, rank = path[:-1], int(path[-1])
        below = {other[len(path) :] for other in PATHS if other.startswith(path)}
        for better in range(rank):
            twin = f"{head}{better}"
            assert below <= {other[len(twin) :] for other in PATHS if other.startswith(twin)}


# Token Recycling


def test_a_tree_by_hand() -> None:
    drafter = TokenRecycling(vocab_size=64)
    session = open_session(drafter, [1, 2])
    drafter.matrix(None)[2] = [10, 11, 12, 13, 14, 15, 16, 17]
    drafter.matrix(None)[10] = [20, 21, 22, 23, 24, 25, 26, 27]
    draft = session.propose(ints([1, 2]), 80)
    tree = dict(zip(PATHS, draft.tokens.tolist(), strict=True))
    assert [tree[str(rank)] for rank in range(8)] == list(range(10, 18))
    assert [tree[f"0{rank}"] for rank in range(8)] == list(range(20, 28))
    assert {token for path, token in tree.items() if len(path) > 1 and path[0] != "0"} == {0}
    parents = [PATHS.index(path[:-1]) if path[:-1] else -1 for path in PATHS]
    assert draft.parents.tolist() == parents
    # only written rows promise anything, the better rank more
    promising = {PATHS[at] for at in np.flatnonzero(draft.scores)}
    assert promising == {*map(str, range(8)), *(f"0{rank}" for rank in range(8))}
    assert draft.scores[:3].tolist() == [0.5, 0.25, 0.125]
    assert draft.scores[PATHS.index("01")] == np.float32(0.125)


def test_an_empty_memory_drafts_eighty_zeros_as_published() -> None:
    session = open_session(TokenRecycling(vocab_size=64), [1, 2])
    draft = session.propose(ints([1, 2]), 127)
    assert draft.tokens.tolist() == [0] * 80
    assert not draft.scores.any()


def test_a_smaller_budget_cuts_the_tree_in_its_own_order() -> None:
    drafter = TokenRecycling(vocab_size=64)
    drafter.matrix(None)[:] = np.arange(1, 9)
    session = open_session(drafter, [1, 2])
    whole, part = session.propose(ints([1, 2]), 80), session.propose(ints([1, 2]), 21)
    assert part.tokens.tolist() == whole.tokens[:21].tolist()
    assert part.parents.tolist() == whole.parents[:21].tolist()


def test_writes_go_in_packed_order_and_the_accepted_path_wins() -> None:
    drafter = TokenRecycling(vocab_size=64)
    session = open_session(drafter, [5, 6])
    draft = DraftTree(ints([7, 3, 7, 4]), ints([-1, 0, -1, 2]))  # 7 stands at two nodes
    rows = np.arange(5)[:, None] * 10 + np.arange(8)
    show(session, [5, 6], [7, 3, 1], draft=draft, row_ids=rows, path=[1, 2])
    matrix = drafter.matrix(None)
    assert matrix[6].tolist() == rows[0].tolist()
    assert matrix[7].tolist() == rows[1].tolist()  # node 3 came later, node 1 became text
    show(session, [5, 6], [1], draft=draft, row_ids=rows)
    assert matrix[7].tolist() == rows[3].tolist()
    assert matrix[3].tolist() == rows[2].tolist()
    assert matrix[4].tolist() == rows[4].tolist()


def test_the_prompt_is_not_written() -> None:
    assert TokenRecycling(vocab_size=64).needs.prompt_rows == "none"


rows_of_eight = st.lists(st.integers(0, 9), min_size=8, max_size=8)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_token_recycling_is_its_twin(data: st.DataObject) -> None:
    drafter = TokenRecycling(vocab_size=10)
    session = open_session(drafter, [0], media={IMAGE})
    twin: dict[int, list[int]] = {}
    root = data.draw(st.integers(0, 9))
    for _ in range(3):
        draft = session.propose(ints([0, root]), 80)
        expected = fill_static(twin, root, PATHS, {IMAGE})
        assert draft.tokens.tolist() == list(expected.values())
        places = list(expected)
        parents = [places[at] if at >= 0 else "" for at in draft.parents]
        assert parents == [path[:-1] for path in places]
        tree = packed_of(draft, root)
        rows = [data.draw(rows_of_eight) for _ in range(4)]
        row_ids = [rows[at % 4] for at in range(len(tree))]
        path = [at for at in range(1, min(len(tree), 3)) if tree.parents[at] == at - 1]
        tokens = [*(int(tree.tokens[at]) for at in path), data.draw(st.integers(0, 9))]
        show(session, [0, root], tokens, draft=draft, row_ids=row_ids, path=path)
        write_static(twin, tree.tokens.tolist(), row_ids, path, {IMAGE})
        root = tokens[-1]
    matrix = drafter.matrix(None)
    assert {t: matrix[t].tolist() for t in range(10)} == {
        t: twin.get(t, [0] * 8) for t in range(10)
    }


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_the_core_reads_the_tree_as_its_twin_does(seed: int) -> None:
    """Any matrix: rows never written, repeated and missing entries, media, every budget."""
    rng = np.random.default_rng(seed)
    vocab, most = int(rng.integers(1, 12)), int(rng.choice([12, 3]))
    matrix = rng.integers(-1, min(vocab, most), (vocab, 8), dtype=np.int32)
    matrix[rng.random(vocab) < 0.3] = 0
    media = set(rng.integers(0, 14, int(rng.integers(0, 3))).tolist())
    root, budget = int(rng.integers(0, vocab)), int(rng.choice([80, rng.integers(-1, 90)]))
    rows = {token: row.tolist() for token, row in enumerate(matrix)}
    expected = fill_static(rows, root, PATHS[: max(budget, 0)], media)
    tokens, parents, scores = recycled_tree(matrix, root, TokenSet(vocab, sorted(media)), budget)
    assert tokens.tolist() == list(expected.values())
    places = [*expected, ""]
    assert [places[at] for at in parents] == [path[:-1] for path in expected]
    assert scores.tolist() == list(worth_static(rows, root, expected).values())


def test_a_root_outside_the_matrix_has_no_tree() -> None:
    matrix = np.arange(16, dtype=np.int32).reshape(2, 8) % 2
    for root in (-1, 2, 2**20):
        assert all(len(part) == 0 for part in recycled_tree(matrix, root, TokenSet(2, []), 80))
    with pytest.raises(ValueError, match="8 ids a row"):
        recycled_tree(matrix.reshape(4, 4), 0, TokenSet(2, []), 80)


def test_scopes_are_apart_and_the_least_recently_used_is_forgotten() -> None:
    drafter = TokenRecycling(vocab_size=64, max_scopes=2)
    for scope in ("a", "b"):
        show(open_session(drafter, [1], scope=scope), [1, 2], [3])
        assert drafter.is_warm(scope)
    open_session(drafter, [1], scope="a")
    open_session(drafter, [1], scope="c")
    assert [drafter.is_warm(scope) for scope in "abc"] == [True, False, False]
    drafter.reset()
    assert not drafter.is_warm("a")


def test_a_reset_reaches_open_sessions() -> None:
    drafter = TokenRecycling(vocab_size=64)
    session = open_session(drafter, [1])
    show(session, [1, 2], [3])
    drafter.reset()
    assert not session.propose(ints([1, 2]), 8).scores.any()


# Tree Recycling


def test_thirty_nodes_by_default() -> None:
    drafter = TreeRecycling(vocab_size=10)
    assert drafter.fixed_budget == 30
    session = open_session(drafter, [0])
    assert len(session.propose(ints([0, 1]), 127)) == 0
    for token in range(10):
        row = [(token + step) % 10 for step in range(1, 9)]
        show(session, [0, token], [1], row_ids=[row])
    draft = session.propose(ints([0, 1]), 127)
    assert len(draft) == 30
    assert by_rank(draft)["0101"] == 1 + 1 + 2 + 1 + 2
    assert draft.scores is not None
    assert draft.scores[0] == pytest.approx(np.exp(8) / np.exp([8, 7, 6, 5]).sum(), abs=1e-5)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_tree_recycling_is_its_twin(data: st.DataObject) -> None:
    drafter = TreeRecycling(vocab_size=10)
    session = open_session(drafter, [0], media={IMAGE}, eos={END})
    twin: dict[int, list[int]] = {}
    root = data.draw(st.integers(0, 7))
    for _ in range(4):
        draft = session.propose(ints([0, root]), 127)
        assert by_rank(draft) == fill_binary(twin, root, 2, 4, {IMAGE}, {END})
        tree = packed_of(draft, root)
        rows = [data.draw(st.permutations(range(10))) for _ in range(4)]
        row_ids = [rows[at % 4][:8] for at in range(len(tree))]
        root = data.draw(st.integers(0, 7))
        show(session, [0, int(tree.tokens[0])], [root], draft=draft, row_ids=row_ids)
        write_first(twin, tree.tokens.tolist(), row_ids, {IMAGE})


def test_requests_share_no_rows() -> None:
    drafter = TreeRecycling(vocab_size=10)
    show(open_session(drafter, [0]), [0, 1], [2])
    assert len(open_session(drafter, [0]).propose(ints([0, 1]), 30)) == 0


# Options


@pytest.mark.parametrize(
    ("drafter", "option", "value", "needed"),
    [
        ("token_recycling", "max_scopes", 0, "from 1"),
        ("tree_recycling", "row_size", 9, "from 1 to 8"),
        ("tree_recycling", "width", 5, "at most 4"),
        ("tree_recycling", "depth", 7, "for 127 nodes"),
        ("tree_recycling", "max_rows", 0, "from 1"),
    ],
)
def test_a_value_out_of_range_is_refused(
    drafter: str, option: str, value: Any, needed: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter(drafter, vocab_size=16, **{option: value})
    assert needed in refused.value.needed
