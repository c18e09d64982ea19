"""What stands in for RECAP's maps at a root that none of them answers (appendix H)."""

from __future__ import annotations

from typing import Any

import numpy as np

from eyespan.types import Floats, Ints, Step

INDEXED_ROWS = 2048
"""Rows a root fallback may search (appendix H)."""


class RootFallback:
    """A request's latest rows, for roots that no map answers (appendix H).

    A row is filed under its predecessor's hidden state; the question is the state that produced the
    root, which no forward has read yet. First in, first out, at most 2,048 rows.

    Args:
        semantic: rank by the cosine of states (up to three rows); else the latest row alone.
    """

    def __init__(self, *, semantic: bool) -> None:
        self._semantic = semantic
        self._ids: Ints | None = None
        self._logits: Floats | None = None
        self._states: Floats | None = None
        self._verified: Floats | None = None

    def rows(self) -> tuple[Ints, Floats] | None:
        """Ids and logits of the rows to use, best first."""
        if self._ids is None or self._logits is None:
            return None
        if not self._semantic:
            return self._ids[-1:], self._logits[-1:]
        if self._states is None or self._verified is None:
            return None
        best = np.argsort(-(self._states @ self._verified), kind="stable")[:3]
        return self._ids[best], self._logits[best]

    def observe(self, step: Step) -> None:
        """File the rows of one round, in packed order."""
        out = step.out
        filed = np.arange(len(step.tree))
        if self._semantic:
            states = _unit_rows(np.asarray(out.extras["hidden"], np.float32))
            before = states[step.tree.parents]
            if self._verified is None:
                filed = filed[1:]  # the root's predecessor was read by the prompt's forward
            else:
                before[0] = self._verified
            self._states = _latest(self._states, before[filed])
            self._verified = states[step.verdict.path[-1] if len(step.verdict.path) else 0]
        self._ids = _latest(self._ids, out.row_ids[filed])
        self._logits = _latest(self._logits, out.row_logits[filed])


def _latest(old: Any, new: Any) -> Any:
    """The last rows of both, contiguous."""
    return new if old is None else np.concatenate([old, new])[-INDEXED_ROWS:]


def _unit_rows(states: Floats) -> Floats:
    """[n, d] rows of length 1, so that a product is a cosine."""
    flat = states.reshape(len(states), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    unit: Floats = flat / np.maximum(lengths, np.float32(1e-12))
    return unit
