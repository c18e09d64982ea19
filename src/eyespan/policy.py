"""The budget rule of one engine: what to ask a drafter for, and which of its nodes to send.

`drawn.py` has another rule for drafts that are verified by rejection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eyespan.account import Account
from eyespan.budget import (
    REFRESH_WORTH,
    Budget,
    Calibration,
    CostCurve,
    Pace,
    best_chain,
    best_cuts,
    check_budget,
    depths_of,
    keep_nodes,
)
from eyespan.drafters.base import Ask, Drafter
from eyespan.sequence import Running
from eyespan.types import MAX_PACK, DraftTree, Ints, Nodes


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
        chains: whether the target verifies no branches.

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
        chains: bool = False,
    ) -> None:
        self.budget = budget = check_budget(budget)
        self.ask = 0 if budget == 0 else min(drafter.fixed_budget, MAX_PACK - 1)
        self.auto = self.ask > 0 and budget != "fixed"
        self.cap = budget if isinstance(budget, int) else MAX_PACK - 1
        self._curve = curve or CostCurve(sizes=(1,), ms=(1.0,))
        self._account, self._asks, self._resting = Account(self._curve.ms[0]), False, 0
        self._one_pass, self._chains = one_pass, chains
        self._drafter = drafter
        self._calibration = Calibration(sources=4)
        self._worth = REFRESH_WORTH if drafter.needs.rows else 0.0

    def asks(self, batch: Sequence[Running]) -> dict[int, Ask]:
        """Which rows of a batch to draft for in this round."""
        self._asks = self.ask > 0 and self._resting == 0
        if not self._asks:
            self._resting = max(0, self._resting - 1)
            return {}
        pace = self.pace()
        return {
            at: Ask(running.session, running.ids, self.ask, pace)
            for at, running in enumerate(batch)
            if running.session is not None
        }

    def pace(self) -> Pace | None:
        """What drafters have to know to stop in time; None where trees are grown whole."""
        if not self.auto:
            return None
        speedup = self._account.speedup
        return Pace(self._curve, self._calibration, self.cap, self._one_pass, speedup)

    def propose(self, asks: Mapping[int, Ask], batch: Sequence[Running]) -> list[DraftTree]:
        """Guesses for these rows of a batch."""
        return self._drafter.propose_many(list(asks.values()))

    def weigh(self, draft: DraftTree | None, running: Running) -> Weighed:
        """What a proposal may bring: nothing for nodes that lie beyond the request's room."""
        if draft is not None and running.prune is not None:
            draft = running.prune(draft)
        if draft is not None and self._chains:
            draft = best_chain(draft)
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
                rows,
                self._curve,
                speedup=self._account.speedup,
                cap=self.cap,
                worth=self._worth,
            )
        return cuts

    def sent(self, draft: DraftTree, nodes: Nodes, most: int | None) -> DraftTree:
        """What is sent of a proposal.

        Args:
            draft: the proposal.
            nodes: chosen by `cut`.
            most: nodes that the request has slots for; None is any number.
        """
        if most is not None and len(nodes) > most:
            nodes = np.sort(nodes)[:most]  # parents come before their children
        return keep_nodes(draft, nodes)

    def settle(self, rows: int, tokens: int, *, host_ms: float, ms: float) -> None:
        """Learn what a round cost and brought.

        Args:
            rows: requests of the batch.
            tokens: committed by all of them.
            host_ms: milliseconds of drafting and packing, for rules that size what is not drafted
                yet (`drawn.py`).
            ms: of the whole round.
        """
        if not self.auto:
            return
        if not self._asks:
            self._account.plain(ms / rows)
            return
        self._resting = self._account.drafted(ms / rows, tokens / rows)

    def learn(self, running: Running, sent: DraftTree, taken: Ints) -> None:
        """Count the proposals that the text has passed.

        Args:
            running: the request; a finished one has all its open guesses counted.
            sent: this round's draft.
            taken: [a] its nodes that were committed.
        """
        if not self.auto:
            return
        still = []
        for guess in running.guesses:
            text = running.ids[guess.at :]
            if running.finish or len(text) >= int(guess.depths.max()):
                self._calibration.learn(guess, text)
            else:
                still.append(guess)
        running.guesses = still
