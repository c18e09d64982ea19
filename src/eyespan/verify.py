"""What is true: walk a packed tree with the target's own choices. Pure functions.

The walk draws the target's token at the root, follows the child that equals it, draws again there,
and stops where no child does. The guess never enters the draw, so the text is the target's at any
temperature and for any drafter (docs/lossless.md). Greedy acceptance of RECAP section 3.2 is the
case in which the draw is an argmax. `verify_by_rejection` is a second way for drafters that know
the distribution of their guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from eyespan.types import Cut, Ints, PackedTree, Verdict

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

    def step(node: int) -> tuple[int, int]:
        token = choose(node)
        return token, _child(tree, node, token) if accept else -1

    return _walk(step, emit)


def _walk(step: Callable[[int], tuple[int, int]], emit: Emit) -> Verdict:
    """From the root on: `step` gives the token after a node and the child that holds it, or -1."""
    path: list[int] = []
    tokens: list[int] = []
    node = 0
    while True:
        token, child = step(node)
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


Doubles: TypeAlias = npt.NDArray[np.float64]

Probs = Callable[[int], Doubles]
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
        uniform: called once per child and once more at every node visited.
        emit: as in `verify`.
    """
    return _walk(lambda node: _try_children(tree, node, target_probs, draft_probs, uniform), emit)


def _try_children(
    tree: PackedTree, node: int, target_probs: Probs, draft_probs: Probs, uniform: Uniform
) -> tuple[int, int]:
    """One level: the token after a node, and the child that guessed it or -1."""
    below = np.flatnonzero(tree.parents == node).tolist()
    below.sort(key=lambda packed: int(tree.order[packed - 1]))
    p = np.asarray(target_probs(node), np.float64)[None]
    q = np.asarray(draft_probs(node), np.float64)[None] if below else p
    numbers = np.array([[uniform() for _ in range(len(below) + 1)]])
    tokens, taken = reject_siblings(p, q, tree.tokens[below][None], numbers)
    return int(tokens[0]), below[taken[0]] if taken[0] >= 0 else -1


def reject_siblings(
    target_probs: Doubles, draft_probs: Doubles, siblings: Ints, uniforms: Doubles
) -> tuple[Ints, Ints]:
    """One level of multi-round rejection for B sequences at once.

    Args:
        target_probs: [B, V] p, of any positive sum.
        draft_probs: [B, V] q before the first sibling was drawn, of any positive sum.
        siblings: [B, k] ids in the order of their draws.
        uniforms: [B, k + 1] numbers in [0, 1): one a sibling and one for the last resort.

    Returns:
        The tokens [B], and which sibling each one is [B], -1 where none was taken.
    """
    p = target_probs / target_probs.sum(-1, keepdims=True)
    q = np.array(draft_probs, np.float64)
    rows, taken = np.arange(len(p)), np.full(len(p), -1, np.int32)
    for round_, token in enumerate(siblings.T):
        mass = q.sum(-1)
        open_ = (taken < 0) & (q[rows, token] > 0)
        fits = uniforms[:, round_] * q[rows, token] < p[rows, token] * mass
        taken[open_ & fits] = round_
        rejected = np.flatnonzero(open_ & ~fits)
        left = np.maximum(p[rejected] - q[rejected] / mass[rejected, None], 0.0)
        total = left.sum(-1, keepdims=True)
        # nothing is left only where p equals q up to rounding, and then p is as good
        p[rejected] = np.where(total > 0, left / np.where(total > 0, total, 1.0), p[rejected])
        q[rejected, token[rejected]] = 0.0
    tokens = inverse_draw(p, uniforms[:, -1])
    tokens[taken >= 0] = siblings[rows, taken][taken >= 0] if siblings.size else tokens
    return tokens, taken


def inverse_draw(probs: Doubles, uniforms: Doubles) -> Ints:
    """[B] tokens at `uniforms` [B] in [0, 1) of each row's cumulative distribution [B, V] (of any
    positive sum); never one of probability 0.
    """
    total = probs.cumsum(-1)
    beyond = total > uniforms[:, None] * total[:, -1:]
    last = probs.shape[-1] - 1 - (probs[:, ::-1] > 0).argmax(-1)
    tokens: Ints = np.where(beyond.any(-1), beyond.argmax(-1), last).astype(np.int32)
    return tokens
