"""What heads learn by, term by term. Each term is a weighted mean over rows: the sum of weight
times value over the rows whose weight is positive, divided by `total`. Rows without weight are
taken out before anything is computed, so that NaN or infinity stored there reaches neither value
nor gradient; without any row a term is zero.

Slow obvious twins: `tests/reference/losses.py`. Equations are FOVEA's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Teacher(NamedTuple):
    """What the target said at rows, as it was stored.

    Attributes:
        ids: [..., T] int64 its best ids, by descending logit.
        logits: [..., T] theirs.
        log_sum_exp: [...] over the whole vocabulary.
    """

    ids: Tensor
    logits: Tensor
    log_sum_exp: Tensor

    @property
    def best(self) -> Tensor:
        """[...] its own next token (y_n)."""
        return self.ids[..., 0]

    def where(self, rows: Tensor) -> Teacher:
        """Those rows, [m, ...]."""
        return Teacher(self.ids[rows], self.logits[rows], self.log_sum_exp[rows])


def squared_error(draft: Tensor, target: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Hidden-state alignment, |draft - target|^2 / D (one term of eq. 13).

    Args:
        draft: [..., D].
        target: [..., D].
        weights: [...] at least 0.
        total: scalar, what the sum is divided by.
    """
    rows = weights > 0
    apart = _wide(draft[rows]) - _wide(target[rows])
    return _mean(apart.pow(2).mean(-1), weights[rows], total)


def smooth_l1(draft: Tensor, target: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Hidden-state alignment with bounded gradients (EAGLE, MSD, DREAM): Huber with delta 1,
    averaged over D. Arguments as in `squared_error`.
    """
    rows = weights > 0
    apart = (_wide(draft[rows]) - _wide(target[rows])).abs()
    each = torch.where(apart < 1, 0.5 * apart * apart, apart - 0.5)
    return _mean(each.mean(-1), weights[rows], total)


def kl(logits: Tensor, teacher: Teacher, weights: Tensor, total: Tensor) -> Tensor:
    """KL(target || draft) (eq. 14) from the stored part of the target's distribution.

    Exact where the whole vocabulary was stored. Otherwise all ids that were not stored are one
    bucket on both sides, which is a lower bound of the exact value.

    Args:
        logits: [..., V] the draft's.
        teacher: at the same rows.
        weights: [...] at least 0.
        total: scalar, what the sum is divided by.
    """
    rows = weights > 0
    log_p, log_q, rest_p, rest_q = _split(logits[rows], teacher.where(rows))
    each = (log_p.exp() * (log_p - log_q)).sum(-1)
    if rest_q is not None:
        each = each + torch.xlogy(rest_p, rest_p) - rest_p * rest_q
    return _mean(each, weights[rows], total)


def soft_cross_entropy(
    logits: Tensor, teacher: Teacher, weights: Tensor, total: Tensor, kept: Tensor | None = None
) -> Tensor:
    """Cross-entropy to the target's stored distribution, renormalised over what is kept.

    Args:
        logits: [..., v] the draft's.
        teacher: at the same rows; its ids index the last dimension of `logits`.
        weights: [...] at least 0.
        total: scalar, what the sum is divided by.
        kept: [..., T] bool, False at stored ids that the draft has no entry for; None: all kept.
    """
    rows = weights > 0
    own = teacher.where(rows)
    scores, ids = _wide(own.logits), own.ids
    if kept is not None:
        scores = scores.masked_fill(~kept[rows], torch.finfo(scores.dtype).min)
        ids = ids.masked_fill(~kept[rows], 0)
    p = scores.softmax(-1)
    log_q = _wide(logits[rows]).log_softmax(-1).gather(-1, ids)
    return _mean(-(p * log_q).sum(-1), weights[rows], total)


def cross_entropy(logits: Tensor, tokens: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Cross-entropy to one token a row, CE(y_n, p_n) of eq. 18.

    Args:
        logits: [..., V].
        tokens: [...] int64.
        weights: [...] at least 0.
        total: scalar, what the sum is divided by.
    """
    rows = weights > 0
    log_q = _wide(logits[rows]).log_softmax(-1)
    each = -log_q.gather(-1, tokens[rows][:, None]).squeeze(-1)
    return _mean(each, weights[rows], total)


def candidate_margin(
    logits: Tensor, tokens: Tensor, weights: Tensor, total: Tensor, *, width: int, margin: float
) -> Tensor:
    """Candidate-boundary margin, softplus(m - gap) of eq. 15-18: the gap is the logit of the
    target's token minus the `width`-th largest of all others, so that zero says that the token is
    about to leave the candidates of a node.

    Args:
        logits: [..., V], V > width.
        tokens: [...] int64 the target's.
        weights: [...] at least 0.
        total: scalar, what the sum is divided by.
        width: candidates of a node, K_c.
        margin: m.
    """
    rows = weights > 0
    z, y = _wide(logits[rows]), tokens[rows][:, None]
    own = z.gather(-1, y).squeeze(-1)
    others = z.scatter(-1, y, torch.finfo(z.dtype).min)
    boundary = others.topk(width, dim=-1).values[:, -1]
    return _mean(torch.nn.functional.softplus(margin - (own - boundary)), weights[rows], total)


def probability_l1(logits: Tensor, teacher: Teacher, weights: Tensor, total: Tensor) -> Tensor:
    """Sum of |p - q| over the vocabulary (ViSpec), what was not stored as one bucket. Arguments as
    in `kl`.
    """
    rows = weights > 0
    log_p, log_q, rest_p, rest_q = _split(logits[rows], teacher.where(rows))
    each = (log_p.exp() - log_q.exp()).abs().sum(-1)
    if rest_q is not None:
        each = each + (rest_p - rest_q.exp()).abs()
    return _mean(each, weights[rows], total)


def listwise(
    logits: Tensor, teacher: Teacher, weights: Tensor, total: Tensor, *, count: int
) -> Tensor:
    """Order of the target's best ids among themselves (ViSpec; ListNet): cross-entropy between both
    sides' softmax over those ids alone.

    Args:
        logits: [..., V] the draft's.
        teacher: at the same rows.
        weights: [...] at least 0.
        total: scalar, what the sum is divided by.
        count: how many of the best ids.
    """
    rows = weights > 0
    own = teacher.where(rows)
    p = _wide(own.logits[:, :count]).softmax(-1)
    log_q = _wide(logits[rows]).gather(-1, own.ids[:, :count]).log_softmax(-1)
    return _mean(-(p * log_q).sum(-1), weights[rows], total)


def _split(logits: Tensor, teacher: Teacher) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Logarithms of p and q [m, T] of the stored ids; p and log q [m] of all others together, the
    last None when there are no others.
    """
    wide = _wide(logits)
    normaliser = wide.logsumexp(-1)
    log_q = wide.gather(-1, teacher.ids) - normaliser[:, None]
    log_p = _wide(teacher.logits) - _wide(teacher.log_sum_exp)[:, None]
    if teacher.ids.shape[-1] == logits.shape[-1]:
        return log_p, log_q, torch.zeros_like(normaliser), None
    others = wide.scatter(-1, teacher.ids, -torch.inf).logsumexp(-1) - normaliser
    return log_p, log_q, (1 - log_p.exp().sum(-1)).clamp(min=0), others


def _mean(values: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    return (values * weights.to(values.dtype)).sum() / total.to(values.dtype).clamp(min=1e-12)


def _wide(x: Tensor) -> Tensor:
    """float32 where a tensor is narrower: softmax over a vocabulary needs it."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
