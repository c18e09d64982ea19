"""Twin of cpp/src/best_first_tree, static_tree and draft: trees as lists of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Expand = Callable[[tuple[int, ...]], list[tuple[int, float]]]
"""Tokens from the root (exclusive) to a node -> its (token, q), most likely first."""


class Node(NamedTuple):
    """A guess."""

    token: int
    parent: int
    depth: int
    score: float
    origin: int
    path: tuple[int, ...]


def _eta(eta: Sequence[float], depth: int) -> float:
    return eta[min(depth, len(eta)) - 1]


def best_first(
    expand: Expand, *, eta: Sequence[float], budget: int, depth: int, eos: frozenset[int]
) -> list[Node]:
    """Sort the whole frontier again for every node; ties by the path of ranks."""
    nodes: list[Node] = []
    frontier: list[tuple[float, tuple[int, ...], Node]] = []

    def push(parent: int, path: tuple[int, ...], ranks: tuple[int, ...], score: float) -> None:
        if len(path) == depth or (path and path[-1] in eos):
            return
        for rank, (token, q) in enumerate(expand(path)):
            at = len(path) + 1
            value = score * (_eta(eta, at) * q)
            node = Node(token, parent, at, value, 0, (*path, token))
            frontier.append((-value, (*ranks, rank), node))

    push(-1, (), (), 1.0)
    while frontier and len(nodes) < budget:
        frontier.sort(key=lambda item: item[:2])
        _, ranks, node = frontier.pop(0)
        nodes.append(node)
        push(len(nodes) - 1, node.path, ranks, node.score)
    return nodes


def static(
    expand: Expand,
    shape: Sequence[int],
    *,
    eta: Sequence[float],
    budget: int,
    depth: int,
    eos: frozenset[int],
) -> list[Node]:
    """Fill a shape (children of each place, breadth first) level by level."""
    nodes: list[Node] = []
    places: list[int | None] = [-1]  # node of each place of the shape, None where empty
    for place, children in enumerate(shape):
        at = places[place]
        filled: list[int | None] = [None] * children
        if at is not None and children:
            node = nodes[at] if at >= 0 else Node(-1, -1, 0, 1.0, 0, ())
            if node.depth < depth and not (at >= 0 and node.token in eos):
                for rank, (token, q) in enumerate(expand(node.path)[:children]):
                    if len(nodes) == budget:
                        break
                    below = node.depth + 1
                    score = node.score * (_eta(eta, below) * q)
                    nodes.append(Node(token, at, below, score, 0, (*node.path, token)))
                    filled[rank] = len(nodes) - 1
        places += filled
    return nodes


def insert_chain(
    nodes: Sequence[Node],
    chain: Sequence[int],
    mass: float,
    *,
    eta: Sequence[float],
    eos: frozenset[int],
    cap: int | None,
) -> list[Node]:
    """The tree with a chain from the root, equal nodes shared; with a cap the last nodes go."""
    chain = tuple(chain)
    for i, token in enumerate(chain):
        if token in eos:
            chain = chain[: i + 1]
            break
    if cap is not None:
        chain = chain[:cap]
    for kept in range(len(nodes), -1, -1):
        tree = list(nodes[:kept])
        at = -1
        for i in range(1, len(chain) + 1):
            same = [j for j, node in enumerate(tree) if node.path == chain[:i]]
            if same:
                at = same[0]
                continue
            score = (tree[at].score if at >= 0 else 1.0) * (_eta(eta, i) * mass)
            tree.append(Node(chain[i - 1], at, i, score, 1, chain[:i]))
            at = len(tree) - 1
        if cap is None or len(tree) <= cap:
            return tree
    raise AssertionError("a chain within the cap always fits")
