"""DREAM: a drafter that reads tokens and pictures itself and looks at the target's states by
cross-attention.

Paper: Hu et al., "DREAM: Drafting with Refined Target Features and Entropy-Adaptive Cross-Attention
Fusion for Multimodal Speculative Decoding", 2025. Three blocks: self-attention, cross-attention to
the target's final states, self-attention. The first block is taught with the target's intermediate
state of lowest attention entropy, which plays no part in drafting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from eyespan.drafters._blocks import (
    Attend,
    Block,
    FeedForward,
    RmsNorm,
    join_heads,
    rotary,
    split_heads,
)
from eyespan.drafters._head import Condition, DraftHead, Hidden, TrainState
from eyespan.drafters._head_config import HeadConfig, need
from eyespan.drafters._trained import Trained
from eyespan.drafters._unroll import Score, unroll
from eyespan.errors import InputError
from eyespan.train import losses

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch

_STEPS = 2
"""Pass 1 looks at the target's states, pass 2 at what pass 1 predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamConfig(HeadConfig):
    """Settings of the method. Defaults are the authors': 63 nodes, 8 a level, depth 5.

    Attributes:
        hidden_weight: factor of the final states' SmoothL1.
        kl_weight: factor of KL(target || draft), in both passes.
        mid_weight: factor of the first block's SmoothL1 to the intermediate states.
        noise: width of the uniform noise on the target's states in training.
    """

    layers: int = 3
    nodes: int = 63
    width: int = 8
    depth: int = 5
    hidden_weight: float = 0.4
    kl_weight: float = 1.0
    mid_weight: float = 1.0
    noise: float = 0.2

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        HeadConfig.__post_init__(self)
        need(self, "layers", self.layers == 3, "3: self-, cross- and self-attention")
        for name in ("hidden_weight", "kl_weight", "mid_weight", "noise"):
            need(self, name, getattr(self, name) >= 0, "at least 0")


class CrossBlock(nn.Module):
    """Attention to the target's states, normed by head on queries and keys, and a feed-forward
    part, both behind gates that start closed.

    Args:
        config: of the head.
        slot: its place among the head's attentions.
    """

    def __init__(self, config: DreamConfig, slot: int) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.head_dim
        self.slot, self.size = slot, inner
        self.norm_attention = RmsNorm(size, config.rms_eps)
        self.query = nn.Linear(size, config.heads * inner, bias=False)
        self.key = nn.Linear(size, config.kv_heads * inner, bias=False)
        self.value = nn.Linear(size, config.kv_heads * inner, bias=False)
        self.out = nn.Linear(config.heads * inner, size, bias=False)
        self.norm_query = RmsNorm(inner, config.rms_eps)
        self.norm_key = RmsNorm(inner, config.rms_eps)
        self.gate_attention = nn.Parameter(torch.zeros(1))
        self.norm_feed = RmsNorm(size, config.rms_eps)
        self.feed = FeedForward(config)
        self.gate_feed = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """[B, n, D] pairs looking at states [B, n, D], each pair's own being the one before it."""
        query = self.norm_query(split_heads(self.query(self.norm_attention(x)), self.size))
        key = self.norm_key(split_heads(self.key(states), self.size))
        value = split_heads(self.value(states), self.size)
        seen = self.out(join_heads(attend(self.slot, query, key, value)))
        x = x + self.gate_attention.tanh() * seen
        y: Tensor = x + self.gate_feed.tanh() * self.feed(self.norm_feed(x))
        return y


class DreamHead(DraftHead):
    """Three blocks and a norm before the target's LM head.

    Args:
        config: see `DreamConfig`.
    """

    method: ClassVar[str] = "dream"

    def __init__(self, config: DreamConfig) -> None:
        super().__init__(config)
        self.config = config
        self.before = Block(config, 0, norm_first=False)  # as the authors' files have it
        self.cross = CrossBlock(config, 1)
        self.after = Block(config, 2)
        self.norm = RmsNorm(config.hidden_size, config.rms_eps)

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """[embedding; state to look at]; pictures enter as embeddings like words."""
        return torch.cat([embeds, features.to(embeds.dtype)], dim=-1)

    def stack(self, x: Tensor, positions: Tensor, attend: Any) -> Hidden:
        """Self-, cross- and self-attention."""
        embeds, states = x.chunk(2, dim=-1)
        turn = rotary(positions, self.config)
        first = self.before(embeds, turn, attend)
        return Hidden(self.after(self.cross(first, states, attend), turn, attend), first)

    def feedback(self, last: Tensor) -> Tensor:
        """The normed output stands for the target's final state."""
        fed: Tensor = self.norm(last)
        return fed

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """The target's LM head on the normed output."""
        return self.through_lm_head(self.norm(last))

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """Pass 1: states, distribution and intermediate states; pass 2: distribution alone.

        Raises:
            InputError: `mid_weight` is above 0 and the batch has no intermediate states.
        """
        config, terms, score = self.config, dict[str, Tensor](), Score(self.config.width)
        if config.mid_weight > 0 and batch.mid is None:
            raise InputError(
                "training 'dream'",
                found="no intermediate states in the captured data",
                needed="mid_weight > 0 teaches the first block with them",
                todo="Capture them (store.mid = true), or set mid_weight = 0.",
            )
        noise = config.noise if self.training else 0.0
        for drafted in unroll(self, batch, {}, _STEPS, noise=noise, generator=state.generator):
            logits, teacher = self.scores(drafted.last, 0, {}, None), drafted.teacher(batch)
            weights = drafted.rows.float()
            total = weights.sum().clamp(min=1)
            terms[f"kl_{drafted.step + 1}"] = losses.kl(logits, teacher, weights, total)
            score.count(logits, teacher.best, drafted.rows)
            if drafted.step == 0:
                own = self.norm(drafted.last)
                terms["hidden"] = losses.smooth_l1(own, drafted.pick(batch.final), weights, total)
                if batch.mid is not None:
                    mid = drafted.pick(batch.mid)
                    terms["mid"] = losses.smooth_l1(drafted.first, mid, weights, total)
        loss = config.hidden_weight * terms["hidden"]
        loss = loss + config.kl_weight * (terms["kl_1"] + terms["kl_2"])
        if "mid" in terms:
            loss = loss + config.mid_weight * terms["mid"]
        return {"loss": loss, **{k: v.detach() for k, v in terms.items()}, **score()}


class Dream(Trained[DreamConfig, DreamHead]):
    """The drafter; see `Trained` for arguments."""

    name: ClassVar[str] = "dream"
    config_type: ClassVar[type[HeadConfig]] = DreamConfig
    head_type: ClassVar[type[DraftHead]] = DreamHead
