"""EAGLE-3: one decoder layer that reads three of the target's layers and is trained on its own
output.

Paper: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2025. Three hidden states of the target become one feature; the layer's
attention reads [token's embedding; feature], each behind a norm; a head of its own scores a reduced
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from eyespan.drafters._blocks import FeedForward, RmsNorm, SelfAttention, rotary
from eyespan.drafters._head import Condition, DraftHead, Hidden, TrainState
from eyespan.drafters._head_config import HeadConfig, need
from eyespan.drafters._trained import Trained
from eyespan.drafters._unroll import Drafted, Score, unroll
from eyespan.train import losses
from eyespan.train.losses import Teacher

if TYPE_CHECKING:
    from eyespan.target.weights import TargetShape
    from eyespan.train.batch import TrainBatch

_PUBLISHED_VOCABULARY = 32000


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(HeadConfig):
    """Settings of the method. Defaults are the authors': 60 nodes, 10 a level, depth 7.

    Attributes:
        read_layers: three layers whose entering states are read; for a target of L layers 2, L / 2
            and L - 3.
        draft_vocab_size: ids that can be drafted.
        steps: tokens of a chain in training (training-time test).
        decay: weight of a step's loss against the step before.
    """

    nodes: int = 60
    width: int = 10
    depth: int = 7
    read_layers: tuple[int, ...]
    draft_vocab_size: int
    steps: int = 7
    decay: float = 0.8

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        HeadConfig.__post_init__(self)
        need(self, "layers", self.layers == 1, "1: the method has one layer")
        named = isinstance(self.read_layers, tuple) and len(self.read_layers) == 3
        named = named and all(type(layer) is int and layer >= 1 for layer in self.read_layers)
        need(self, "read_layers", named, "three layers from 1 on")
        fits = 1 <= self.draft_vocab_size <= self.vocab_size
        need(self, "draft_vocab_size", fits, f"from 1 to vocab_size={self.vocab_size}")
        need(self, "steps", self.steps >= 1, "at least 1")
        need(self, "decay", 0 < self.decay <= 1, "above 0, at most 1")

    @classmethod
    def from_shape(cls, shape: TargetShape) -> dict[str, Any]:
        """The layers that the authors read, within a small target's; at most 32,000 ids."""
        layers = (2, shape.layers // 2, shape.layers - 3)
        return {
            "read_layers": tuple(min(max(1, at), shape.layers - 1) for at in layers),
            "draft_vocab_size": min(_PUBLISHED_VOCABULARY, shape.vocab_size),
        }


class Eagle3Head(DraftHead):
    """The layer, its map of three states, and its own vocabulary.

    Args:
        config: see `Eagle3Config`.
    """

    method: ClassVar[str] = "eagle3"

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        self.config = config
        size, eps = config.hidden_size, config.rms_eps
        self.reads = (0, *config.read_layers)
        self.mix = nn.Linear(3 * size, size, bias=False)
        self.norm_embed = RmsNorm(size, eps)
        self.norm_feature = RmsNorm(size, eps)
        self.attention = SelfAttention(config, 0, 2 * size)
        self.norm_feed = RmsNorm(size, eps)
        self.feed = FeedForward(config)
        self.norm = RmsNorm(size, eps)
        self.head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.names: Tensor
        self.register_buffer("names", torch.arange(config.draft_vocab_size))

    def prepare(self, counts: Tensor) -> None:
        """Choose the vocabulary, the most frequent ids of the answers (of equals the lower ones),
        and start the head from the target's rows of them.
        """
        order = counts.argsort(descending=True, stable=True)[: self.config.draft_vocab_size]
        self.names.copy_(order.sort().values)
        assert self._lm_head is not None, "attach() comes first"
        with torch.no_grad():
            self.head.weight.copy_(self._lm_head[self.names.to(self._lm_head.device)])

    def token_ids(self) -> Tensor | None:
        """The reduced vocabulary, ascending; None where it is the whole one."""
        return None if self.config.draft_vocab_size == self.config.vocab_size else self.names

    def lift(self, states: Tensor) -> Tensor:
        """Three states as one feature."""
        mixed: Tensor = self.mix(states[..., 1:, :].flatten(-2))
        return mixed

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """[embedding; feature]; norms and residual are the layer's."""
        return torch.cat([embeds, features], dim=-1)

    def stack(self, x: Tensor, positions: Tensor, attend: Any) -> Hidden:
        """The layer; its residual is the feature."""
        embeds, features = x.chunk(2, dim=-1)
        both = torch.cat([self.norm_embed(embeds), self.norm_feature(features)], dim=-1)
        h = features + self.attention(both, rotary(positions, self.config), attend)
        h = h + self.feed(self.norm_feed(h))
        return Hidden(h, h)

    def feedback(self, last: Tensor) -> Tensor:
        """The layer's output as it is."""
        return last

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """Logits of the reduced vocabulary."""
        logits: Tensor = self.head(self.norm(last))
        return logits

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """Cross-entropy to the target's distribution over the reduced vocabulary, of every step of
        chains fed with the head's own output; positions whose token cannot be drafted are left out.
        """
        loss = batch.final.new_zeros(()).float()
        score = Score(self.config.width)
        for drafted in unroll(self, batch, {}, self.config.steps):
            logits = self.scores(drafted.last, drafted.step, {}, None)
            teacher, kept = self._mapped(drafted, batch)
            weights = (drafted.rows & kept[..., 0]).float()
            total = weights.sum().clamp(min=1)
            one = losses.soft_cross_entropy(logits, teacher, weights, total, kept)
            loss = loss + self.config.decay**drafted.step * one
            score.count(logits, teacher.best.masked_fill(~kept[..., 0], -1), drafted.rows)
        return {"loss": loss, "ce": loss.detach(), **score()}

    def _mapped(self, drafted: Drafted, batch: TrainBatch) -> tuple[Teacher, Tensor]:
        """The target's stored predictions by their places in the reduced vocabulary, and [B, r, T]
        which of them have one.
        """
        teacher = drafted.teacher(batch)
        places = torch.searchsorted(self.names, teacher.ids.contiguous())
        places = places.clamp(max=len(self.names) - 1)
        kept = self.names[places] == teacher.ids
        return Teacher(places, teacher.logits, teacher.log_sum_exp), kept


class Eagle3(Trained[Eagle3Config, Eagle3Head]):
    """The drafter; see `Trained` for arguments."""

    name: ClassVar[str] = "eagle3"
    config_type: ClassVar[type[HeadConfig]] = Eagle3Config
    head_type: ClassVar[type[DraftHead]] = Eagle3Head
