"""FOVEA's visual memory: what is kept of a picture, what a node asks, and which entries it takes,
for all nodes of a level at once (FOVEA eq. 2-7).

The slow obvious twin of the choice, one node at a time, is `tests/reference/retrieval.py`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from eyespan.drafters._head import Condition

Retrieval: TypeAlias = Literal["cumulative_mass", "top_k", "dense"]
Query: TypeAlias = Literal["state", "state_only", "query_agnostic", "static_image", "random"]


MAX_DEPTH = 6
"""Depths that have an embedding: the tree's, D (section 4)."""


class Select(NamedTuple):
    """How many entries a node takes; see `FoveaConfig`."""

    retrieval: Retrieval
    mass: float
    k_min: int
    k_max: int
    top_k: int


class VisualMemory(nn.Module):
    """Keys and values of projected visual tokens, and the queries of nodes (eq. 2-4).

    Args:
        size: width of tokens and states; keys and values are as wide (appendix C).
        depth_embedding: whether queries know their depth.
    """

    def __init__(self, size: int, *, depth_embedding: bool) -> None:
        super().__init__()
        self.norm_visual = nn.LayerNorm(size)
        self.norm_state = nn.LayerNorm(size)
        self.key = nn.Linear(size, size, bias=False)
        self.value = nn.Linear(size, size, bias=False)
        self.query = nn.Linear(size, size, bias=False)
        self.depth = nn.Embedding(MAX_DEPTH + 1, size) if depth_embedding else None
        if self.depth is not None:
            nn.init.normal_(self.depth.weight, std=0.02)

    def store(self, visual: Tensor, mask: Tensor) -> Condition:
        """Make the memory of [B, N, D] visual tokens, of which `mask` [B, N] says what is there."""
        seen = self.norm_visual(visual)
        count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = (seen * mask[..., None]).sum(1) / count
        return {"keys": self.key(seen), "values": self.value(seen), "mask": mask,
                "mean": mean[:, None]}  # fmt: skip

    def ask(self, states: Tensor, depth: int, memory: Condition, query: Query) -> Tensor:
        """[B, n or 1, D] queries of nodes [B, n, D] of one depth."""
        if query == "static_image":
            who = memory["mean"]
        elif query == "query_agnostic":
            assert self.depth is not None
            who = self.depth.weight[:1][None]
        else:
            who = self.norm_state(states)
            if self.depth is not None and query != "state_only":
                who = who + self.depth.weight[depth]
        projected: Tensor = self.query(who)
        return projected


def select(scores: Tensor, mask: Tensor, rule: Select, lots: Tensor | None = None) -> Tensor:
    """Weights of the entries that each node takes.

    Args:
        scores: [B, n, N] of nodes against keys; of equals the earlier entry ranks first.
        mask: [B, N] bool, False at entries that are padding.
        rule: how many are taken.
        lots: [B, n, N] what ranks the entries instead of their scores; mass and weights stay the
            scores'.

    Returns:
        [B, n, N], rows that sum to 1, or to 0 where a memory has no entry.
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    there = mask[:, None, :].expand_as(wide)
    least = torch.finfo(wide.dtype).min
    wide = wide.masked_fill(~there, least)
    if rule.retrieval == "dense" or wide.shape[-1] == 0:
        return (wide.softmax(-1) * there).to(scores.dtype)
    ranks = wide if lots is None else lots.to(wide.dtype).masked_fill(~there, -torch.inf)
    order = ranks.detach().argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(wide.shape[-1], device=wide.device)
    if rule.retrieval == "top_k":
        taken = place < rule.top_k
    else:
        held = wide.detach().softmax(-1).gather(-1, order).cumsum(-1)
        enough = (held < rule.mass).sum(-1, keepdim=True) + 1
        taken = place < enough.clamp(rule.k_min, rule.k_max)
    taken = torch.zeros_like(there).scatter(-1, order, taken.expand_as(order)) & there
    weights = wide.masked_fill(~taken, least).softmax(-1) * taken
    return weights.to(scores.dtype)


def readout(weights: Tensor, values: Tensor) -> Tensor:
    """[B, n, D] weighted sum of values [B, N, D]; zero from an empty memory."""
    return weights @ values
