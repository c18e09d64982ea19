"""The rule for drafts that are drawn and verified by rejection.

How many guesses to draw is decided before any is, and what was drawn is sent whole: choosing among
drawn guesses would change the distribution that they came from, and with it the text
(`drafters/_drawing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eyespan._core import Calibration
from eyespan.budget import MARGIN, Budget, CostCurve, price
from eyespan.drafters.base import Ask, Drafter
from eyespan.policy import Policy, Weighed
from eyespan.rejection import as_drawing, check_drawn
from eyespan.sequence import Running
from eyespan.types import MAX_PACK, DraftTree, Ints, Nodes

PROBE_EVERY = 32
"""Rounds between two drafts of full size."""


class Drawn(Policy):
    """Sizes drawn drafts; learns how often the i-th drawn guess is committed.

    Args:
        budget, curve, one_pass, chains: see `Policy`.
        drafter: draws its guesses.
        vocab_size: ids of the target.

    Raises:
        ConfigError: not a budget.
        UnsupportedRequest: the drafter does not know the probabilities of its guesses.
    """

    def __init__(
        self,
        budget: Budget,
        drafter: Drafter,
        curve: CostCurve | None = None,
        *,
        vocab_size: int,
        one_pass: bool = False,
        chains: bool = False,
    ) -> None:
        super().__init__(budget, drafter, curve, one_pass=one_pass, chains=chains)
        self._draws, self._vocab_size = as_drawing(drafter), vocab_size
        self._rounds, self._host_ms = 0, 0.1
        self._offered = np.full(MAX_PACK, Calibration.PRIOR_WEIGHT)
        self._accepted = Calibration.PRIOR_WEIGHT * 0.5 ** (1.0 + np.arange(MAX_PACK) / 4)

    def asks(self, batch: Sequence[Running]) -> dict[int, Ask]:
        """See `Policy.asks`; all rows draw the same number of guesses."""
        size = self._size()
        return {
            at: ask._replace(budget=size)
            for at, ask in super().asks(batch).items()
            if size and batch[at].lots is not None
        }

    def _size(self) -> int:
        """Nodes of the next draft; 0 where a plain step is cheaper."""
        most = min(self.ask, self.cap)
        if not self.auto or most == 0:
            return most
        self._rounds += 1
        if self._rounds % PROBE_EVERY == 0:
            return most
        tokens = np.cumsum(self._accepted[:most] / self._offered[:most])
        costs = self._curve.widths(1)[: most + 1]
        spent = costs[1:] - costs[0] + self._host_ms
        net = tokens - price(costs, 1, self._account.speedup) * spent
        best = int(np.argmax(net))
        return best + 1 if net[best] > MARGIN else 0

    def propose(self, asks: Mapping[int, Ask], batch: Sequence[Running]) -> list[DraftTree]:
        """See `Policy.propose`."""
        lots = [(batch[at].lots, batch[at].depth) for at in asks]
        drawings = [each.drawing(depth, self._chains) for each, depth in lots if each is not None]
        return self._draws.draw_many(list(asks.values()), drawings)

    def weigh(self, draft: DraftTree | None, running: Running) -> Weighed:
        """See `Policy.weigh`; a draft that does not say where it was drawn from is refused."""
        if draft is None:
            return Weighed.nothing("off" if running.session is None else "no gain")
        if len(draft) == 0:
            return Weighed.nothing("empty")
        check_drawn(draft, self._vocab_size)
        return Weighed(draft, np.ones(len(draft)), "room")

    def cut(self, proposals: Sequence[Weighed], batch: Sequence[Running]) -> list[Nodes]:
        """All nodes."""
        return [np.arange(len(each.draft)) for each in proposals]

    def sent(self, draft: DraftTree, nodes: Nodes, most: int | None) -> DraftTree:
        """The whole draft or nothing of it, whatever was drawn."""
        return draft if most is None or len(nodes) <= most else DraftTree.empty()

    def settle(self, rows: int, tokens: int, *, host_ms: float, ms: float) -> None:
        """See `Policy.settle`."""
        if self.auto and self._asks:
            # One slow round (a page fault, a busy machine) must not switch drafting off.
            self._host_ms += 0.05 * (min(host_ms / rows, 4 * self._host_ms) - self._host_ms)
        super().settle(rows, tokens, host_ms=host_ms, ms=ms)

    def learn(self, running: Running, sent: DraftTree, taken: Ints) -> None:
        """Count how far down the order of draws guesses were committed."""
        super().learn(running, sent, taken)
        self._offered[: len(sent)] *= Calibration.DECAY
        self._accepted[: len(sent)] *= Calibration.DECAY
        self._offered[: len(sent)] += 1.0
        self._accepted[taken] += 1.0
