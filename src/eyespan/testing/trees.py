"""Random draft trees, and hypothesis strategies for trees and token histories."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from eyespan._core import pack
from eyespan.types import DraftTree, Ints, PackedTree

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def random_tree(
    rng: np.random.Generator, size: int, vocab_size: int, avoid: Collection[int] = ()
) -> DraftTree:
    """A tree of `size` random guesses: chains, stars and everything between.

    Args:
        rng: source of all choices.
        size: number of guesses, the root not counted.
        vocab_size: ids lie below it.
        avoid: ids that never appear, e.g. `target.info.media_ids`.
    """
    allowed = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), list(avoid))
    reach = int(rng.integers(1, size + 1)) if size else 1  # 1 makes a chain, `size` a bush
    nearest = np.arange(size) - 1
    parents = np.maximum(nearest - rng.integers(0, reach, size), -1)
    return DraftTree(
        tokens=rng.choice(allowed, size).astype(np.int32),
        parents=parents.astype(np.int32),
        scores=rng.random(size, dtype=np.float32),
    )


def packed(tree: DraftTree, root: int) -> PackedTree:
    """The tree as one forward sees it, below the token `root`."""
    return PackedTree(*pack(tree.tokens, tree.parents, tree.scores, root))


def root_path(tree: PackedTree, node: int) -> Ints:
    """[depth] packed indices from the root's child down to `node`; empty for the root itself."""
    path = []
    while node > 0:
        path.append(node)
        node = int(tree.parents[node])
    return np.array(path[::-1], np.int32)


def draft_trees(max_size: int = 24, vocab_size: int = 264) -> SearchStrategy[DraftTree]:
    """Strategy: trees of 0 to `max_size` guesses, ids below `vocab_size`; needs hypothesis."""
    from hypothesis import strategies as st

    def build(size: int, seed: int) -> DraftTree:
        return random_tree(np.random.default_rng(seed), size, vocab_size)

    return st.builds(build, st.integers(0, max_size), st.integers(0, 2**32 - 1))


def histories(max_size: int = 64, vocab_size: int = 8) -> SearchStrategy[Ints]:
    """Strategy: [1..max_size] token ids; the small default vocabulary makes them repeat."""
    from hypothesis import strategies as st

    tokens = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=max_size)
    return tokens.map(lambda ids: np.array(ids, np.int32))
