"""The *context prefix* of a trained head (FOVEA section 3): keys and values of every committed pair
of a session, encoded once and shared by all nodes of all its trees, and the one forward that
encodes the new pairs of all sessions of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyespan.drafters._attention import CachedAttention, KeyValues, causal_mask, side_by_side
from eyespan.drafters._head import Condition, DraftHead


@dataclass(slots=True)
class Context:
    """A session's encoded pairs and those that wait for the next proposal.

    Attributes:
        cache: keys and values of the encoded pairs.
        encoded: tokens of the prefix whose pairs are in the cache, or were left out of it.
        waiting: target states [m, R, D] at the positions from `encoded - 1` on.
        condition: what of the pictures the head looks at, each [1, ...].
        root: [1, 1, D] the head's output at the newest encoded pair.
        x, positions: [n, X] and [n] block inputs of all encoded pairs, only where a head's way of
            using its cache asks for them.
    """

    cache: KeyValues
    encoded: int
    waiting: list[Tensor]
    condition: Condition
    root: Tensor
    x: Tensor | None = None
    positions: Tensor | None = None

    def remember(self, x: Tensor, positions: Tensor) -> None:
        """Keep the inputs of new pairs."""
        self.x = x if self.x is None else torch.cat([self.x, x])
        old = self.positions
        self.positions = positions if old is None else torch.cat([old, positions])

    def nbytes(self) -> int:
        """Bytes on the head's device: keys and values with their room to grow, what is kept of the
        pictures, states that wait, and inputs where they are kept.
        """
        held = [self.cache.keys, self.cache.values, self.root, *self.waiting]
        held += self.condition.values()
        held += [each for each in (self.x, self.positions) if each is not None]
        return sum(tensor.nbytes for tensor in held)


def encode(
    head: DraftHead,
    contexts: Sequence[Context],
    xs: Sequence[Tensor],
    positions: Sequence[Tensor],
    *,
    tree: int,
    keeps_inputs: bool,
) -> KeyValues:
    """Put pairs behind each context: `xs` of [n, X] at `positions` of [n], any of them empty.

    Args:
        head: attached to the target.
        contexts: of the batch.
        xs: new pairs of each, as block inputs.
        positions: of those pairs.
        tree: columns that a tree needs.
        keeps_inputs: whether contexts hold the block inputs of all their pairs.

    Returns:
        A cache that holds the whole batch, with room for a tree.
    """
    device = xs[0].device
    lengths = [len(x) for x in xs]
    new = max(lengths)
    cache = side_by_side([context.cache for context in contexts], new + tree)
    if new == 0:
        return cache
    start = cache.length
    padded = torch.nn.utils.rnn.pad_sequence(list(xs), batch_first=True)
    at = torch.nn.utils.rnn.pad_sequence(list(positions), batch_first=True)
    mask = causal_mask(lengths, new, start, cache.visible, device)
    last = head.stack(padded, at, CachedAttention(cache, start, mask)).last
    for row, (context, own) in enumerate(zip(contexts, lengths, strict=True)):
        if own:
            context.root = last[row : row + 1, own - 1 : own].clone()
        if context.cache is not cache:
            context.cache.reserve(own)
            into = slice(context.cache.length, context.cache.length + own)
            for name in ("keys", "values"):
                mine, ours = getattr(context.cache, name), getattr(cache, name)
                mine[:, 0, :, into] = ours[:, row, :, start : start + own]
            context.cache.length += own
        if keeps_inputs and own:
            context.remember(xs[row], positions[row])
    if cache.visible is not None:
        own_columns = torch.arange(new, device=device) < torch.tensor(
            lengths, device=device
        ).unsqueeze(1)
        cache.visible = torch.cat([cache.visible, own_columns], dim=1)
    cache.length = start + new
    return cache


def together(conditions: Sequence[Condition]) -> Condition:
    """Conditions of [1, n, ...] as one of [B, n, ...], shorter ones padded with zeros (False)."""
    if len(conditions) == 1:
        return conditions[0]
    joined: Condition = {}
    for name in conditions[0]:
        rows = [condition[name][0] for condition in conditions]
        joined[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return joined
