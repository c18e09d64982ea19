"""Everyone who answers a question, and whose turn it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

from PIL import Image

from eyespan.bench.clock import Side, engine_side, take_turn
from eyespan.bench.compare import Witness
from eyespan.bench.compiled import Compiled
from eyespan.bench.outcomes import Outcome
from eyespan.bench.records import COMPILED, NOISE, PLAIN, STOCK
from eyespan.bench.settings import Method, Settings
from eyespan.bench.stock import stock_side
from eyespan.bench.watch import Watch, describe
from eyespan.drafters import make_drafter
from eyespan.drafters.base import parameters_of
from eyespan.errors import ConfigError, InputError, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget


class Contestant:
    """A method with one engine, and so one memory, for every repeat.

    Raises:
        ConfigError, InputError, UnsupportedTarget: the method cannot draft for this target.
    """

    def __init__(self, target: Any, method: Method, repeats: int) -> None:
        self.label = method.label
        self.watches: list[Watch] = []
        self.engines: list[Engine] = []
        for _ in range(repeats):
            size = target.info.vocab_size
            drafter = make_drafter(method.drafter, vocab_size=size, **method.options)
            self.watches.append(Watch(drafter))
            self.engines.append(Engine(target, drafter, budget=method.budget))


def contestants_of(
    target: Any, methods: Sequence[Method], repeats: int
) -> tuple[list[Contestant], dict[str, str]]:
    """Methods ready to run, and why optional ones cannot draft for this target.

    Raises:
        ConfigError, InputError, UnsupportedTarget: a method that is not optional cannot.
    """
    ready, skipped = [], {}
    for method in methods:
        try:
            ready.append(Contestant(target, method, repeats))
        except (ConfigError, InputError, UnsupportedTarget) as error:
            if not method.optional:
                raise
            skipped[method.label] = f"{error.found}; {error.needed}"
    return ready, skipped


class MakeSide(Protocol):
    """Makes a side that is no method of ours for one question."""

    def __call__(self, prompt: Any, images: Any, *, max_new_tokens: int) -> Side | None:
        """The side, ready to be timed; None where the target is of another kind."""
        ...


class Sides:
    """The methods of a run, and what they are compared with.

    Args:
        settings: of the run.
        target: the model.
        contestants: methods that can run here.
        compiled: compiled plain decoding, where it is a further column.
    """

    def __init__(
        self,
        settings: Settings,
        target: Any,
        contestants: Sequence[Contestant],
        compiled: Compiled | None = None,
    ) -> None:
        self._settings, self._target = settings, target
        self._contestants = list(contestants)
        if settings.noise:
            again = Method(label=NOISE, drafter="none", budget=0)
            self._contestants.append(Contestant(target, again, settings.repeats))
        self._others: dict[str, MakeSide] = {}
        if settings.stock and isinstance(target, HuggingFaceTarget):
            self._others[STOCK] = partial(stock_side, target)
        if compiled is not None:
            self._others[COMPILED] = compiled.side
        self._plain = Engine(target, "none", budget=0)
        self._witness = Witness()
        self._watched = Engine(target, self._witness, budget=0)

    @property
    def dtype(self) -> str:
        """The target's, which says how close two choices may be to be a tie."""
        return str(self._target.info.dtype)

    def reset(self) -> None:
        """Empty all memories."""
        for watch in self._watches():
            watch.reset()

    def new_task(self) -> None:
        """Tell everyone that a task begins."""
        for watch in self._watches():
            watch.new_task()

    def _watches(self) -> list[Watch]:
        return [watch for one in self._contestants for watch in one.watches]

    def recall(self, messages: Sequence[Any], images: Sequence[Image.Image]) -> None:
        """Everyone with a memory answers once, untimed."""
        for contestant in self._contestants:
            for repeat in range(self._settings.repeats):
                self._take(contestant, repeat, messages, images)

    def gaps(self, messages: Sequence[Any], images: Sequence[Image.Image]) -> list[float]:
        """How sure the target was at each token of the plain answer; none where that fails, so
        that every difference counts.
        """
        side = self._side(self._watched, messages, images)
        outcome = self._turn("witness", 0, side)
        return list(self._witness.gaps) if outcome.timed else []

    def rounds(
        self, messages: Sequence[Any], images: Sequence[Image.Image], rng: random.Random
    ) -> list[Outcome]:
        """Everyone's turns on one question, in an order of their own for every repeat."""
        outcomes: list[Outcome] = []
        for repeat in range(self._settings.repeats):
            order: list[Contestant | str] = list(self._contestants)
            if self._settings.pairing == "round" or not order:
                order.append(PLAIN)
            order += self._others
            rng.shuffle(order)
            taken: list[Outcome] = []
            for side in order:
                if side == PLAIN:
                    taken.append(self._take_plain(repeat, messages, images))
                elif isinstance(side, str):
                    taken.append(self._take_other(side, repeat, messages, images))
                elif self._settings.pairing == "round":
                    taken.append(self._take(side, repeat, messages, images))
                else:
                    taken += self._pair(side, repeat, messages, images, rng)
            if self._settings.pairing == "round":
                plain = next(one for one in taken if one.label == PLAIN)
                for one in taken:
                    one.beside = None if one is plain else plain
            outcomes += taken
        return outcomes

    def _pair(
        self,
        contestant: Contestant,
        repeat: int,
        messages: Sequence[Any],
        images: Sequence[Image.Image],
        rng: random.Random,
    ) -> list[Outcome]:
        """A method and plain decoding right beside it, either first."""
        if rng.random() < 0.5:
            plain = self._take_plain(repeat, messages, images)
            own = self._take(contestant, repeat, messages, images)
        else:
            own = self._take(contestant, repeat, messages, images)
            plain = self._take_plain(repeat, messages, images)
        own.beside = plain
        return [own, plain]

    def _take(
        self,
        contestant: Contestant,
        repeat: int,
        messages: Sequence[Any],
        images: Sequence[Image.Image],
    ) -> Outcome:
        watch = contestant.watches[repeat]
        outcome = self._turn(
            contestant.label, repeat, self._side(contestant.engines[repeat], messages, images)
        )
        failure = watch.take_failure()
        made = outcome.timed.generation if outcome.timed else None
        if made and made.plain_steps.get("drafter fault"):
            outcome.error = failure or "the drafter failed while learning (see the log)"
        outcome.state_bytes = watch.take_state_bytes()
        outcome.parameters = parameters_of(watch.drafter)
        return outcome

    def _take_plain(
        self, repeat: int, messages: Sequence[Any], images: Sequence[Image.Image]
    ) -> Outcome:
        return self._turn(PLAIN, repeat, self._side(self._plain, messages, images))

    def _take_other(
        self, label: str, repeat: int, messages: Sequence[Any], images: Sequence[Image.Image]
    ) -> Outcome:
        tokens = self._settings.max_new_tokens
        try:
            side = self._others[label](messages, images, max_new_tokens=tokens)
        except Exception as error:
            return Outcome(label, repeat, None, describe(error))
        return self._turn(label, repeat, cast(Side, side))

    def _side(self, engine: Engine, messages: Sequence[Any], images: Sequence[Image.Image]) -> Side:
        tokens = self._settings.max_new_tokens
        return engine_side(engine, messages, images, max_new_tokens=tokens, fresh=False)

    @staticmethod
    def _turn(label: str, repeat: int, side: Side) -> Outcome:
        try:
            return Outcome(label, repeat, take_turn(side))
        except Exception as error:  # one method's failure on one input must not end a run
            return Outcome(label, repeat, None, describe(error))
