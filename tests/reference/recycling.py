"""Token Recycling and Tree Recycling in slow plain Python: lists, dicts and rank paths."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Tree = dict[str, int]
"""Rank path of a node -> its token."""


def fill_static(
    rows: dict[int, list[int]], root: int, paths: Sequence[str], media: Collection[int]
) -> Tree:
    """Token Recycling's tree: rows that were never written are zeros, duplicates stay; -1 stands
    for no token.
    """
    if root in media:
        return {}
    tree: Tree = {"": root}
    for path in paths:
        if path[:-1] in tree:
            token = rows.get(tree[path[:-1]], [0] * 8)[int(path[-1])]
            if token not in media and token != -1:
                tree[path] = token
    del tree[""]
    return tree


def worth_static(rows: dict[int, list[int]], root: int, tree: Tree) -> dict[str, float]:
    """Score of each node: half of what the better ranks left at every step of its path, nothing
    below a repeated sibling or a row that was never written.
    """
    worth = {"": 1.0}
    for path in tree:
        above, rank = path[:-1], int(path[-1])
        row = rows.get(tree[above] if above else root, [0] * 8)
        believed = row[0] != row[1] and row[rank] not in row[:rank]
        worth[path] = worth[above] / 2 ** (rank + 1) if believed else 0.0
    del worth[""]
    return worth


def write_static(
    rows: dict[int, list[int]],
    tokens: Sequence[int],
    row_ids: Sequence[Sequence[int]],
    path: Sequence[int],
    media: Collection[int],
) -> None:
    """Token Recycling's writes: packed order, then the root and the accepted path once more."""
    for node in [*range(len(tokens)), 0, *path]:
        if tokens[node] not in media:
            rows[tokens[node]] = list(row_ids[node])


def fill_binary(
    rows: dict[int, list[int]],
    root: int,
    width: int,
    depth: int,
    media: Collection[int],
    eos: Collection[int],
) -> Tree:
    """Tree Recycling's tree: a token without a row, and an end id, has no children."""
    tree: Tree = {}
    layer = {"": root}
    for _ in range(depth):
        below: Tree = {}
        for path, token in layer.items():
            if token in media or token in eos:
                continue
            text = [candidate for candidate in rows.get(token, []) if candidate not in media]
            for rank, candidate in enumerate(text[:width]):
                below[f"{path}{rank}"] = candidate
        tree |= below
        layer = below
    return tree


def write_first(
    rows: dict[int, list[int]],
    tokens: Sequence[int],
    row_ids: Sequence[Sequence[int]],
    media: Collection[int],
) -> None:
    """Tree Recycling's writes: the first node of a token, 4 entries of its row."""
    seen: set[int] = set()
    for node, token in enumerate(tokens):
        if token not in seen and token not in media:
            rows[token] = list(row_ids[node])[:4]
        seen.add(token)
