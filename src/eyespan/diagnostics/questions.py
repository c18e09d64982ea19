"""What a diagnostic asks a model: one question about pictures, and which inputs it belongs with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from eyespan.bench.datasets import open_source, question_message, record_of, select
from eyespan.bench.held_out import asks
from eyespan.errors import InputError
from eyespan.target.images import open_picture

SEED = 17
"""Of the draw from a public set."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One request of a diagnostic.

    Attributes:
        name: for people.
        benchmark: data set in the tables; memory is empty where one begins.
        group: requests of one group share their pictures.
        match: what a wrong picture should have in common with the own one.
        messages: the chat up to the answer.
        pictures: in the order of their places, at least one.
    """

    name: str
    benchmark: str
    group: str
    match: str
    messages: Sequence[Mapping[str, Any]]
    pictures: tuple[Image.Image, ...]


def questions(datasets: Sequence[str], inputs: int) -> list[Question]:
    """The questions of some sets, set by set.

    Args:
        datasets: names as `eyespan bench` takes them. "demo" is the held-out set with every kind as
            a benchmark of its own and true answers as the history of later turns; of any other set
            the first question of each input with pictures is asked.
        inputs: how many of each set.

    Raises:
        ConfigError, InputError, OutputError: a set that cannot be read, or is named twice.
    """
    if len(set(datasets)) < len(datasets):
        raise InputError(
            f"datasets {', '.join(datasets)}",
            found="one of them twice",
            needed="each is needed once",
            todo="Leave one out.",
        )
    found: list[Question] = []
    for name in datasets:
        found += _demo(inputs) if name == "demo" else _public(name, inputs)
    return found


def _demo(inputs: int) -> Iterator[Question]:
    every = list(asks(inputs))
    kinds = dict.fromkeys(ask.kind for ask in every)
    for ask in sorted(every, key=lambda ask: list(kinds).index(ask.kind)):
        group = ask.name.rpartition("/")[0]
        yield Question(ask.name, ask.kind, group, ask.subject, ask.messages, (ask.image,))


def _public(name: str, inputs: int) -> Iterator[Question]:
    source = open_source(name)
    chosen = select(source, inputs=inputs, warm_up=0, seed=SEED).inputs
    for one in chosen:
        record = record_of(source, one)
        if record.images:
            pictures = tuple(open_picture(picture) for picture in record.images)
            message = question_message(record.turns[0], len(pictures))
            match = f"{source.name}/{record.category}"
            yield Question(one.id, source.name, one.cluster, match, [message], pictures)
