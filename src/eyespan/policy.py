"""The budget rule of one engine: what to ask a drafter for, and which of its nodes to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eyespan.budget import (
    MARGIN,
    REFRESH_WORTH,
    Budget,
    Calibration,
    CostCurve,
    Pace,
    best_cuts,
    check_budget,
    depths_of,
)
from eyespan.drafters.base import Drafter
from eyespan.sequence import Running
from eyespan.types import MAX_PACK, DraftTree, Ints, Nodes

PROBE_EVERY = 32
"""Rounds between two drafts of full size, where sizes are chosen before guesses are drawn."""
DECAY, PRIOR_WEIGHT = 0.999, 2.0
"""As in the calibration: what a round leaves of older counts, what a first belief is worth."""

PROBE_SHARE = 0.02
"""Most of a plain step's time that drafting may cost while drafts do not pay."""


class Weighed(NamedTuple):
    """A proposal and what its nodes may bring."""

    draft: DraftTree
    chances: npt.NDArray[np.float64]
    """[n] probability of each node to be committed."""
    reason: str
    """Why the step is plain if none of them is sent: "off" (not asked), "empty" (no guess), "room"
    (the answer ends before a guess could count) or "no gain" (a plain step is cheaper)."""

    @staticmethod
    def nothing(reason: str = "") -> Weighed:
        """No proposal; without a reason it is counted elsewhere."""
        return Weighed(DraftTree.empty(), np.empty(0), reason)


class Policy:
    """Decides tree sizes for every request of one engine.

    Args:
        budget: "auto", "fixed" (the drafter's published size), or the most nodes "auto" may use.
        drafter: whose trees are sized.
        curve: the target's measured costs; unused by "fixed" and 0.
        one_pass: whether the rows of a batch share a forward (see `best_cuts`).

    Raises:
        ConfigError: not a budget.
    """

    def __init__(
        self,
        budget: Budget,
        drafter: Drafter,
        curve: CostCurve | None = None,
        *,
        one_pass: bool = False,
    ) -> None:
        self.budget = budget = check_budget(budget)
        self.ask = 0 if budget == 0 else min(drafter.fixed_budget, MAX_PACK - 1)
        self.sizes = Sizes(self)
        self.auto = self.ask > 0 and budget != "fixed"
        self.cap = budget if isinstance(budget, int) else MAX_PACK - 1
        self._curve = curve or CostCurve(sizes=(1,), ms=(1.0,))
        self._one_pass = one_pass
        self._calibration = Calibration(sources=4)
        self.pace = Pace(self._curve, self._calibration, self.cap, one_pass) if self.auto else None
        self._host_ms = 0.1
        self._worth = REFRESH_WORTH if drafter.needs.rows else 0.0

    def costs_of(self, most: int) -> npt.NDArray[np.float64]:
        """[most + 1] milliseconds of a plain step, then of rounds with 1 to `most` guesses."""
        costs = self._curve.widths(1)[: most + 1].copy()
        costs[1:] += self._host_ms
        return costs

    def wants_draft(self, running: Running) -> bool:
        """Whether to ask the drafter this round."""
        if self.ask == 0:
            return False
        if running.resting > 0:
            running.resting -= 1
            return False
        return True

    def weigh(self, draft: DraftTree | None, running: Running) -> Weighed:
        """What a proposal may bring: nothing for nodes that lie beyond the request's room."""
        if draft is None or len(draft) == 0:
            return Weighed.nothing("off" if draft is None else "empty")
        if not self.auto:
            fits = depths_of(draft) <= running.depth
            return Weighed(draft, fits.astype(np.float64), "room")
        guess = self._calibration.guess(draft, len(running.ids))
        running.guesses.append(guess)
        chances = np.where(guess.depths <= running.depth, guess.chances, 0.0)
        return Weighed(draft, chances, "no gain" if chances.any() else "room")

    def cut(self, proposals: Sequence[Weighed], batch: Sequence[Running]) -> list[Nodes]:
        """Which nodes of every proposal to send; rows of one pass are sized together."""
        chances = [proposal.chances for proposal in proposals]
        if not self.auto:
            return [np.flatnonzero(fits) for fits in chances]
        passes = [chances] if self._one_pass else [[row] for row in chances]
        cuts: list[Nodes] = []
        for rows in passes:
            cuts += best_cuts(
                rows, self._curve, host_ms=self._host_ms, cap=self.cap, worth=self._worth
            )
        for proposal, nodes, running in zip(proposals, cuts, batch, strict=True):
            if nodes.size == 0 and proposal.reason == "no gain":
                running.resting = int(self._host_ms / (PROBE_SHARE * self._curve.ms[0]))
        return cuts

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


class Sizes:
    """How many guesses to draw, decided before any is: choosing among drawn ones would change the
    distribution that they came from, and with it the text (`drafters/_drawing.py`). What is learned
    is how often the i-th drawn guess was committed.

    Args:
        policy: whose limits and costs these are.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rounds = 0
        self._offered = np.full(MAX_PACK, PRIOR_WEIGHT)
        self._accepted = PRIOR_WEIGHT * 0.5 ** (1.0 + np.arange(MAX_PACK) / 4)

    def next(self) -> int:
        """Nodes of the next draft; 0 where a plain step is cheaper."""
        policy = self._policy
        most = min(policy.ask, policy.cap)
        if not policy.auto or most == 0:
            return most
        self._rounds += 1
        if self._rounds % PROBE_EVERY == 0:
            return most
        tokens = 1.0 + np.cumsum(self._accepted[:most] / self._offered[:most])
        costs = policy.costs_of(most)
        rate = tokens / costs[1:]
        best = int(np.argmax(rate))
        return best + 1 if rate[best] > MARGIN / costs[0] else 0

    def learn(self, drawn: int, path: Ints) -> None:
        """Count a draft.

        Args:
            drawn: nodes of it.
            path: [a] indices of those that were committed, in the order of their draws.
        """
        self._offered[:drawn] *= DECAY
        self._accepted[:drawn] *= DECAY
        self._offered[:drawn] += 1.0
        self._accepted[path] += 1.0
