"""What FOVEA's training minimises (section 3.5, eq. 10-19), given the states that its chains of
drafts were scored from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from eyespan.drafters._fovea_config import FoveaConfig
from eyespan.drafters._unroll import Drafted, Score
from eyespan.errors import InputError
from eyespan.train import losses
from eyespan.train.losses import Teacher

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch


class Scored(NamedTuple):
    """One step of all chains.

    Attributes:
        drafted: see there.
        scoring: [B, r, D] the state that the LM head reads.
        aligned: [B, r, D] the state that eq. 13 compares with the target's.
    """

    drafted: Drafted
    scoring: Tensor
    aligned: Tensor


def objective(
    config: FoveaConfig,
    batch: TrainBatch,
    chains: Sequence[Scored],
    lm_head: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Losses and accuracies of a batch, as `DraftHead.training_losses` returns them.

    Args:
        config: factors and switches.
        batch: what the target said.
        chains: all steps, in order.
        lm_head: the target's, [..., D] -> [..., V].

    Raises:
        InputError: the first block is to be aligned with states that were not captured.
    """
    factors = _factors(config)
    weights = [_weights(config, batch, step.drafted) for step in chains]
    total = sum((each.sum() for each in weights), start=batch.final.new_zeros(()).float())
    terms: dict[str, Tensor] = {}
    score = Score(config.width)
    for step, each in zip(chains, weights, strict=True):
        logits, teacher = lm_head(step.scoring), step.drafted.teacher(batch)
        for name, value in _terms(config, batch, step, logits, teacher, each, total).items():
            terms[name] = terms[name] + value if name in terms else value
        score.count(logits, teacher.best, step.drafted.rows)
    loss = sum(
        (factor * terms[name] for name, factor in factors.items()), start=total.new_zeros(())
    )
    return {"loss": loss, **{k: v.detach() for k, v in terms.items()}, **score()}


def _factors(c: FoveaConfig) -> dict[str, float]:
    """Terms that count, with their factors (eq. 13, 18, 19)."""
    factors = {
        "hidden": c.lambda_hidden * c.beta_hidden,
        "mid": c.lambda_hidden * c.beta_mid,
        "kl": c.lambda_kl,
        "ce": c.lambda_token * c.beta_ce,
        "margin": c.lambda_token * c.beta_margin,
    }
    return {name: factor for name, factor in factors.items() if factor > 0}


def _terms(
    c: FoveaConfig,
    batch: TrainBatch,
    step: Scored,
    logits: Tensor,
    teacher: Teacher,
    weights: Tensor,
    total: Tensor,
) -> dict[str, Tensor]:
    """One step's share of every term that counts."""
    wanted, drafted = _factors(c), step.drafted
    found: dict[str, Tensor] = {}
    if "hidden" in wanted:
        found["hidden"] = losses.squared_error(
            step.aligned, drafted.pick(batch.final), weights, total
        )
    if "mid" in wanted:
        if batch.mid is None:
            raise InputError(
                "training 'fovea'",
                found="no intermediate states in the captured data",
                needed="beta_mid > 0 aligns the first block with them (FOVEA table 8)",
                todo="Capture them (store.mid = true), or set beta_mid = 0.",
            )
        found["mid"] = losses.squared_error(drafted.first, drafted.pick(batch.mid), weights, total)
    if "kl" in wanted:
        found["kl"] = losses.kl(logits, teacher, weights, total)
    if "ce" in wanted:
        found["ce"] = losses.cross_entropy(logits, teacher.best, weights, total)
    if "margin" in wanted:
        found["margin"] = losses.candidate_margin(
            logits, teacher.best, weights, total, width=c.width, margin=c.margin
        )
    return found


def _weights(config: FoveaConfig, batch: TrainBatch, drafted: Drafted) -> Tensor:
    """[B, r] w_n of eq. 10, zero in the padding."""
    if config.weight_index == "draft_offset":
        n = torch.full_like(drafted.at, drafted.step + 1)
    else:
        n = drafted.pick(batch.supervise.long().cumsum(1))
    decayed = torch.exp(-(n.float() - 1) / config.gamma)
    # An answer's hundredth token weighs e^-99, which float32 rounds to nothing: so says eq. 10.
    return decayed * drafted.rows
