"""The paired clock: ways to write the same answer take turns (A B A B), and a speed is a ratio
within one round.

A machine that slows down then slows both sides of a ratio. Answers are compared by ids before any
time is looked at: a side that wrote something else has no speed. Seconds run from the prepared
prompt to the last token (prefill and decoding); reading pictures and tokenising are the same work
on every side and left out. `race` is for one question; `runner.py` takes the same turns over whole
sets of inputs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyespan.generation import Engine
    from eyespan.types import Generation


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer and how long it took.

    Attributes:
        token_ids: the answer, its end included.
        seconds: from the prepared prompt to the last token.
        generation: the rest of what our loop knows; None for stock's.
        peak_bytes: most that was allocated on the GPU meanwhile, weights included; -1 without one.
    """

    token_ids: tuple[int, ...]
    seconds: float
    generation: Generation | None = None
    peak_bytes: int = -1


Side = Callable[[], Timed]
"""One way to write the answer; each call writes it anew."""


@dataclass(frozen=True, slots=True)
class Race:
    """What a race found.

    Attributes:
        baseline: name of the side that the others are compared with.
        answers: the first answer of each side.
        seconds: of each side that wrote the baseline's answer in every round, by round.
    """

    baseline: str
    answers: Mapping[str, Timed]
    seconds: Mapping[str, tuple[float, ...]]

    @property
    def different(self) -> tuple[str, ...]:
        """Sides that wrote something else than the baseline, in any round."""
        return tuple(name for name in self.answers if name not in self.seconds)

    def ratios(self, side: str, over: str | None = None) -> tuple[float, ...]:
        """How many times faster than another side (default: the baseline), round by round.

        Empty where one of them wrote something else.
        """
        fast, slow = self.seconds.get(side, ()), self.seconds.get(over or self.baseline, ())
        return tuple(b / a for a, b in zip(fast, slow, strict=False))

    def speed(self, side: str, over: str | None = None) -> float | None:
        """S: the median of `ratios`; None where outputs differ."""
        ratios = self.ratios(side, over)
        return median(ratios) if ratios else None


def race(sides: Mapping[str, Side], *, rounds: int, warm_up: bool = True) -> Race:
    """Let the sides take turns.

    Args:
        sides: by name; the first is the baseline.
        rounds: timed turns of each.
        warm_up: first write every answer once, untimed, along the very path that is timed. A side
            whose answer differs then is not timed at all.
    """
    first: dict[str, Timed] = {name: side() for name, side in sides.items()} if warm_up else {}
    baseline = next(iter(sides))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    wrong = {name for name in first if first[name].token_ids != first[baseline].token_ids}
    with own_garbage_only():
        for _ in range(rounds):
            turn = {name: take_turn(side) for name, side in sides.items() if name not in wrong}
            for name, timed in turn.items():
                first.setdefault(name, timed)
                if timed.token_ids != turn[baseline].token_ids:
                    wrong.add(name)
                seconds[name].append(timed.seconds)
    kept = {name: tuple(seconds[name]) for name in sides if name not in wrong}
    return Race(baseline, first, kept)


def take_turn(side: Side) -> Timed:
    """One turn that pays for no other side's garbage; within `own_garbage_only`."""
    gc.collect()
    return side()


@contextmanager
def own_garbage_only() -> Iterator[None]:
    """Let nobody pay for another side's garbage: what lives now is left out of collections, which
    makes the one before each turn cheap.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def engine_side(
    engine: Engine,
    prompt: Any,
    images: Any = (),
    *,
    max_new_tokens: int,
    fresh: bool = True,
    **options: Any,
) -> Side:
    """Our loop as a side.

    Args:
        engine: writes the answer.
        prompt: what to answer.
        images: about which pictures.
        max_new_tokens: its bound.
        fresh: forget shared memories before each answer, so that none learns from an earlier
            turn of the same race. What the budget rule learned about acceptance stays.
        **options: further ones of `Engine.stream`.
    """

    def side() -> Timed:
        if fresh:
            engine.reset()
        with engine.stream(prompt, images, max_new_tokens=max_new_tokens, **options) as stream:
            peak = _peak_from_here()
            before = perf_counter()
            answer = stream.finish()
            spent = perf_counter() - before
        return Timed(answer.token_ids, spent, answer, peak())

    return side


def _peak_from_here() -> Callable[[], int]:
    """Asked later: the most bytes allocated on the current GPU since now; -1 where none is used."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: -1
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated
