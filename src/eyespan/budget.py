"""How many nodes a tree may have so that checking it never costs more than it brings.

A verify pass with n nodes costs T(n); a tree whose nodes are accepted with probabilities p_1 >= p_2
>= ... commits 1 + p_1 + ... + p_n tokens on average. What is wanted is the most tokens in all the
time of all rounds, and that is not the best ratio in every round: a millisecond that a poor round
does not spend is worth the tokens that a usual round makes of it. So with `price`, the tokens that
the engine gets done in a millisecond of late and never less than plain decoding does, the best n
maximises p_1 + ... + p_n - price (T(n) - T(0)), as in Dinkelbach's method for ratios (Management
Science 13, 1967); when no n brings anything, the step is plain. Costs are measured once per model
and machine (`cost.py`), probabilities are learned while text is written (`Calibration`), the price
is the account's (`account.py`). Both papers use one fixed size, which wins on a large GPU and loses
on a CPU; this rule is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from eyespan import _core
from eyespan.counts import whole
from eyespan.errors import ConfigError
from eyespan.types import MAX_PACK, DraftTree, Floats, Ints, Nodes

Budget: TypeAlias = Literal["auto", "fixed"] | int

REFRESH_WORTH = 0.02
"""Tokens that a node brings later by what its row teaches a drafter that recycles rows. Without it,
small trees starve the memory they are grown from: on the demo model, 12 pictures, tokens by cost
rose from 1.28 to 1.32 times plain decoding's (0.04: 1.29)."""
MARGIN = 0.03
"""Tokens by which a draft must be better than a plain step: machines are noisy when measured."""


def check_budget(budget: object) -> Budget:
    """Validate a budget option.

    Raises:
        ConfigError: not "auto", "fixed" or a whole number from 0 to 127.
    """
    if isinstance(budget, str) and budget in ("auto", "fixed"):
        return cast("Budget", budget)
    nodes = whole(budget)
    if nodes is None or not 0 <= nodes < MAX_PACK:
        raise ConfigError(
            f"budget={budget!r:.40}",
            found="not a budget",
            needed=f"'auto', 'fixed' or a number of nodes from 0 to {MAX_PACK - 1}",
            todo="Use 'auto' unless you compare sizes.",
        )
    return nodes


@dataclass(frozen=True, kw_only=True)
class CostCurve:
    """Milliseconds of one target forward, by packed nodes (root included).

    Attributes:
        sizes: [m] packed sizes, ascending, the first is 1 (the plain step).
        ms: [m] milliseconds at each of them.
        steps: a pack costs what the next of `sizes` does, since it is filled up to it.
    """

    sizes: tuple[int, ...]
    ms: tuple[float, ...]
    steps: bool = False

    def of(self, sizes: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """[n] milliseconds of packs of `sizes` [n] nodes, roots included.

        Straight lines or steps between what was measured, the last slope beyond it. Noise only ever
        adds to a timing, so a size costs no more than any larger one did.
        """
        ms = self._rising
        if self.steps:
            filled = np.append(self.sizes, 0)[np.searchsorted(self.sizes, sizes)]
            sizes = np.maximum(sizes, filled)
        inside = np.interp(sizes, self.sizes, ms)
        if len(ms) > 1:
            slope = (ms[-1] - ms[-2]) / (self.sizes[-1] - self.sizes[-2])
            inside += slope * np.maximum(sizes - self.sizes[-1], 0)
        return inside

    def widths(self, rows: int) -> npt.NDArray[np.float64]:
        """[MAX_PACK] milliseconds of a pass whose `rows` rows each have 0, 1, ... draft nodes."""
        if rows not in self._widths:
            self._widths[rows] = self.of(rows * np.arange(1, MAX_PACK + 1))
        return self._widths[rows]

    @cached_property
    def _rising(self) -> npt.NDArray[np.float64]:
        return np.minimum.accumulate(np.asarray(self.ms, np.float64)[::-1])[::-1]

    @cached_property
    def _widths(self) -> dict[int, npt.NDArray[np.float64]]:
        return {}


class Calibration:
    """Turns a drafter's node scores into acceptance probabilities, learned from what came true.

    A cell is (candidate source, depth, score octave); it counts nodes offered and nodes that lay on
    the text's real path. Every proposed node is counted once the text has passed it, whether it
    was sent to the target or cut, so the counts do not depend on the budget and a drafter that is
    switched off can prove itself again.
    """

    def __init__(self, sources: int) -> None:
        self._core = _core.Calibration(sources)

    @property
    def counts(self) -> npt.NDArray[np.float64]:
        """[2, cells] what was offered and what came true; a copy. Setting it raises ValueError for
        what are no such counts, and changes nothing.
        """
        return np.stack([self._core.offered(), self._core.accepted()])

    @counts.setter
    def counts(self, counts: npt.NDArray[np.float64]) -> None:
        if counts.ndim != 2 or len(counts) != 2:
            raise ValueError(f"counts of shape {counts.shape}")
        offered, accepted = np.ascontiguousarray(counts, np.float64)
        self._core.restore(offered, accepted)

    def guess(self, draft: DraftTree, at: int) -> Guess:
        """A proposal made after `at` committed tokens, with its chances [n] to be committed.

        No node is likelier than its parent; a drafter without scores is taken to half believe its
        guesses.
        """
        return Guess(at, draft, *self._core.weigh(draft.parents, draft.scores, draft.origins))

    def chances(self, scores: Floats, depth: int) -> npt.NDArray[np.float64]:
        """[n] chances of nodes of the first source at one depth, by their scores [n] alone."""
        return self._core.chances(scores, depth)

    def learn(self, guess: Guess, text: Ints) -> None:
        """Count a proposal against the text that followed its root.

        Args:
            guess: the whole proposal, before any cut.
            text: the tokens that followed; nodes deeper than it are not counted.
        """
        draft = guess.draft
        self._core.learn(draft.tokens, draft.parents, guess.depths, guess.cells, text)


class Pace(NamedTuple):
    """What a drafter has to know to stop drafting in time: what its nodes would be worth.

    Attributes:
        curve: cost of the target's forwards.
        beliefs: turns scores into chances.
        cap: most nodes that may be sent.
        one_pass: whether the rows of a batch share a forward.
        speedup: of late, see `price`.
        rival: what another drafter has guessed for the same place, to be sent along in any case.
    """

    curve: CostCurve
    beliefs: Calibration
    cap: int
    one_pass: bool
    speedup: float = 1.0
    rival: Guess | None = None

    def costs(self, rows: int, most: int) -> npt.NDArray[np.float64]:
        """[most + 1] milliseconds of checking 0, 1, ... nodes in each of some rows."""
        widths = self.curve.widths(rows) if self.one_pass else rows * self.curve.widths(1)
        return widths[: most + 1]

    def price(self, rows: int) -> float:
        """Tokens that a millisecond of some rows' rounds is worth."""
        return price(self.costs(rows, 0), rows, self.speedup)


class Guess(NamedTuple):
    """A proposal that the text has not passed yet: evidence for the budget rule."""

    at: int
    """Committed tokens when it was made."""
    draft: DraftTree
    depths: Ints
    """[n] depth of each node, 1 for children of the root."""
    cells: Ints
    """[n] where the calibration counts each node."""
    chances: npt.NDArray[np.float64]
    """[n] probability of each node to be committed."""


def depths_of(draft: DraftTree) -> Ints:
    """[n] depth of each node, 1 for children of the root."""
    depths: list[int] = []
    for parent in draft.parents.tolist():
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return np.array(depths, np.int32)


def keep_nodes(draft: DraftTree, nodes: Nodes) -> DraftTree:
    """The sub-tree of these nodes, which must hold every kept node's parent; order is kept."""
    nodes = np.sort(nodes)
    place = np.full(len(draft) + 1, -1, np.int32)  # the extra entry maps parent -1 to itself
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    return DraftTree(
        tokens=draft.tokens[nodes],
        parents=place[draft.parents[nodes]],
        scores=None if draft.scores is None else draft.scores[nodes],
        origins=None if draft.origins is None else draft.origins[nodes],
        origin_names=draft.origin_names,
    )


def best_chain(draft: DraftTree) -> DraftTree:
    """The likeliest path of a tree, for targets that verify no branches: from the root down, the
    child with the highest score, the first of equals.
    """
    scores = np.zeros(len(draft)) if draft.scores is None else draft.scores
    path: list[int] = []
    children = np.flatnonzero(draft.parents == -1)
    while children.size:
        path.append(int(children[np.argmax(scores[children])]))
        children = np.flatnonzero(draft.parents == path[-1])
    return keep_nodes(draft, np.array(path, np.intp))


def price(costs: npt.NDArray[np.float64], rows: int, speedup: float) -> float:
    """Tokens that a millisecond is worth.

    Args:
        costs: [n] milliseconds of a round of all rows; the first is a plain one's.
        rows: of the batch; each gets a token in a plain round.
        speedup: how many times faster than plain decoding the rounds of late were, at least 1.
    """
    return speedup * rows / float(costs[0])


def best_cuts(
    chances: Sequence[npt.NDArray[np.float64]],
    curve: CostCurve,
    *,
    speedup: float = 1.0,
    cap: int,
    worth: float = 0.0,
) -> list[Ints]:
    """Which nodes to send of each row of one pass, likeliest first: up to the width that brings
    the most tokens beyond what its time is worth, or none.

    A pass is as wide as its widest row, so B rows with n nodes each cost T(B (1 + n)) whether or
    not every row fills its n places. The best width is that of all rows together; every row sends
    its best nodes up to it, since its places are paid for. What drafting took is spent by now and
    weighs in the price alone.

    Args:
        chances: [n] acceptance probabilities of each of the B rows, no node above its parent; a row
            without a guess has n = 0.
        curve: cost of a forward over packed nodes of one sequence. What B rows read of their own
            caches on top of it is the same with and without drafts and left out on both sides.
        speedup: of late, see `price`.
        cap: most nodes that a row may send.
        worth: tokens that a sent node brings later, accepted or not.
    """
    costs = curve.widths(len(chances))
    return _core.best_cuts(
        chances,
        costs,
        price=price(costs, len(chances), speedup),
        cap=min(cap, len(costs) - 1),
        worth=worth,
        margin=MARGIN,
    )
