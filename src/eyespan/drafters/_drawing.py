"""Guesses drawn at random from distributions that are known, for verification by rejection.

How many siblings a node gets is decided before any of them is drawn, from what was drawn above them
and from earlier rounds; no sibling is dropped after it was drawn. Both would turn the distribution
that a guess came from into another one, and rejection is exact for the true one only
(`docs/lossless.md`). Numbers are fixed by (key of the request, length of the text, level, node), so
that asking twice gives the same draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eyespan.types import DraftProbs, DraftTree, Ints

Doubles = npt.NDArray[np.float64]


class Drawing(NamedTuple):
    """How one request's guesses are drawn.

    Attributes:
        temperature: of the distributions; the target's own makes them most alike.
        key: of the request's numbers, which nothing else uses.
        depth: deepest guess that could count.
        chain: one guess a level, for targets that verify no branches.
    """

    temperature: float
    key: int
    depth: int
    chain: bool = False


def siblings(probs: Doubles, count: int, random: np.random.Generator) -> Ints:
    """At most `count` different ids in the order of their draws, without replacement, from `probs`
    [V]; ids of probability 0 never come.

    The largest of log p + Gumbel noise is a draw from p, the largest of the rest a draw from what
    is left of p, and so on.
    """
    there = np.flatnonzero(probs)
    keys = np.log(probs[there]) + random.gumbel(size=len(there))
    count = min(count, len(there))
    best = np.argpartition(-keys, count - 1)[:count] if count < len(there) else np.arange(count)
    ids: Ints = there[best[np.argsort(-keys[best])]].astype(np.int32)
    return ids


def shares(paths: Sequence[float], count: int) -> list[int]:
    """How many of `count` children each node gets: one at a time, where its path is likely and few
    are there already. A path of 0 gets none.
    """
    given = [0] * len(paths)
    for _ in range(count):
        worth = [path / (1 + have) for path, have in zip(paths, given, strict=True)]
        best = int(np.argmax(worth)) if worth else 0
        if not worth or worth[best] <= 0:
            break
        given[best] += 1
    return given


class Sketch:
    """One draft while it is drawn, level by level.

    Args:
        drawing: see there.
        at: committed tokens of the text.
        nodes: guesses to draw.
        width: guesses of one level; 1 draws a chain.
        ends: ids after which nothing is guessed.
    """

    def __init__(
        self, drawing: Drawing, at: int, nodes: int, width: int, ends: frozenset[int]
    ) -> None:
        self._drawing, self._at, self._ends = drawing, at, ends
        self._left, self._width, self._level = nodes, 1 if drawing.chain else width, 0
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._paths: list[float] = []
        self._probs: list[Doubles] = []
        self._rows = [-1]
        self.layer = [-1]
        """Nodes that the next level hangs from; -1 is the root."""

    @property
    def going(self) -> bool:
        """Whether another level can be drawn."""
        return self._left > 0 and self._level < self._drawing.depth and bool(self.layer)

    def draw(self, logits: Doubles) -> list[tuple[int, int]]:
        """Draw a level.

        Args:
            logits: [layer, V] of what follows each node of `layer`; -inf where nothing may be.

        Returns:
            (token, index in the layer of its parent) of the nodes to go on from, which are the
            new `layer`.
        """
        alive = [1.0 if node < 0 else self._paths[node] for node in self.layer]
        count = min(self._width, self._left)
        new: list[tuple[int, int]] = []
        following: list[int] = []
        for place, share in enumerate(shares(alive, count)):
            if share == 0:
                continue
            probs = _softmax(logits[place] / self._drawing.temperature)
            if probs is None:
                continue
            node = self.layer[place]
            for token in siblings(probs, share, self._random(node)).tolist():
                self._tokens.append(token)
                self._parents.append(node)
                self._paths.append(alive[place] * float(probs[token]))
                self._rows.append(-1)
                self._left -= 1
                if token not in self._ends:
                    new.append((token, place))
                    following.append(len(self._tokens) - 1)
            self._rows[node + 1] = len(self._probs)
            self._probs.append(probs)
        self.layer = following
        self._level += 1
        return new

    def tree(self) -> DraftTree:
        """What was drawn."""
        if not self._tokens:
            return DraftTree.empty()
        return DraftTree(
            np.array(self._tokens, np.int32),
            np.array(self._parents, np.int32),
            np.array(self._paths, np.float32),
            probs=DraftProbs(np.stack(self._probs), np.array(self._rows, np.int32)),
        )

    def _random(self, node: int) -> np.random.Generator:
        """The numbers of one node's children."""
        counter = [0, self._at, self._level, node + 1]
        return np.random.Generator(np.random.Philox(key=self._drawing.key, counter=counter))


def _softmax(logits: Doubles) -> Doubles | None:
    """[V] probabilities; None where nothing may follow."""
    best = logits.max()
    if not np.isfinite(best):
        return None
    weights = np.exp(logits - best)
    probs: Doubles = weights / weights.sum()
    return probs
