"""Losses of draft heads, row by row and token by token, as the equations read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Row = Callable[[int], Tensor]


def weighted(rows: Row, weights: Tensor) -> Tensor:
    """Sum of w_n times the row's value, divided by the sum of w_n (Z of eq. 10)."""
    total = torch.zeros((), dtype=weights.dtype)
    for at in range(len(weights)):
        if weights[at] > 0:
            total = total + weights[at] * rows(at)
    return total / weights.sum()


def squared_error(draft: Tensor, target: Tensor) -> Tensor:
    return sum((draft[i] - target[i]) ** 2 for i in range(len(draft))) / len(draft)  # type: ignore[return-value]


def smooth_l1(draft: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros((), dtype=draft.dtype)
    for i in range(len(draft)):
        apart = abs(draft[i] - target[i])
        total = total + (0.5 * apart**2 if apart < 1 else apart - 0.5)
    return total / len(draft)


def kl(logits: Tensor, target: Tensor, stored: list[int]) -> Tensor:
    """KL of full distributions with all ids that are not stored as one."""
    p, q = target.softmax(0), logits.softmax(0)
    buckets = [[token] for token in stored]
    rest = [token for token in range(len(logits)) if token not in stored]
    total = torch.zeros((), dtype=logits.dtype)
    for bucket in [*buckets, *([rest] if rest else [])]:
        here, there = p[bucket].sum(), q[bucket].sum()
        total = total + here * (here.log() - there.log())
    return total


def cross_entropy(logits: Tensor, token: int) -> Tensor:
    return -logits.softmax(0)[token].log()


def soft_cross_entropy(logits: Tensor, target: Tensor, kept: list[int]) -> Tensor:
    p = target[kept].softmax(0)
    q = logits.softmax(0)
    return -sum(p[at] * q[token].log() for at, token in enumerate(kept))  # type: ignore[return-value]


def candidate_margin(logits: Tensor, token: int, width: int, margin: float) -> Tensor:
    others = sorted((logits[at].item(), at) for at in range(len(logits)) if at != token)
    boundary = logits[others[-width][1]]
    return (1 + (margin - (logits[token] - boundary)).exp()).log()


def probability_l1(logits: Tensor, target: Tensor, stored: list[int]) -> Tensor:
    p, q = target.softmax(0), logits.softmax(0)
    rest = [token for token in range(len(logits)) if token not in stored]
    total = sum(abs(p[token] - q[token]) for token in stored)
    return total + (abs(p[rest].sum() - q[rest].sum()) if rest else 0)  # type: ignore[return-value]


def listwise(logits: Tensor, target: Tensor, best: list[int]) -> Tensor:
    p, q = target[best].softmax(0), logits[best].softmax(0)
    return -sum(p[at] * q[at].log() for at in range(len(best)))  # type: ignore[return-value]
