"""What is true: walk a packed tree with the target's own choices. Pure functions.

The walk draws the target's token at the root, follows the child that equals it, draws again there,
and stops where no child does. The guess never enters the draw, so the text is the target's at any
temperature and for any drafter (docs/lossless.md). Greedy acceptance of RECAP section 3.2 is the
case in which the draw is an argmax. `verify_by_rejection` is a second way for drafters that know
the distribution of their guesses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from eyespan.types import Cut, PackedTree, Verdict

Choose = Callable[[int], int]
"""Packed node -> the target's token after it. Called once per committed token, in text order, as
plain decoding would call it, so stateful processors and random generators stay in step."""

Emit = Callable[[int, int], "Cut | None"]
"""(token, packed node that guessed it or -1) -> why generation ends with this token, or None."""


def verify(tree: PackedTree, choose: Choose, emit: Emit) -> Verdict:
    """Find the accepted path and the target's token after it, cut exactly where an answer ends.

    Args:
        tree: what was packed; only tokens and parents are read, never a score.
        choose: the target's draw.
        emit: told every committed token, in order; its answer ends the walk.

    Returns:
        The verdict. When the last committed token was itself a guess and ended the answer,
        `next` is None.
    """
    path: list[int] = []
    tokens: list[int] = []
    node = 0
    while True:
        token = choose(node)
        child = _child(tree, node, token)
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


Probs = Callable[[int], "npt.NDArray[np.float64]"]
"""Packed node -> a distribution [V] over the token after it."""

Uniform = Callable[[], float]
"""The request's next random number in [0, 1)."""


def verify_by_rejection(
    tree: PackedTree, target_probs: Probs, draft_probs: Probs, uniform: Uniform, emit: Emit
) -> Verdict:
    """Multi-round rejection sampling, for drafters that expose the distribution they drew from.

    At every node the children are tried in the order in which they were drawn. A child x is taken
    with probability min(1, p(x) / q(x)); when it is not, p becomes the normalised positive part of
    p - q, and x leaves q, since siblings were drawn without replacement. Where all are rejected
    the token comes from what p has become. Committed tokens are distributed as the target's own
    draws, and more guesses survive than in `verify` when q is close to p; what is lost is the
    order of random numbers, so a seed does not repeat plain decoding's answer.

    Source: speculative sampling (Leviathan et al., arXiv 2211.17192, theorem 1), over siblings as
    in SpecInfer (arXiv 2305.09781, algorithm 2).

    Args:
        tree: siblings in draw order by `tree.order`.
        target_probs: p after a packed node, all processors and cuts applied.
        draft_probs: q from which the node's first child was drawn. A child of q = 0 cannot have
            been drawn; it is passed over, which keeps the outcome exact whatever q claims.
        uniform: called once per child tried and once for the final draw.
        emit: as in `verify`.
    """
    path: list[int] = []
    tokens: list[int] = []
    node = 0
    while True:
        token, child = _try_children(tree, node, target_probs, draft_probs, uniform)
        tokens.append(token)
        if child > 0:
            path.append(child)
        cut = emit(token, child)
        if cut is not None or child < 0:
            last = token if child < 0 else None
            return Verdict(np.array(path, np.int32), last, tuple(tokens), cut)
        node = child


def _try_children(
    tree: PackedTree, node: int, target_probs: Probs, draft_probs: Probs, uniform: Uniform
) -> tuple[int, int]:
    """One level: the token after a node, and the child that guessed it or -1."""
    children = np.flatnonzero(tree.parents == node)
    p = np.array(target_probs(node), np.float64)
    q = np.array(draft_probs(node), np.float64) if children.size else p
    p /= p.sum()
    for child in sorted(children.tolist(), key=lambda packed: int(tree.order[packed - 1])):
        token = int(tree.tokens[child])
        if q[token] <= 0:
            continue
        q /= q.sum()
        if uniform() * q[token] < p[token]:
            return token, child
        left = np.maximum(p - q, 0.0)
        if left.sum() > 0:  # zero only where p equals q up to rounding, and then p is as good
            p = left / left.sum()
        q[token] = 0.0
    total = np.cumsum(p)
    at = int(np.searchsorted(total, uniform() * total[-1], side="right"))
    return min(at, int(np.flatnonzero(p)[-1])), -1
