"""When to stop drafting: a further level of a tree is a forward of the head, and worth it only
where the tree that it would bring is better than the one that is there (with `budget="auto"`; the
papers always grow all levels).

Better is what the budget rule means by it (`budget.py`): more tokens, at the best size, beyond what
the time is worth, that of drafting included. What the next levels would bring is the chances of the
nodes to be expanded, shared out among their children as in earlier rounds: by depth, and by how
sure the parent was, since sure guesses come in runs.

Beside another drafter's tree (`hybrid.py`) a node counts for what that tree lacks: with its chance
times that of the other tree to be wrong at that depth, as if the two erred independently. Then
drafting may not pay at all, and the head is not even begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from eyespan.budget import Pace
from eyespan.moment import Moment

TIMES, FEW = 9, 3
"""Rounds whose timings are kept, and how many it takes to believe them; their median counts, so
that a slow round changes nothing."""
FADES = 0.98
"""Of earlier rounds' weight in how chances are shared out; fifty rounds are remembered."""
SURE = (0.2, 0.5, 0.8)
"""Parents' chances that are told apart."""
PRIOR = 0.1
"""Passes that the guess of `Pacing.expected` is worth before any were seen."""
PROBE = 64
"""Rounds after which one tree is grown whole: what is never grown is never measured anew."""

Chances = npt.NDArray[np.float64]


class Pacing:
    """What is known of a head: the time of its levels, by rows of a batch, and how the chances of
    expanded nodes are shared out among their children.

    Args:
        on_cpu: whether time spent waiting for a core is not the head's own.
        clock: of this machine.
    """

    def __init__(self, *, on_cpu: bool, clock: Callable[[], Moment] = Moment.now) -> None:
        self._on_cpu, self._clock = on_cpu, clock
        self._times: dict[tuple[str, int], deque[float]] = {}
        self._shares: dict[int, tuple[Any, Any]] = {}
        self._rounds = 0

    def begin(self, paces: Sequence[Pace], *, nodes: int, width: int, depth: int) -> Growing:
        """Start the clock of one proposal; arguments as for `Growing`."""
        self._rounds += 1
        return Growing(self, paces, nodes, width, depth, probe=self._rounds % PROBE == 0)

    def now(self) -> Moment:
        """A moment, for `took`."""
        return self._clock()

    def took(self, what: str, rows: int, since: Moment, *, again: bool = False) -> None:
        """Note how long something took that began at a moment; where it is done again in a round,
        the shorter time counts, since what disturbs a timing only ever adds to it.
        """
        ms = since.ms_until(self._clock(), on_cpu=self._on_cpu)
        times = self._times.setdefault((what, rows), deque(maxlen=TIMES))
        if again:
            times[-1] = min(times[-1], ms)
        else:
            times.append(ms)

    def ms(self, what: str, rows: int) -> float | None:
        """Its usual milliseconds; None before it was done a few times."""
        times = self._times.get((what, rows), ())
        return median(times) if len(times) >= FEW else None

    def saw(self, depth: int, parents: Chances, children: Chances) -> None:
        """Learn how chances are shared out.

        Args:
            depth: of the children.
            parents: [n] chances of expanded nodes.
            children: [n, w] chances of the children of each, falling.
        """
        weights, sums = self._shares.get(depth, (0.0, 0.0))
        sure = np.eye(len(SURE) + 1)[np.digitize(parents, SURE)]  # [n, bins]
        self._shares[depth] = (
            FADES * weights + (sure * parents[:, None]).sum(axis=0),
            FADES * sums + sure.T @ children,
        )

    def expected(self, depth: int, parents: Chances, width: int) -> Chances:
        """[B, k * width] chances that children at a depth will have, of parents [B, k]; where none
        were ever seen, all of a parent's goes to one child.
        """
        weights, sums = self._shares.get(depth, (np.zeros(len(SURE) + 1), 0.0))
        prior = np.eye(1, width)[0]
        shares = (sums + PRIOR * prior) / (weights[:, None] + PRIOR)
        children: Chances = parents[..., None] * shares[np.digitize(parents, SURE)]
        return children.reshape(len(parents), -1)


class Growing:
    """One proposal under way.

    Args:
        pacing: what is known.
        paces: of the B sequences.
        nodes: most of a tree.
        width: nodes expanded at a level.
        depth: longest path.
        probe: grow all levels, whatever is known.
    """

    def __init__(
        self,
        pacing: Pacing,
        paces: Sequence[Pace],
        nodes: int,
        width: int,
        depth: int,
        *,
        probe: bool,
    ) -> None:
        rows, most = len(paces), min(nodes, paces[0].cap)
        self._pacing, self._paces, self._probe = pacing, paces, probe
        self._width, self._depth, self._rows = width, depth, rows
        self._costs, self._price = paces[0].costs(rows, most), paces[0].price(rows)
        self._lacks = np.ones((rows, depth + 1))
        self._best = np.zeros((rows, most))
        for row, pace in enumerate(paces):
            if (rival := pace.rival) is not None:
                held = np.bincount(rival.depths, rival.chances, depth + 1)[: depth + 1]
                self._lacks[row] = 1.0 - np.minimum(held, 1.0)
                self._best[row] = self._with(self._best[row, None], rival.chances[None])
        self._expanded = np.ones((rows, 1))  # the root is certain
        self._levels = 0
        self._since = pacing.now()

    def begins(self) -> bool:
        """Whether to draft at all: always, unless every sequence has a tree already."""
        has_trees = all(pace.rival is not None for pace in self._paces)
        return not has_trees or self._probe or self._pays()

    def scored(self, paths: Tensor) -> None:
        """Take note of a level that was grown.

        Args:
            paths: [B, m] log-probabilities of its nodes.
        """
        # On a GPU this waits for the level, so that its time is whole.
        children = self._chances(paths, self._levels + 1)
        what, again = "level" if self._levels else "begin", self._levels > 1
        self._pacing.took(what, self._rows, self._since, again=again)
        self._levels += 1
        if self._levels == 1:
            self._width = children.shape[1]  # fewer than asked for where the vocabulary is small
        parents = self._expanded.reshape(-1)
        self._pacing.saw(self._levels, parents, children.reshape(len(parents), -1))
        self._best = self._with(self._best, children * self._lacks[:, self._levels, None])

    def goes_on(self, frontier: Tensor) -> bool:
        """Whether to grow another level.

        Args:
            frontier: [B, k] log-probabilities of the nodes that would be expanded.
        """
        self._expanded = self._chances(frontier, self._levels)
        going = self._probe or self._pays()
        self._since = self._pacing.now()
        return going

    def _pays(self) -> bool:
        """Whether any number of further levels would make a better tree."""
        begin, level = (self._pacing.ms(what, self._rows) for what in ("begin", "level"))
        if level is None or begin is None:
            return True
        here, best, parents = self._net(self._best), self._best, self._expanded
        spent = 0.0
        for depth in range(self._levels + 1, self._depth + 1):
            children = self._pacing.expected(depth, parents, self._width)
            best = self._with(best, children * self._lacks[:, depth, None])
            spent += level if depth > 1 else begin
            if self._net(best) - self._price * spent > here:
                return True
            children[:, ::-1].sort(axis=1)
            parents = children[:, : self._width]
        return False

    def _net(self, best: Chances) -> float:
        """Guessed tokens of the batch beyond what checking them is worth, at the best number."""
        tokens = np.concatenate([[0.0], best.sum(axis=0).cumsum()])
        return float((tokens - self._price * self._costs).max())

    @staticmethod
    def _with(best: Chances, more: Chances) -> Chances:
        """[B, n] the n best of both, falling."""
        both = np.concatenate([best, more], axis=1)
        both[:, ::-1].sort(axis=1)
        return both[:, : best.shape[1]]

    def _chances(self, paths: Tensor, depth: int) -> Chances:
        """[B, m] chances of nodes of a depth."""
        scores = paths.exp().cpu().numpy()
        return np.stack(
            [
                pace.beliefs.chances(own, depth) * (own > 0)
                for pace, own in zip(self._paces, scores, strict=True)
            ]
        )
