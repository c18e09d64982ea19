"""Draft trees level by level, for a batch of sequences at once: every level is one forward of the
head over its most likely nodes, and the best nodes of all levels become the tree (EAGLE-2's search,
which FOVEA section 3 and all trained methods here share).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eyespan.drafters._attention import CachedAttention, KeyValues
from eyespan.drafters._head import Condition, DraftHead
from eyespan.drafters._pacing import Growing
from eyespan.types import DraftTree, Floats, Ints


class Roots(NamedTuple):
    """Where B trees begin.

    Attributes:
        last: [B, 1, D] the head's output at the roots.
        positions: [B] the roots' indices in their sequences.
        condition: of the requests.
        forbidden: [B, V] bool, True at ids that are never drafted.
        ends: [B, V] bool, True at ids that end an answer: nothing is drafted after them.
        generator: where a control draws at random.
    """

    last: Tensor
    positions: Tensor
    condition: Condition
    forbidden: Tensor
    ends: Tensor
    generator: torch.Generator | None


class Candidates(NamedTuple):
    """All nodes that were scored, level by level, on the host.

    Attributes:
        tokens: [B, m] target ids.
        parents: [B, m] index of the parent among the m; -1 hangs from the root.
        scores: [B, m] log-probability of the path; -inf where there is no node.
    """

    tokens: Ints
    parents: Ints
    scores: Floats


def grow(
    head: DraftHead,
    cache: KeyValues,
    roots: Roots,
    *,
    width: int,
    depth: int,
    growing: Growing | None = None,
) -> Candidates:
    """Score the nodes of all levels, or of those that pay.

    Args:
        head: attached to the target.
        cache: the sequences' context; its columns beyond `length` are written.
        roots: see there.
        width: candidates of a node, and nodes expanded at a level.
        depth: longest path.
        growing: tells after each level whether the next one pays; None: all do.
    """
    batch = roots.last.shape[0]
    cache.reserve(width * (depth - 1))
    names = head.token_ids()
    forbidden = roots.forbidden if names is None else roots.forbidden[:, names]
    width = min(width, forbidden.shape[1])
    last, scores = roots.last, roots.last.new_zeros(batch, 1, dtype=torch.float32)
    nodes = torch.full((batch, 1), -1, device=last.device)  # who the parents of a level are
    sees = context_of(cache, roots)
    levels: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    for level in range(depth):
        logits = head.scores(last, level, roots.condition, roots.generator)
        logits = logits.float().masked_fill(forbidden[:, None, :], -torch.inf)
        best, ids = logits.topk(width, dim=-1)
        best = best - logits.logsumexp(-1, keepdim=True)
        paths = (scores[..., None] + best).nan_to_num(nan=-torch.inf).flatten(1)
        tokens = (ids if names is None else names[ids]).flatten(1)
        parents = nodes.repeat_interleave(width, 1)
        levels.append((tokens, parents, paths))
        if growing is not None:
            growing.scored(paths)
        if level + 1 == depth:
            break
        goes_on = paths.masked_fill(roots.ends.gather(1, tokens), -torch.inf)
        scores, chosen = goes_on.topk(min(width, paths.shape[1]), dim=-1)
        if growing is not None and not growing.goes_on(scores):
            break
        nodes = count + chosen
        count += paths.shape[1]
        parent = chosen // width  # row of the parent in `last`, and among the last level's columns
        last, sees = deeper(head, cache, roots, last, sees, tokens.gather(1, chosen), parent, level)
    tokens, parents, paths = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    whole = torch.stack([tokens.int(), parents.int(), paths.view(torch.int32)]).cpu().numpy()
    return Candidates(whole[0], whole[1], whole[2].view(np.float32))


def context_of(cache: KeyValues, roots: Roots) -> Tensor:
    """[B, 1, columns] bool, what the roots see of the cache."""
    shape = (roots.last.shape[0], 1, cache.length)
    sees = torch.ones(shape, dtype=torch.bool, device=roots.last.device)
    return sees if cache.visible is None else sees & cache.visible[:, None, :]


def deeper(
    head: DraftHead,
    cache: KeyValues,
    roots: Roots,
    last: Tensor,
    sees: Tensor,
    tokens: Tensor,
    parent: Tensor,
    level: int,
) -> tuple[Tensor, Tensor]:
    """Run the nodes of one level.

    Args:
        head: see `grow`.
        cache: see `grow`.
        roots: see `grow`.
        last: [B, m, D] the head's output at the level above.
        sees: [B, m, columns] what that level saw.
        tokens: [B, k] of the new level.
        parent: [B, k] place of each node's parent in the level above.
        level: 0 for children of the roots.

    Returns:
        The head's output there [B, k, D], and what the new level sees.
    """
    features = head.feedback(last.gather(1, parent[..., None].expand(-1, -1, last.shape[-1])))
    x = head.inputs(head.embed(tokens), features, roots.condition)
    sees = sees.gather(1, parent[..., None].expand(-1, -1, sees.shape[-1]))
    own = torch.eye(tokens.shape[1], dtype=torch.bool, device=last.device)
    sees = torch.cat([sees, own.expand(len(sees), -1, -1)], dim=-1)
    attend = CachedAttention(cache, sees.shape[-1] - own.shape[0], sees[:, None])
    positions = (roots.positions + level + 1)[:, None].expand(-1, tokens.shape[1])
    return head.stack(x, positions, attend).last, sees


def best_trees(found: Candidates, sizes: Sequence[int]) -> list[DraftTree]:
    """The best nodes of each sequence as a tree; scores are path probabilities.

    A path is never more likely than its beginning, and of equals the earlier level wins, so that a
    node's parent is always among the chosen.

    Args:
        found: what `grow` scored.
        sizes: [B] most nodes of each tree.
    """
    trees = []
    for tokens, parents, scores, size in zip(*found, sizes, strict=True):
        order = np.argsort(-scores, kind="stable")[:size]
        order = np.sort(order[np.isfinite(scores[order])])
        place = np.full(len(tokens) + 1, -1, np.int32)  # the extra entry maps -1 to itself
        place[order] = np.arange(len(order), dtype=np.int32)
        trees.append(DraftTree(tokens[order], place[parents[order]], np.exp(scores[order])))
    return trees
