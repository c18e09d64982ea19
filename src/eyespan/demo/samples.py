"""What a sample of the demo is: a picture, questions about it and answers whose picture-only parts
are marked.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from PIL import Image

from eyespan.demo.canvas import Page

Kind = Literal["receipt", "table", "chart", "text", "scene", "dialog"]
KINDS: Final[tuple[Kind, ...]] = ("receipt", "table", "chart", "text", "scene", "dialog")


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer.

    `picture_spans` are half-open character spans of the answer that only the picture can tell
    (numbers, names, colours); the rest is template. `facts` are the pieces of the answer that are
    counted as read or not read.
    """

    question: str
    answer: str
    picture_spans: tuple[tuple[int, int], ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One picture with its turns; `subject` is the kind of the picture, which differs from `kind`
    for dialogs only.
    """

    id: str
    kind: Kind
    subject: Kind
    image: Image.Image
    turns: tuple[Turn, ...]
    page: Page = field(repr=False)


@dataclass(frozen=True, slots=True)
class Subject:
    """A drawn page with what can be asked about it: answers that tell it all, and short ones."""

    page: Page
    long: tuple[Turn, ...]
    short: tuple[Turn, ...]


class Answer:
    """Builds an answer piece by piece, keeping track of which pieces the picture alone can tell."""

    def __init__(self, first: str = "") -> None:
        self._text = first
        self._spans: list[tuple[int, int]] = []
        self._facts: list[str] = []

    def say(self, text: str) -> "Answer":
        """Add template text."""
        self._text += text
        return self

    def show(self, text: str, *, fact: bool = True) -> "Answer":
        """Add text that only the picture tells; `fact` says whether it is counted."""
        self._spans.append((len(self._text), len(self._text) + len(text)))
        self._text += text
        if fact:
            self._facts.append(text)
        return self

    def fact(self, text: str) -> "Answer":
        """Count `text`, which spans several pieces already added."""
        self._facts.append(text)
        return self

    def turn(self, question: str) -> Turn:
        """Close the answer under its question."""
        return Turn(question, self._text, tuple(self._spans), tuple(self._facts))


def join(
    answer: Answer,
    pieces: list[Callable[[Answer], object]],
    separator: str,
    last: str | None = None,
) -> Answer:
    """Let each piece write itself, with `separator` between them (`last` before the last one)."""
    for index, write in enumerate(pieces):
        if index:
            answer.say(last if last is not None and index == len(pieces) - 1 else separator)
        write(answer)
    return answer


def facts_right(facts: tuple[str, ...], text: str) -> int:
    """How many facts stand in `text` as whole words or numbers; a fact listed twice must stand
    there twice.
    """
    right = 0
    for fact, wanted in Counter(facts).items():
        pattern = rf"(?<![\w.]){re.escape(fact)}(?!\w|\.\d)"
        right += min(wanted, len(re.findall(pattern, text)))
    return right
