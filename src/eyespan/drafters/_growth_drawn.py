"""Draft trees of trained heads whose nodes are drawn at random (`_drawing.py`), for a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyespan.drafters._attention import KeyValues
from eyespan.drafters._drawing import Sketch
from eyespan.drafters._growth import Roots, context_of, deeper
from eyespan.drafters._head import DraftHead
from eyespan.types import DraftTree


def grow_drawn(
    head: DraftHead, cache: KeyValues, roots: Roots, sketches: Sequence[Sketch], *, width: int
) -> list[DraftTree]:
    """Draw a tree for each sequence; every level is one forward of the head.

    Args:
        head: attached to the target.
        cache: the sequences' context; its columns beyond `length` are written.
        roots: see there.
        sketches: one for each sequence.
        width: most nodes of a level.
    """
    last, sees, level = roots.last, context_of(cache, roots), 0
    while any(sketch.going for sketch in sketches):
        scores = head.scores(last, level, roots.condition, roots.generator)
        logits = _over_all_ids(scores, head.token_ids(), roots.forbidden)
        rows = logits.cpu().numpy()
        new = [
            sketch.draw(rows[at, : len(sketch.layer)]) if sketch.going else []
            for at, sketch in enumerate(sketches)
        ]
        widest = max(map(len, new))
        if not any(sketch.going for sketch in sketches) or widest == 0:
            break
        cache.reserve(sees.shape[-1] - cache.length + width)
        padded = [[*row, *[(0, 0)] * (widest - len(row))] for row in new]
        nodes = torch.tensor(padded, device=last.device)
        last, sees = deeper(head, cache, roots, last, sees, nodes[..., 0], nodes[..., 1], level)
        level += 1
    return [sketch.tree() for sketch in sketches]


def _over_all_ids(scores: Tensor, names: Tensor | None, forbidden: Tensor) -> Tensor:
    """[B, n, V] float64 logits; -inf at ids that are never drafted or that the head lacks."""
    logits = scores.double()
    if names is not None:
        wide = logits.new_full((*logits.shape[:2], forbidden.shape[1]), -torch.inf)
        logits = wide.index_copy(-1, names, logits)
    return logits.masked_fill(forbidden[:, None, :], -torch.inf)
