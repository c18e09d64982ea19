"""The budget rule of one engine: what to ask a drafter for, and which of its nodes to send."""

from __future__ import annotations

import numpy as np

from eyespan.budget import (
    REFRESH_WORTH,
    Budget,
    Calibration,
    CostCurve,
    best_cut,
    check_budget,
    depths_of,
    keep_nodes,
)
from eyespan.drafters.base import Drafter
from eyespan.sequence import Running
from eyespan.types import MAX_PACK, DraftTree

PROBE_SHARE = 0.02
"""Most of a plain step's time that drafting may cost while drafts do not pay."""


class Policy:
    """Decides tree sizes for every request of one engine.

    Args:
        budget: "auto", "fixed" (the drafter's published size), or the most nodes "auto" may use.
        drafter: whose trees are sized.
        curve: the target's measured costs; unused by "fixed" and 0.

    Raises:
        ConfigError: not a budget.
    """

    def __init__(self, budget: Budget, drafter: Drafter, curve: CostCurve | None = None) -> None:
        self.budget = check_budget(budget)
        self.ask = 0 if budget == 0 else min(drafter.fixed_budget, MAX_PACK - 1)
        self.auto = self.ask > 0 and budget != "fixed"
        self.cap = budget if isinstance(budget, int) else MAX_PACK - 1
        self._curve = curve or CostCurve(sizes=(1,), ms=(1.0,))
        self._calibration = Calibration(sources=4)
        self._host_ms = 0.1
        self._worth = REFRESH_WORTH if drafter.needs.rows else 0.0

    def wants_draft(self, running: Running) -> bool:
        """Whether to ask the drafter this round."""
        if self.ask == 0:
            return False
        if running.resting > 0:
            running.resting -= 1
            return False
        return True

    def cut(self, draft: DraftTree | None, running: Running) -> tuple[DraftTree, str | None]:
        """The part of a proposal to send and, when that is nothing, why.

        The reason is "off" (not asked), "empty" (no guess), "room" (the answer ends before a
        guess could count) or "no gain" (a plain step is cheaper).
        """
        if draft is None or len(draft) == 0:
            return DraftTree.empty(), "off" if draft is None else "empty"
        if not self.auto:
            fits = np.flatnonzero(depths_of(draft) <= running.depth)
            return keep_nodes(draft, fits), None if fits.size else "room"
        guess = self._calibration.guess(draft, len(running.ids))
        running.guesses.append(guess)
        chances = np.where(guess.depths <= running.depth, guess.chances, 0.0)
        if not chances.any():
            return DraftTree.empty(), "room"
        nodes = best_cut(
            chances, self._curve, host_ms=self._host_ms, cap=self.cap, worth=self._worth
        )
        if nodes.size == 0:
            running.resting = int(self._host_ms / (PROBE_SHARE * self._curve.ms[0]))
            return DraftTree.empty(), "no gain"
        return keep_nodes(draft, nodes), None

    def learn(self, running: Running, *, host_ms: float) -> None:
        """Count the proposals that the text has passed, and what drafting costs.

        Args:
            running: the request; a finished one has all its open guesses counted.
            host_ms: what this round's drafting and packing took, milliseconds.
        """
        if not self.auto:
            return
        # One slow round (a page fault, a busy machine) must not switch drafting off.
        self._host_ms += 0.05 * (min(host_ms, 4 * self._host_ms) - self._host_ms)
        still = []
        for guess in running.guesses:
            text = running.ids[guess.at :]
            if running.finish or len(text) >= int(guess.depths.max()):
                self._calibration.learn(guess, text)
            else:
                still.append(guess)
        running.guesses = still
