"""Half precision without a difference: near ties are decided as plain decoding decides them.

A pack of many tokens and a pack of one run through different kernels and round differently, so in
bfloat16 a choice between two nearly equal logits may fall either way. `strict` keeps a second
cache beside the request's own. It is copied after the prompt and grows by one-token forwards
only, so it is plain decoding's cache bit for bit. It lags behind until a near tie asks; then it
reads what was committed since, one token at a time, and its logits decide.

The cost is a second cache and, at every near tie, one forward for each token since the last one:
at worst as many as plain decoding takes. `Generation` counts both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyespan._core import pack
from eyespan.sequence import Running
from eyespan.target.base import SequenceState, Target
from eyespan.types import Ints, Needs, PackedTree, empty_ints

STRICT_GAP = {"float32": 1e-3, "float16": 0.06, "bfloat16": 0.5}
"""Gap of the best two scores below which a pack's word is not taken. Largest differences seen
between a pack's logits and a single token's, over 41 families at logits of scale 8: 1.7e-5 in
float32, 0.12 in bfloat16. Two logits may move against each other, which doubles that; the rest is
margin, and float16 has an eighth of bfloat16's rounding."""


class Shadow:
    """Plain decoding's own state of one request, brought up to date on demand.

    Args:
        target: the model.
        running: the request; its state must hold the prompt alone when `begin` is called.

    Attributes:
        near_ties: choices that were decided here.
        forwards: one-token forwards that they took.
    """

    def __init__(self, target: Target, running: Running) -> None:
        self._target, self._running = target, running
        self._gap = STRICT_GAP.get(target.info.dtype, STRICT_GAP["float32"])
        self._state: SequenceState | None = None
        self._logits: Any = None  # after the last token that the shadow has read
        self.near_ties = self.forwards = 0

    def near_tie(self, scores: Tensor) -> bool:
        """Whether the best two of [1, V] are too close for a pack to tell.

        The first choice of an answer comes from the prompt's own forward and needs no second
        look: there the second cache is made.
        """
        if self._state is None:
            self._state = self._running.state.fork()
            return False
        best = torch.topk(scores[0], 2).values
        return bool(best[0] - best[1] < self._gap)

    def logits(self, ids: Ints) -> Any:
        """[V] logits after `ids` [P], each token since the last call read alone."""
        state = self._state
        if state is None:
            raise RuntimeError("the shadow is made by the first choice")
        self.near_ties += 1
        for token in ids[state.length :]:
            (out,) = self._target.forward([state], [_single(int(token))], Needs())
            self._target.keep(state, empty_ints())
            self._logits = out.logits[0]
            self.forwards += 1
        return self._logits

    def close(self) -> None:
        """Free the second cache."""
        if self._state is not None:
            self._state.close()
        self._state = self._logits = None


def _single(token: int) -> PackedTree:
    return PackedTree(*pack(np.empty(0, np.int32), np.empty(0, np.int32), None, token))
