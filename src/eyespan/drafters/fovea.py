"""FOVEA: a trained drafter that looks at the picture only where the current word needs it.

Projected visual tokens are stored once as keys and values. A node near the root asks this *visual
memory* with its own state, takes few entries, and what they say corrects the state that scores the
node's candidates. Nothing else changes: tokens, mask, positions and cached keys stay as they are,
so the context is never encoded again.

Sections, equations and tables are the paper's. It contradicts itself in three places; each is a
field: how many entries are taken (`retrieval`), from where the loss weights count (`weight_index`)
and which state is aligned (`hidden_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from eyespan.drafters._attention import KeyValues
from eyespan.drafters._blocks import Block, RmsNorm, rotary
from eyespan.drafters._context import Context
from eyespan.drafters._fovea_config import FoveaConfig
from eyespan.drafters._fovea_objective import Scored, objective
from eyespan.drafters._head import Condition, DraftHead, Hidden, TrainState
from eyespan.drafters._head_config import HeadConfig
from eyespan.drafters._trained import Trained
from eyespan.drafters._unroll import unroll
from eyespan.drafters._visual_memory import VisualMemory, readout, select
from eyespan.types import Ints

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch

_INNER = 512


class FoveaHead(DraftHead):
    """Blocks, visual memory, correction.

    Args:
        config: see `FoveaConfig`.
    """

    method: ClassVar[str] = "fovea"

    def __init__(self, config: FoveaConfig) -> None:
        super().__init__(config)
        self.config = config
        size = config.hidden_size
        self.join = nn.Linear(2 * size, size, bias=False)
        self.blocks = nn.ModuleList(Block(config, slot) for slot in range(config.layers))
        self.norm = RmsNorm(size, config.rms_eps)
        self.sees = config.looks
        if config.looks:
            self.memory = VisualMemory(config.hidden_size, depth_embedding=config.depth_embedding)
        if config.correction:
            self.correct = _two_layers(2 * size, size)
            if config.gate:
                self.open = _two_layers(2 * size, 1)

    def look(self, visual: Tensor, visual_mask: Tensor) -> Condition:
        """The visual memory, at most `memory_limit` evenly spaced entries of it."""
        if not self.config.looks:
            return {}
        count, limit = visual.shape[1], self.config.memory_limit
        if count > limit:
            kept = torch.arange(limit, device=visual.device) * count // limit
            visual, visual_mask = visual[:, kept], visual_mask[:, kept]
        return self.memory.store(visual.to(self.dtype), visual_mask)

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """A linear map of [token's embedding; state before it]."""
        x: Tensor = self.join(torch.cat([embeds, features], dim=-1))
        return x

    def stack(self, x: Tensor, positions: Tensor, attend: Any) -> Hidden:
        """All blocks."""
        turn = rotary(positions, self.config)
        first = x = self.blocks[0](x, turn, attend)
        for block in self.blocks[1:]:
            x = block(x, turn, attend)
        return Hidden(x, first)

    def feedback(self, last: Tensor) -> Tensor:
        """The uncorrected state behind the norm, which is what stands for the target's."""
        fed: Tensor = self.norm(last)
        return fed

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """Logits of nodes, corrected near the root."""
        return self.through_lm_head(self.scoring(last, depth, condition, generator))

    def scoring(
        self,
        last: Tensor,
        depth: int,
        condition: Condition,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B, n, D] the state that the LM head reads (eq. 8-9)."""
        scoring: Tensor
        if not self.config.corrects or depth > self.config.correct_depth:
            scoring = self.norm(last)
            return scoring
        seen = torch.cat([last, self.evidence(last, depth, condition, generator)], dim=-1)
        change = self.correct(seen)
        if self.config.gate:
            change = torch.sigmoid(self.open(seen)) * change
        scoring = self.norm(last + change)
        return scoring

    def evidence(
        self,
        last: Tensor,
        depth: int,
        condition: Condition,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B, n, D] what nodes [B, n, D] of one depth read from the memory, zero without one."""
        return readout(self.attention(last, depth, condition, generator), condition["values"])

    def attention(
        self,
        last: Tensor,
        depth: int,
        condition: Condition,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B, n, N] weights of memory entries, zero at those not taken (eq. 4-7)."""
        config = self.config
        asking = self.memory.ask(last, depth, condition, config.query)
        scores = asking @ condition["keys"].transpose(1, 2) * config.hidden_size**-0.5
        scores = scores.expand(-1, last.shape[1], -1)
        lots = None
        if config.query == "random":
            lots = torch.rand(scores.shape, generator=generator, device=scores.device)
        return select(scores, condition["mask"], config.select(), lots)

    def front(self, condition: Condition, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Visual tokens as pairs that stand before a context: the taken entries of the memory.

        Args:
            condition: of the requests.
            weights: [B, N] as `attention` gives them for one node.

        Returns:
            [B, s, D] block inputs, and [B, s] which of them are there.
        """
        taken = weights > 0
        count = int(taken.sum(1).max()) if taken.numel() else 0
        order = torch.argsort((~taken).to(torch.int8), dim=1, stable=True)[:, :count]
        values = condition["values"]
        picked = values.gather(1, order[..., None].expand(-1, -1, values.shape[-1]))
        return picked, taken.gather(1, order)

    def static_weights(self, condition: Condition) -> Tensor:
        """[B, N] the entries that the mean visual token takes."""
        asking = self.memory.ask(condition["mean"], 0, condition, "static_image")
        scores = asking @ condition["keys"].transpose(1, 2) * self.config.hidden_size**-0.5
        return select(scores, condition["mask"], self.config.select())[:, 0]

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """The objective of section 3.5 over chains of `steps` drafts."""
        memory = self.look(batch.visual, batch.visual_mask)
        front = None
        if self.config.interface in ("fixed_prefix", "dynamic_insertion"):
            front = self.front(memory, self.static_weights(memory))
        chains = []
        for drafted in unroll(self, batch, memory, self.config.steps, prefix=front):
            scoring = self.scoring(drafted.last, drafted.step, memory, state.generator)
            corrected = self.config.hidden_state == "corrected"
            aligned = scoring if corrected else self.norm(drafted.last)
            chains.append(Scored(drafted, scoring, aligned))
        return objective(self.config, batch, chains, self.through_lm_head)


def _two_layers(wide: int, out: int) -> nn.Sequential:
    """Two biased linear layers with SiLU between them (appendix C)."""
    return nn.Sequential(nn.Linear(wide, _INNER), nn.SiLU(), nn.Linear(_INNER, out))


class Fovea(Trained[FoveaConfig, FoveaHead]):
    """The drafter; see `Trained` for arguments."""

    name: ClassVar[str] = "fovea"
    config_type: ClassVar[type[HeadConfig]] = FoveaConfig
    head_type: ClassVar[type[DraftHead]] = FoveaHead

    @property
    def keeps_inputs(self) -> bool:
        """Contexts that are encoded again need their inputs."""
        return self.config.interface in ("correction_rebuild", "dynamic_insertion")

    def open(self, context: Context, x: Tensor, positions: Tensor) -> None:
        """Fill a new context, behind the visual prefix where there is one."""
        if self.config.interface == "fixed_prefix":
            front, _ = self.head.front(
                context.condition, self.head.static_weights(context.condition)
            )
            x, positions = self._behind(front[0], x, positions)
        super().open(context, x, positions)

    def catch_up(self, contexts: Sequence[Context], prefixes: Sequence[Ints]) -> KeyValues:
        """Encode what is new; interfaces without a stable context then encode everything again."""
        fresh = [context.encoded < len(prefix) for context, prefix in zip(
            contexts, prefixes, strict=True)]  # fmt: skip
        cache = super().catch_up(contexts, prefixes)
        if not self.keeps_inputs or not any(fresh):
            return cache
        xs, positions = [], []
        for context, is_fresh in zip(contexts, fresh, strict=True):
            assert context.x is not None
            assert context.positions is not None
            x, at = context.x, context.positions
            if not is_fresh:
                xs.append(x[:0])
                positions.append(at[:0])
                continue
            if self.config.interface == "dynamic_insertion":
                weights = self.head.attention(context.root, 0, context.condition)[:, 0]
                front, _ = self.head.front(context.condition, weights)
                x, at = self._behind(front[0], x, at)
            context.cache.clear()
            context.x = context.positions = None
            xs.append(x)
            positions.append(at)
        cache = self.encode(contexts, xs, positions)
        for context in contexts:
            assert context.x is not None
            assert context.positions is not None
            text = context.positions >= 0
            context.x, context.positions = context.x[text], context.positions[text]
        return cache

    def generator(self, lengths: Sequence[int]) -> torch.Generator | None:
        """Lots of the "random" query depend on the seed and on how far the sequences are."""
        if self.config.query != "random":
            return None
        made = torch.Generator(device=self._device)
        made.manual_seed(self.config.seed * 1_000_003 + sum(lengths))
        return made

    @staticmethod
    def _behind(front: Tensor, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Put `front` [s, D] before pairs, at positions -s to -1."""
        before = torch.arange(-len(front), 0, device=positions.device)
        return torch.cat([front, x]), torch.cat([before, positions])
