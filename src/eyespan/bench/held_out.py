"""The demo's held-out set as requests: one for every turn, with the true answers as its history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image

from eyespan.demo import Kind, Turn, held_out

MAX_NEW_TOKENS = 256
"""Longer than any answer of the set."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the set.

    Attributes:
        name: the sample's id and the turn's number.
        kind: of the sample ("receipt", ..., "dialog").
        subject: what its picture shows.
        messages: the chat up to this turn's question.
        image: the picture.
        turn: question and true answer.
    """

    name: str
    kind: Kind
    subject: Kind
    messages: list[dict[str, Any]]
    image: Image.Image
    turn: Turn


def asks(samples: int, *, seed: int | None = None) -> Iterator[Ask]:
    """The requests of the first samples.

    Args:
        samples: how many; kinds take turns, dialogs give several requests.
        seed: another seed gives pictures that are not part of the set, for warming up.
    """
    chosen = held_out(samples) if seed is None else held_out(samples, seed)
    for sample in chosen:
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(sample.turns):
            picture = [{"type": "image"}] if number == 0 else []
            question = {"type": "text", "text": turn.question}
            messages = [*messages, {"role": "user", "content": [*picture, question]}]
            yield Ask(
                f"{sample.id}/{number}", sample.kind, sample.subject, messages, sample.image, turn
            )
            messages = [*messages, {"role": "assistant", "content": turn.answer}]
