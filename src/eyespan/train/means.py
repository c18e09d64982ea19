"""Means of losses and accuracies over micro-batches and processes, and how they are said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eyespan.train.simulate import AcceptLength
from eyespan.train.strategies import Single, summed


@dataclass(slots=True)
class Means:
    """Weighted means of losses and of accuracies by name."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, losses: Mapping[str, Tensor], weight: float) -> None:
        """Count one micro-batch."""
        for name, value in losses.items():
            part = value.detach().double().cpu() * weight
            self.sums[name] = self.sums[name] + part if name in self.sums else part
        self.weight += weight

    def shared(self, strategy: Single) -> dict[str, Any]:
        """Over all processes, as plain numbers and lists."""
        names = sorted(self.sums)
        means = {}
        weight = summed(torch.tensor(self.weight, dtype=torch.float64), strategy.world)
        for name in names:
            means[name] = (summed(self.sums[name], strategy.world) / weight).tolist()
        return means


def words(means: Mapping[str, Any]) -> str:
    """Losses and accuracies by position, for people."""
    parts = [f"loss {means['loss']:.4f}"]
    if isinstance(means.get("accuracy"), list):
        parts.append("accuracy " + " ".join(f"{value:.2f}" for value in means["accuracy"]))
    return ", ".join(parts)


def note(record: Mapping[str, Any], length: AcceptLength | None) -> str:
    """The same with the newest accept length, for a progress bar."""
    spoken = "" if length is None else f", accept length {length.tau:.2f}"
    return words(record) + spoken
