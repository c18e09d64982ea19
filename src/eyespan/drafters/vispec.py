"""ViSpec: an EAGLE layer that sees a picture as a vector or two.

Paper: Kang et al., "ViSpec: Accelerating Vision-Language Models with Vision-Aware Speculative
Decoding", 2025. A compressor turns a picture's embeddings into `slots` vectors: all but the last
stand in the sequence in the picture's place, the last goes into the state of every later text
position.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from eyespan.drafters._eagle_layer import EagleLayer
from eyespan.drafters._head import Condition, DraftHead, PromptPairs, TrainState
from eyespan.drafters._head_config import HeadConfig, need
from eyespan.drafters._trained import Trained
from eyespan.drafters._unroll import Score, unroll
from eyespan.train import losses

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch

_STEPS = 2
"""The true pairs, then one self-feeding step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VispecConfig(HeadConfig):
    """Settings of the method. Defaults are the authors': 30 nodes, 8 a level, depth 3.

    Attributes:
        slots: vectors that the compressor makes of a picture, at least 1.
        l1_weight: factor of the distributions' L1 distance.
        list_weight: factor of the listwise loss.
        list_size: the target's best ids whose order that loss teaches.
    """

    nodes: int = 30
    width: int = 8
    depth: int = 3
    slots: int = 2
    l1_weight: float = 10.0
    list_weight: float = 0.1
    list_size: int = 10

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        HeadConfig.__post_init__(self)
        need(self, "layers", self.layers == 1, "1: the method has one layer")
        need(self, "slots", 1 <= self.slots <= 64, "from 1 to 64")
        need(self, "list_size", self.list_size >= 2, "at least 2")
        for name in ("l1_weight", "list_weight"):
            need(self, name, getattr(self, name) >= 0, "at least 0")


class Compressor(nn.Module):
    """Learned queries that attend over a picture's embeddings."""

    def __init__(self, config: VispecConfig) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.heads
        inner = config.heads * config.head_dim
        self.queries = nn.Parameter(torch.randn(config.slots, inner) * inner**-0.5)
        self.key = nn.Linear(size, inner, bias=config.qkv_bias)
        self.value = nn.Linear(size, inner, bias=config.qkv_bias)
        self.out = nn.Linear(inner, size, bias=False)

    def forward(self, picture: Tensor) -> Tensor:
        """[m, D] embeddings of one picture -> [slots, D]."""
        query, key, value = (
            x.view(len(x), self.heads, -1).transpose(0, 1)[None]
            for x in (self.queries.to(picture.dtype), self.key(picture), self.value(picture))
        )
        seen = nn.functional.scaled_dot_product_attention(query.to(key.dtype), key, value)
        made: Tensor = self.out(seen[0].transpose(0, 1).flatten(1))
        return made


class VispecHead(EagleLayer):
    """Compressor, global feature, and one EAGLE layer before the target's LM head.

    Args:
        config: see `VispecConfig`.
    """

    method: ClassVar[str] = "vispec"

    def __init__(self, config: VispecConfig) -> None:
        super().__init__(config)
        self.config = config
        size = config.hidden_size
        self.compress = Compressor(config)
        self.blend = nn.Linear(2 * size, size, bias=False)
        with torch.no_grad():  # starts as if there were no picture
            self.blend.weight.copy_(torch.eye(size, 2 * size))

    def prompt(
        self, embeds: Tensor, features: Tensor, media: Tensor, condition: Condition
    ) -> PromptPairs:
        """Pictures (runs of media ids) shrunk to their last places; adds "view" [B, 1, D], the
        newest picture's last vector, zero before any picture.
        """
        view = torch.zeros_like(embeds)
        condition["view"] = embeds.new_zeros(len(embeds), 1, embeds.shape[-1])
        visible = None
        if bool(media.any()):
            visible, embeds = ~media, embeds.clone()
            for row, flags in enumerate(media.tolist()):
                for start, end in _runs(flags):
                    made = self.compress(embeds[row, start:end].clone()).to(embeds.dtype)
                    kept = min(len(made) - 1, end - start)
                    embeds[row, end - kept : end] = made[:kept]
                    visible[row, end - kept : end] = True
                    view[row, end:] = made[-1]
                    condition["view"][row, 0] = made[-1]
        x = self.inputs(embeds, features, {"view": view})
        return PromptPairs(x, visible, {"view": view})

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """A linear map of [embedding; state before it, blended with the picture's vector]."""
        view = condition["view"].expand_as(features).to(features.dtype)
        seen = self.blend(torch.cat([features, view], dim=-1))
        x: Tensor = self.join(torch.cat([embeds.to(seen.dtype), seen], dim=-1))
        return x

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """L1 distance of the distributions and order of the target's best ids, on the true pairs
        and after one self-feeding step.
        """
        config, score = self.config, Score(self.config.width)
        l1 = order = batch.final.new_zeros(()).float()
        for drafted in unroll(self, batch, {}, _STEPS):
            logits, teacher = self.scores(drafted.last, 0, {}, None), drafted.teacher(batch)
            weights = drafted.rows.float()
            total = weights.sum().clamp(min=1)
            l1 = l1 + losses.probability_l1(logits, teacher, weights, total)
            order = order + losses.listwise(logits, teacher, weights, total, count=config.list_size)
            score.count(logits, teacher.best, drafted.rows)
        loss = config.l1_weight * l1 + config.list_weight * order
        return {"loss": loss, "l1": l1.detach(), "list": order.detach(), **score()}


def _runs(flags: list[bool]) -> list[tuple[int, int]]:
    """Half-open ranges in which flags are set."""
    runs, at = [], 0
    for flag, group in groupby(flags):
        size = len(list(group))
        if flag:
            runs.append((at, at + size))
        at += size
    return runs


class Vispec(Trained[VispecConfig, VispecHead]):
    """The drafter; see `Trained` for arguments."""

    name: ClassVar[str] = "vispec"
    config_type: ClassVar[type[HeadConfig]] = VispecConfig
    head_type: ClassVar[type[DraftHead]] = VispecHead
