"""The strongest plain decoding that stock transformers has: `generate()` with a static cache and a
compiled forward, on the same model object.
"""

from __future__ import annotations

from textwrap import shorten
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from eyespan.bench.clock import Side, Timed
from eyespan.bench.stock import stock_ids
from eyespan.bench.watch import describe
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.compiled import compiling

if TYPE_CHECKING:
    from eyespan.target.base import Prompt

STEP = 512
"""Caches have a multiple of so many places; every length is compiled once."""
PROBE = 3
"""Tokens that are written to compile a length: one from the prefill, two from the forward."""


def compile_plain(target: Any) -> tuple[Compiled | None, str]:
    """Compiled plain decoding of a target, or None and why it cannot be had here."""
    if not isinstance(target, HuggingFaceTarget):
        return None, "not a transformers model"
    try:
        return Compiled(target), ""
    except Exception as error:  # whatever keeps this model from being compiled on this machine
        return None, shorten(describe(error), 200)


class Compiled:
    """Compiled plain decoding; the first answer of each cache length compiles, untimed.

    Args:
        target: the model.

    Raises:
        Exception: whatever keeps a model from being compiled here (no compiler, a cache of another
            kind, a forward that cannot be traced).
    """

    def __init__(self, target: HuggingFaceTarget) -> None:
        self._target = target
        self._known: set[int] = set()
        self._side(target.prompt_from_ids(torch.arange(1, 9)), PROBE)

    def side(self, prompt: Any, images: Any = (), *, max_new_tokens: int) -> Side:
        """Its side of the clock, ready to be timed.

        Raises:
            InputError: see `Target.prepare`.
        """
        return self._side(self._target.prepare(prompt, images), max_new_tokens)

    def _side(self, inputs: Prompt, max_new_tokens: int) -> Side:
        places = -(-(len(inputs) + max_new_tokens) // STEP) * STEP

        def write(tokens: int) -> tuple[int, ...]:
            return stock_ids(self._target, inputs, tokens, **compiling(self._target, places))

        if places not in self._known:
            write(PROBE)
            self._known.add(places)

        def side() -> Timed:
            before = perf_counter()
            ids = write(max_new_tokens)
            return Timed(ids, perf_counter() - before)

        return side
