"""Twin of cpp/src/packing: recursion over a tree of dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Packed(NamedTuple):
    """Columns of a packed tree; ancestors as sets of packed indices."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    ancestors: list[set[int]]
    order: list[int]


def pack(
    tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float] | None, root_token: int
) -> Packed:
    """Root first, then depth-first, best child first."""
    packed = Packed([root_token], [-1], [0], [{0}], [])

    def visit(node: int, place: int) -> None:
        children = [i for i, parent in enumerate(parents) if parent == node]
        if scores is not None:
            children.sort(key=lambda i: -scores[i])
        for child in children:
            at = len(packed.tokens)
            packed.tokens.append(tokens[child])
            packed.parents.append(place)
            packed.depths.append(packed.depths[place] + 1)
            packed.ancestors.append({*packed.ancestors[place], at})
            packed.order.append(child)
            visit(child, at)

    visit(-1, 0)
    return packed
