"""What is true: walk a packed tree with the target's own choices. Pure functions.

The walk draws the target's token at the root, follows the child that equals it, draws again there,
and stops where no child does. The guess never enters the draw, so the text is the target's at any
temperature and for any drafter (docs/lossless.md). Greedy acceptance of RECAP section 3.2 is the
case in which the draw is an argmax.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from eyespan.types import Cut, PackedTree, Verdict

Choose = Callable[[int], int]
"""Packed node -> the target's token after it. Called once per committed token, in text order, as
plain decoding would call it, so stateful processors and random generators stay in step."""

Emit = Callable[[int, int], "Cut | None"]
"""(token, packed node that guessed it or -1) -> why generation ends with this token, or None."""


def verify(tree: PackedTree, choose: Choose, emit: Emit, *, accept: bool = True) -> Verdict:
    """Find the accepted path and the target's token after it, cut exactly where an answer ends.

    Args:
        tree: what was packed; only tokens and parents are read, never a score.
        choose: the target's draw.
        emit: told every committed token, in order; its answer ends the walk.
        accept: False ignores every guess, right ones too, as if the step had been a plain one.

    Returns:
        The verdict. When the last committed token was itself a guess and ended the answer,
        `next` is None.
    """
    path: list[int] = []
    tokens: list[int] = []
    node = 0
    while True:
        token = choose(node)
        child = _child(tree, node, token) if accept else -1
        tokens.append(token)
        if child > 0:
            path.append(child)
        cut = emit(token, child)
        if cut is not None or child < 0:
            last = token if child < 0 else None
            return Verdict(np.array(path, np.int32), last, tuple(tokens), cut)
        node = child


def _child(tree: PackedTree, node: int, token: int) -> int:
    """Packed index of the first child of `node` that guesses `token`, or -1."""
    hits = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
    return int(hits[0]) if hits.size else -1
