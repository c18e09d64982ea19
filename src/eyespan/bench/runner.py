"""Runs every method over every input, in turns, and writes down what each answer cost.

A *segment* is a stretch of inputs that share memories; all memories are emptied before it. When a
run continues after it was cut short, the finished inputs of the current segment are answered again
without being timed, so that memories are what they would have been.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from PIL import Image

from eyespan.bench.clock import Side, Timed, engine_side, own_garbage_only, take_turn
from eyespan.bench.compare import Witness, judge
from eyespan.bench.datasets import (
    Chosen,
    Record,
    Selection,
    Source,
    answer_message,
    question_message,
    record_of,
)
from eyespan.bench.records import NOISE, PLAIN, STOCK, Done, Run, Status, Store
from eyespan.bench.settings import Method, Settings
from eyespan.bench.stock import stock_side
from eyespan.bench.watch import Watch, describe
from eyespan.drafters import make_drafter
from eyespan.errors import ConfigError, EyespanError, InputError, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.target.images import open_pictures

OnInput = Callable[[Sequence[Run]], None]


@dataclass(frozen=True, slots=True)
class Item:
    """One input in a stream.

    Attributes:
        stream: name of the order.
        dataset: its set.
        chosen: the input.
        new_task: whether a task begins with it.
    """

    stream: str
    dataset: str
    chosen: Chosen
    new_task: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """As of `Done`."""
        return (self.stream, self.dataset, self.chosen.id)


def segments(settings: Settings, selections: Mapping[str, Selection]) -> Iterator[list[Item]]:
    """All inputs in the order in which they are run, cut where memories are emptied."""
    for schedule in settings.schedules:
        for seed in settings.seeds:
            stream = f"{schedule}/{seed}"
            orders: dict[str, list[Chosen]] = {}
            for name, selection in selections.items():
                orders[name] = list(selection.inputs)
                random.Random(f"{name}/{seed}").shuffle(orders[name])
            if schedule == "alternating":
                longest = max(map(len, orders.values()))
                pairs = [
                    (n, o[at]) for at in range(longest) for n, o in orders.items() if at < len(o)
                ]
                yield _items(stream, pairs)
            elif settings.boundary == "task":
                yield _items(stream, [(n, one) for n, order in orders.items() for one in order])
            else:
                for name, order in orders.items():
                    yield _items(stream, [(name, one) for one in order])


def _items(stream: str, pairs: Sequence[tuple[str, Chosen]]) -> list[Item]:
    items: list[Item] = []
    for name, chosen in pairs:
        switched = bool(items) and items[-1].dataset != name
        items.append(Item(stream, name, chosen, new_task=switched))
    return items


@dataclass(slots=True)
class Outcome:
    """One turn of one side: an answer or an error.

    Attributes:
        label: of the method.
        repeat: number of the repetition.
        timed: the answer.
        error: why there is none, or what failed on the way.
        beside: the plain turn that it is paired with.
        state_bytes: what the drafter held afterwards.
    """

    label: str
    repeat: int
    timed: Timed | None
    error: str | None = None
    beside: Outcome | None = None
    state_bytes: int = -1


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


class Runner:
    """Takes turns over inputs.

    Args:
        settings: of the run.
        target: the model.
        contestants: methods that can run here.
        sources: sets by name.
        selections: their inputs.
        store: where results go.
        on_input: told every input's results.
    """

    def __init__(
        self,
        settings: Settings,
        target: Any,
        contestants: Sequence[Contestant],
        sources: Mapping[str, Source],
        selections: Mapping[str, Selection],
        store: Store,
        on_input: OnInput = lambda runs: None,
    ) -> None:
        self._settings, self._target = settings, target
        self._sources, self._selections = sources, selections
        self._store, self._on_input = store, on_input
        self._contestants = list(contestants)
        if settings.noise:
            again = Method(label=NOISE, drafter="none", budget=0)
            self._contestants.append(Contestant(target, again, settings.repeats))
        self._stock = settings.stock and isinstance(target, HuggingFaceTarget)
        self._plain = Engine(target, "none", budget=0)
        self._witness = Witness()
        self._watched = Engine(target, self._witness, budget=0)

    def run(self) -> None:
        """Measure what is not there yet.

        Raises:
            OutputError: results cannot be written.
        """
        warm = False
        for segment in segments(self._settings, self._selections):
            todo = sum(item.key not in self._store.done for item in segment)
            if not todo:
                continue
            if not warm:
                self._warm_up()
                warm = True
            self._each(lambda watch: watch.reset())
            for item in segment:
                if item.new_task:
                    self._each(lambda watch: watch.new_task())
                done = self._store.done.get(item.key)
                if done is None:
                    runs, done = self._measure(item)
                    self._store.append(runs, done)
                    self._on_input(runs)
                    todo -= 1
                elif todo:
                    self._recall(item, done)

    def _each(self, act: Callable[[Watch], None]) -> None:
        for contestant in self._contestants:
            for watch in contestant.watches:
                act(watch)

    def _warm_up(self) -> None:
        """Walk every path that will be timed, on inputs that are not measured."""
        names = list(self._selections)
        for at in range(self._settings.warm_up):
            name = names[at % len(names)]
            inputs = self._selections[name].warm_up
            if inputs:
                chosen = inputs[at // len(names) % len(inputs)]
                self._measure(Item("warm-up", name, chosen))

    def _recall(self, item: Item, done: Done) -> None:
        """Answer a finished input again, by everyone, untimed."""
        try:
            record = record_of(self._sources[item.dataset], item.chosen)
            images = open_pictures(record.images)
        except EyespanError:
            return  # it could not be read the first time either
        with own_garbage_only():
            for messages in _conversation(record, done.answers):
                for contestant in self._contestants:
                    for repeat in range(self._settings.repeats):
                        self._take(contestant, repeat, messages, images)

    def _measure(self, item: Item) -> tuple[list[Run], Done]:
        """All turns of one input by everyone."""
        runs: list[Run] = []
        answers: list[str] = []
        try:
            record = record_of(self._sources[item.dataset], item.chosen)
            images = open_pictures(record.images)
        except EyespanError as error:
            runs = [self._failed(item, "", turn=0, error=str(error))]
            return runs, _done(item, answers)
        messages: list[Any] = []
        for turn, question in enumerate(record.turns):
            messages = [*messages, question_message(question, 0 if turn else len(images))]
            rng = random.Random(f"{item.key}/{turn}")
            with own_garbage_only():
                outcomes = self._rounds(messages, images, rng)
            judged, answer = self._judge(item, record, turn, outcomes, messages, images)
            runs += judged
            if answer is None:
                break  # without a plain answer there is no history for the next turn
            answers.append(answer)
            messages = [*messages, answer_message(answer)]
        return runs, _done(item, answers)

    def _rounds(
        self, messages: Sequence[Any], images: Sequence[Image.Image], rng: random.Random
    ) -> list[Outcome]:
        """Everyone's turns on one question, in an order of their own for every repeat."""
        outcomes: list[Outcome] = []
        for repeat in range(self._settings.repeats):
            order: list[Contestant | str] = list(self._contestants)
            if self._settings.pairing == "round" or not order:
                order.append(PLAIN)
            if self._stock:
                order.append(STOCK)
            rng.shuffle(order)
            taken: list[Outcome] = []
            for side in order:
                if side == PLAIN:
                    taken.append(self._take_plain(repeat, messages, images))
                elif side == STOCK:
                    taken.append(self._take_stock(repeat, messages, images))
                elif self._settings.pairing == "round":
                    taken.append(self._take(cast(Contestant, side), repeat, messages, images))
                else:
                    taken += self._pair(cast(Contestant, side), repeat, messages, images, rng)
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
        return outcome

    def _take_plain(
        self, repeat: int, messages: Sequence[Any], images: Sequence[Image.Image]
    ) -> Outcome:
        return self._turn(PLAIN, repeat, self._side(self._plain, messages, images))

    def _take_stock(
        self, repeat: int, messages: Sequence[Any], images: Sequence[Image.Image]
    ) -> Outcome:
        tokens = self._settings.max_new_tokens
        try:
            side = stock_side(self._target, messages, images, max_new_tokens=tokens)
        except Exception as error:
            return Outcome(STOCK, repeat, None, describe(error))
        return self._turn(STOCK, repeat, cast(Side, side))

    def _side(self, engine: Engine, messages: Sequence[Any], images: Sequence[Image.Image]) -> Side:
        tokens = self._settings.max_new_tokens
        return engine_side(engine, messages, images, max_new_tokens=tokens, fresh=False)

    @staticmethod
    def _turn(label: str, repeat: int, side: Side) -> Outcome:
        try:
            return Outcome(label, repeat, take_turn(side))
        except Exception as error:  # one method's failure on one input must not end a run
            return Outcome(label, repeat, None, describe(error))

    def _judge(
        self,
        item: Item,
        record: Record,
        turn: int,
        outcomes: Sequence[Outcome],
        messages: Sequence[Any],
        images: Sequence[Image.Image],
    ) -> tuple[list[Run], str | None]:
        """Compare everyone's ids with the first plain answer, then write down times."""
        plains = [one for one in outcomes if one.label == PLAIN]
        plain = next((one.timed for one in plains if one.timed), None)
        if plain is None or plain.generation is None:
            error = plains[0].error or "no plain answer"
            return [self._failed(item, record.category, turn=turn, error=error)], None
        answers = {one.timed.token_ids for one in outcomes if one.timed}
        gaps: list[float] = []
        if len(answers) > 1:
            gaps = self._gaps(messages, images)
        runs: list[Run] = []
        seen: set[int] = set()
        for one in outcomes:
            if one.label == PLAIN:  # every repeat keeps one; the others stand beside their methods
                if one.repeat in seen:
                    continue
                seen.add(one.repeat)
            runs.append(self._run(item, record, turn, one, plain.token_ids, gaps))
        return runs, plain.generation.text

    def _gaps(self, messages: Sequence[Any], images: Sequence[Image.Image]) -> list[float]:
        """How sure the target was at each token of the plain answer; none where that fails, so
        that every difference counts.
        """
        side = self._side(self._watched, messages, images)
        outcome = self._turn("witness", 0, side)
        return list(self._witness.gaps) if outcome.timed else []

    def _run(
        self,
        item: Item,
        record: Record,
        turn: int,
        one: Outcome,
        plain: tuple[int, ...],
        gaps: Sequence[float],
    ) -> Run:
        status: Status = "error"
        error, timed, beside = one.error, one.timed, one.beside
        if beside is not None and beside.timed is None:
            error = error or f"the plain run beside it failed ({beside.error})"
        if timed is not None and error is None:
            status = judge(plain, timed.token_ids, gaps, self._target.info.dtype).outcome
        made = timed.generation if timed else None
        paired = beside.timed if beside else None
        return Run(
            **self._where(item, record.category, turn),
            method=one.label,
            repeat=one.repeat,
            status=status,
            error=error,
            tokens=len(timed.token_ids) if timed else 0,
            forwards=made.forwards if made else 0,
            drafted=made.drafted if made else 0,
            accepted=made.accepted if made else 0,
            drafted_by_depth=made.drafted_by_depth if made else (),
            accepted_by_depth=made.accepted_by_depth if made else (),
            seconds=_seconds(timed),
            stage_ms=dict(made.stage_ms) if made else {},
            plain_tokens=len(paired.token_ids) if paired else 0,
            plain_seconds=_seconds(paired),
            state_bytes=one.state_bytes,
        )

    def _failed(self, item: Item, category: str, *, turn: int, error: str) -> Run:
        """An input that plain decoding itself could not answer."""
        where = self._where(item, category, turn)
        return Run(**where, method=PLAIN, repeat=0, status="error", error=error)

    @staticmethod
    def _where(item: Item, category: str, turn: int) -> dict[str, Any]:
        return {
            "stream": item.stream,
            "dataset": item.dataset,
            "input": item.chosen.id,
            "turn": turn,
            "category": category,
            "image": item.chosen.cluster,
        }


def _seconds(timed: Timed | None) -> dict[str, float]:
    if timed is None:
        return {}
    stages = dict(timed.generation.seconds) if timed.generation else {}
    return {**stages, "total": timed.seconds}


def _done(item: Item, answers: Sequence[str]) -> Done:
    return Done(
        stream=item.stream, dataset=item.dataset, input=item.chosen.id, answers=tuple(answers)
    )


def _conversation(record: Record, answers: Sequence[str]) -> Iterator[list[Any]]:
    """The messages of each turn that was asked, with these answers as history. A turn after the
    last answer was asked too: plain decoding failed there.
    """
    messages: list[Any] = []
    for turn, question in enumerate(record.turns[: len(answers) + 1]):
        messages = [*messages, question_message(question, 0 if turn else len(record.images))]
        yield messages
        if turn < len(answers):
            messages = [*messages, answer_message(answers[turn])]
