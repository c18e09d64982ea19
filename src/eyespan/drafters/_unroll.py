"""Training as drafting: every position of a captured answer is the root of a chain of drafts whose
first pair has the target's state and whose later pairs have the head's own (EAGLE-3's
training-time test), all positions at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eyespan.drafters._attention import UnrolledAttention
from eyespan.drafters._head import Condition, DraftHead, Hidden
from eyespan.errors import InputError
from eyespan.train.losses import Teacher

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch


@dataclass(frozen=True, slots=True)
class Drafted:
    """One step of all chains, the supervised rows alone, packed to the front of [B, r].

    Attributes:
        step: tokens drafted before this one; the depth of the node that is scored.
        last, first: [B, r, D] outputs of the last and of the first block.
        at: [B, r] int64 index in the sequence of the target's state that they stand for.
        rows: [B, r] bool, False in the padding.
    """

    step: int
    last: Tensor
    first: Tensor
    at: Tensor
    rows: Tensor

    def pick(self, states: Tensor) -> Tensor:
        """[B, L, ...] -> [B, r, ...] what stands at `at`."""
        return states.gather(1, _like(self.at, states))

    def teacher(self, batch: TrainBatch) -> Teacher:
        """What the target said there."""
        return Teacher(
            self.pick(batch.top_ids), self.pick(batch.top_logits), self.pick(batch.log_sum_exp)
        )


def unroll(
    head: DraftHead,
    batch: TrainBatch,
    condition: Condition,
    steps: int,
    *,
    prefix: tuple[Tensor, Tensor] | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Iterator[Drafted]:
    """Run all chains, step by step.

    Args:
        head: attached to the target's weights.
        batch: see there.
        condition: what the head keeps of the pictures.
        steps: tokens drafted in a chain.
        prefix: block inputs [B, s, X] that stand before every sequence, and [B, s] which of them
            are there.
        noise: width of the uniform noise on the target's states.
        generator: of the noise.
    """
    dtype = head.dtype
    embeds = batch.embeds[:, 1:].to(dtype)
    states = read(head, batch).to(dtype)
    if noise > 0:
        drawn = torch.rand(states.shape, generator=generator, device=states.device, dtype=dtype)
        states = states + (drawn - 0.5) * noise
    pairs = head.prompt(embeds, head.lift(states)[:, :-1], batch.media[:, 1:], condition)
    size = embeds.shape[1]
    positions = torch.arange(1, size + 1, device=embeds.device).expand(len(embeds), -1)
    x, visible, front = pairs.x, pairs.visible, 0
    if prefix is not None:
        front = prefix[0].shape[1]
        x = torch.cat([prefix[0].to(dtype), x], dim=1)
        shown = torch.ones_like(positions, dtype=torch.bool) if visible is None else visible
        visible = torch.cat([prefix[1], shown], dim=1)
        before = torch.arange(-front, 0, device=x.device).expand(len(x), -1)
        positions = torch.cat([before, positions], dim=1)
    attend = UnrolledAttention(visible)
    hidden = head.stack(x, positions, attend)
    hidden = Hidden(hidden.last[:, front:], hidden.first[:, front:])
    positions = positions[:, front:]
    rows = ahead = batch.supervise[:, 1:]
    for step in range(steps):
        if step > 0:
            attend.step = step
            positions = positions + 1
            embeds = shifted(embeds)
            ahead = shifted(ahead)
            rows = rows & ahead
            x = head.inputs(embeds, head.feedback(hidden.last), {**condition, **pairs.each})
            hidden = head.stack(x, positions, attend)
        yield _packed(step, hidden, rows)


def read(head: DraftHead, batch: TrainBatch) -> Tensor:
    """[B, L, R, D] the states that a head reads, in its order.

    Raises:
        InputError: the batch lacks a layer.
    """
    states = []
    for layer in head.reads:
        if layer == 0:
            states.append(batch.embeds)
        elif layer == -1:
            states.append(batch.final)
        elif layer in batch.layers:
            states.append(batch.layers[layer])
        else:
            raise InputError(
                f"training '{head.method}'",
                found=f"captured layers {sorted(batch.layers)}",
                needed=f"the states entering layers {[i for i in head.reads if i > 0]} are needed",
                todo="Capture them: store.layers of `eyespan train capture`.",
            )
    return torch.stack(states, dim=2)


def shifted(x: Tensor) -> Tensor:
    """[B, n, ...] moved one place to the left, zeros at the end."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)


def _packed(step: int, hidden: Hidden, rows: Tensor) -> Drafted:
    """The supervised rows in front, the longest row's count wide (at least one)."""
    width = max(1, int(rows.sum(1).max()))
    order = torch.argsort((~rows).to(torch.int8), dim=1, stable=True)[:, :width]
    pick = _like(order, hidden.last)
    at = (order + 1 + step).clamp(max=rows.shape[1])
    return Drafted(
        step, hidden.last.gather(1, pick), hidden.first.gather(1, pick), at, rows.gather(1, order)
    )


def _like(index: Tensor, states: Tensor) -> Tensor:
    """[B, r] index for gathering from [B, L, ...]."""
    shape = (*index.shape, *states.shape[2:])
    return index.reshape(*index.shape, *(1 for _ in states.shape[2:])).expand(shape)


class Score:
    """How often the target's own token was the best candidate, and among the best `width`."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.accuracy: list[Tensor] = []
        self.hit: list[Tensor] = []

    @torch.no_grad()
    def count(self, logits: Tensor, tokens: Tensor, rows: Tensor) -> None:
        """Count a step: logits [B, r, v], the target's entries [B, r], which rows count."""
        best = logits[rows].topk(min(self._width, logits.shape[-1]), dim=-1).indices
        right = (best == tokens[rows][:, None]).float()
        many = max(1, len(right))
        self.accuracy.append(right[:, 0].sum() / many)
        self.hit.append(right.sum() / many)

    def __call__(self) -> dict[str, Tensor]:
        """The entries "accuracy" and "hit", [steps] each."""
        return {"accuracy": torch.stack(self.accuracy), "hit": torch.stack(self.hit)}
