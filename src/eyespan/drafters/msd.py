"""MSD: an EAGLE layer that treats words and pictures apart.

Paper: Lin et al., "Speculative Decoding Reimagined for Multimodal Large Language Models" (MSD),
2025. A text position reads a linear map of [token's embedding; the target's state before it]; a
picture's position reads its projected visual token as it is. It is trained on text first, then on
more and more pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from eyespan.drafters._eagle_layer import EagleLayer
from eyespan.drafters._head import Condition, DraftHead, PromptPairs, TrainState
from eyespan.drafters._head_config import HeadConfig, need
from eyespan.drafters._trained import Trained
from eyespan.drafters._unroll import Score, unroll
from eyespan.train import losses

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MsdConfig(HeadConfig):
    """Settings of the method. Defaults are the authors': 63 nodes, 8 a level, depth 5.

    Attributes:
        hidden_weight: factor of the states' SmoothL1.
        token_weight: factor of the cross-entropy to the target's token; both factors are EAGLE's.
        text_share: part of training that sees text alone; after it the share of samples with
            pictures rises from 0 to 1 in a straight line.
    """

    nodes: int = 63
    width: int = 8
    depth: int = 5
    hidden_weight: float = 1.0
    token_weight: float = 0.1
    text_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        HeadConfig.__post_init__(self)
        need(self, "layers", self.layers == 1, "1: the method has one layer")
        need(self, "hidden_weight", self.hidden_weight >= 0, "at least 0")
        need(self, "token_weight", self.token_weight >= 0, "at least 0")
        need(self, "text_share", 0 <= self.text_share < 1, "from 0, below 1")


class MsdHead(EagleLayer):
    """One EAGLE layer, whose output stands for the target's final state and goes to its LM head.

    Args:
        config: see `MsdConfig`.
    """

    method: ClassVar[str] = "msd"

    def __init__(self, config: MsdConfig) -> None:
        super().__init__(config)
        self.config = config

    def prompt(
        self, embeds: Tensor, features: Tensor, media: Tensor, condition: Condition
    ) -> PromptPairs:
        """Text joined with the state before it, pictures as they are."""
        joined = self.inputs(embeds, features, condition)
        return PromptPairs(torch.where(media[..., None], embeds.to(joined.dtype), joined))

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """A linear map of [embedding; state before it]."""
        x: Tensor = self.join(torch.cat([embeds, features], dim=-1))
        return x

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """SmoothL1 to the target's states and cross-entropy to its tokens, without self-feeding."""
        (drafted,) = unroll(self, batch, {}, 1)
        logits = self.scores(drafted.last, 0, {}, None)
        weights, teacher = drafted.rows.float(), drafted.teacher(batch)
        total = weights.sum().clamp(min=1)
        hidden = losses.smooth_l1(drafted.last, drafted.pick(batch.final), weights, total)
        ce = losses.cross_entropy(logits, teacher.best, weights, total)
        score = Score(self.config.width)
        score.count(logits, teacher.best, drafted.rows)
        loss = self.config.hidden_weight * hidden + self.config.token_weight * ce
        return {"loss": loss, "hidden": hidden.detach(), "ce": ce.detach(), **score()}

    def visual_share(self, progress: float) -> float | None:
        """0 in the first part of training, then a straight line to 1."""
        text = self.config.text_share
        return max(0.0, min(1.0, (progress - text) / (1 - text)))


class Msd(Trained[MsdConfig, MsdHead]):
    """The drafter; see `Trained` for arguments."""

    name: ClassVar[str] = "msd"
    config_type: ClassVar[type[HeadConfig]] = MsdConfig
    head_type: ClassVar[type[DraftHead]] = MsdHead
