"""Chains through states that only move forward: take a snapshot, verify, put it back.

A state-space scan leaves one state, that after its last token. So before a chain is verified the
states are copied. If the whole chain is accepted, nothing is left to do. Otherwise the copies come
back and the committed tokens are owed to the states: they ride in front of the next pack, as part
of the same forward, so a rejection costs a few tokens more and never a forward more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from eyespan.target.states import state_layers, trim_columns
from eyespan.types import Ints

MOST_OWED = 24
"""Owed tokens that are paid by a forward of their own, so that packs stay short."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of every state of a cache.

    Attributes:
        states: for each layer with states, its convolution and recurrent states by index.
    """

    states: list[tuple[dict[int, Tensor | None], dict[int, Tensor | None]]]

    @staticmethod
    def of(cache: Any) -> Snapshot:
        """Copy the states of a cache."""
        return Snapshot(
            [
                (_copies(layer.conv_states), _copies(layer.recurrent_states))
                for layer in state_layers(cache)
            ]
        )

    def restore(self, cache: Any) -> None:
        """Put the copies back; a snapshot is used once."""
        for layer, (columns, states) in zip(state_layers(cache), self.states, strict=True):
            layer.conv_states.update(columns)
            layer.recurrent_states.update(states)


def _copies(states: dict[int, Tensor | None]) -> dict[int, Tensor | None]:
    return {at: None if state is None else state.clone() for at, state in states.items()}


def settle(cache: Any, size: int) -> None:
    """All `size` fed tokens stay: cut the recorded columns to what the next forward reads."""
    for layer in state_layers(cache):
        trim_columns(layer, size, list(range(size)))


def is_chain(parents: Ints) -> bool:
    """Whether packed nodes stand one below the other."""
    return bool((parents == np.arange(-1, len(parents) - 1)).all())
