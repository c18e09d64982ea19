"""Runs every method over every input, in turns, and writes down what each answer cost. When a
run continues after it was cut short, the finished inputs of the current segment are answered again
without being timed, so that memories are what they would have been.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from eyespan.bench.clock import own_garbage_only
from eyespan.bench.datasets import (
    Record,
    Selection,
    Source,
    answer_message,
    question_message,
    record_of,
)
from eyespan.bench.outcomes import Question, failed, judged, where
from eyespan.bench.records import Done, Run, Store
from eyespan.bench.schedule import Item, segments
from eyespan.bench.settings import Settings
from eyespan.bench.sides import Sides
from eyespan.errors import EyespanError
from eyespan.target.images import open_pictures

OnInput = Callable[[Sequence[Run]], None]


class Runner:
    """Takes turns over inputs.

    Args:
        settings: of the run.
        sides: everyone who answers.
        sources: sets by name.
        selections: their inputs.
        store: where results go.
        on_input: told every input's results.
    """

    def __init__(
        self,
        settings: Settings,
        sides: Sides,
        sources: Mapping[str, Source],
        selections: Mapping[str, Selection],
        store: Store,
        on_input: OnInput = lambda runs: None,
    ) -> None:
        self._settings, self._sides = settings, sides
        self._sources, self._selections = sources, selections
        self._store, self._on_input = store, on_input

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
            self._sides.reset()
            for item in segment:
                if item.new_task:
                    self._sides.new_task()
                done = self._store.done.get(item.key)
                if done is None:
                    runs, done = self._measure(item)
                    self._store.append(runs, done)
                    self._on_input(runs)
                    todo -= 1
                elif todo:
                    self._recall(item, done)

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
                self._sides.recall(messages, images)

    def _measure(self, item: Item) -> tuple[list[Run], Done]:
        """All turns of one input by everyone."""
        runs: list[Run] = []
        answers: list[str] = []
        try:
            record = record_of(self._sources[item.dataset], item.chosen)
            images = open_pictures(record.images)
        except EyespanError as error:
            return [failed(where(item, "", turn=0), str(error))], _done(item, answers)
        messages: list[Any] = []
        for turn, question in enumerate(record.turns):
            messages = [*messages, question_message(question, 0 if turn else len(images))]
            rng = random.Random(f"{item.key}/{turn}")
            with own_garbage_only():
                outcomes = self._sides.rounds(messages, images, rng)
            lines, answer = judged(
                Question(item, record, turn),
                outcomes,
                self._sides.dtype,
                partial(self._sides.gaps, messages, images),
            )
            runs += lines
            if answer is None:
                break  # without a plain answer there is no history for the next turn
            answers.append(answer)
            messages = [*messages, answer_message(answer)]
        return runs, _done(item, answers)


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
