"""Twins of cpp/src/calibration: chances by counting, cuts by trying every width."""

from __future__ import annotations

import math
from collections.abc import Sequence

DEPTHS, BINS = 12, 24
DECAY, PRIOR_WEIGHT, UNSCORED = 0.999, 2.0, 0.5

Cell = tuple[int, int, int]
"""(source, depth from 0, half octave)."""


class SlowCalibration:
    """Counts by cell."""

    def __init__(self, sources: int) -> None:
        self.sources = sources
        self.offered: dict[Cell, float] = {}
        self.accepted: dict[Cell, float] = {}

    def weigh(
        self,
        parents: Sequence[int],
        scores: Sequence[float] | None,
        origins: Sequence[int] | None,
    ) -> tuple[list[int], list[Cell], list[float]]:
        """Depths, cells and chances of a proposal's nodes."""
        depths: list[int] = []
        cells: list[Cell] = []
        chances: list[float] = []
        for at, parent in enumerate(parents):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            score = UNSCORED if scores is None else scores[at]
            score = min(score, 1.0) if score > 0 else 0.0
            half = min(int(-2 * math.log2(max(score, 1e-6))), BINS - 1)
            source = 0 if origins is None else min(origins[at], self.sources - 1)
            cell = (source, min(depths[at], DEPTHS) - 1, half)
            cells.append(cell)
            own = (self.accepted.get(cell, 0.0) + PRIOR_WEIGHT * score) / (
                self.offered.get(cell, 0.0) + PRIOR_WEIGHT
            )
            chances.append(own if parent < 0 else min(own, chances[parent]))
        return depths, cells, chances

    def learn(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        depths: Sequence[int],
        cells: Sequence[Cell],
        text: Sequence[int],
    ) -> None:
        """Fade every cell that is touched, then count."""
        seen = [cell for cell, depth in zip(cells, depths, strict=True) if depth <= len(text)]
        for cell in set(seen):
            self.offered[cell] = self.offered.get(cell, 0.0) * DECAY
            self.accepted[cell] = self.accepted.get(cell, 0.0) * DECAY
        for cell in seen:
            self.offered[cell] += 1
        parent = -1
        for token in text:
            hits = [at for at, node in enumerate(tokens) if node == token and parents[at] == parent]
            if not hits:
                break
            parent = hits[0]
            self.accepted[cells[parent]] += 1

    def flat(self, counts: dict[Cell, float]) -> list[float]:
        """Counts in the core's order."""
        return [
            counts.get((source, depth, half), 0.0)
            for source in range(self.sources)
            for depth in range(DEPTHS)
            for half in range(BINS)
        ]


def best_width(
    rows: Sequence[Sequence[float]],
    costs: Sequence[float],
    *,
    price: float,
    cap: int,
    worth: float,
    margin: float,
) -> int:
    """Nodes each row of a pass may send: every width tried, tokens beyond what time is worth."""
    best, width = margin * len(rows), 0
    for n in range(1, min(cap, max(map(len, rows))) + 1):
        tokens = sum(p + worth for row in rows for p in sorted(row)[::-1][:n])
        net = tokens - price * (costs[n] - costs[0])
        if net > best + 1e-12:
            best, width = net, n
    return width
