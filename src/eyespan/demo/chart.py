"""Bar charts, lying or standing, with their values written at the bars."""

import random
from typing import Final

from eyespan.demo import lexicon
from eyespan.demo.canvas import CELL_H, CELL_W, COLS, Canvas
from eyespan.demo.samples import Answer, Subject, Turn

_DESCRIBE_QUESTIONS: Final = (
    "Describe the chart.",
    "What does the chart show?",
    "Explain this chart.",
)
_JSON_QUESTIONS: Final = ("Turn the chart into JSON.", "Give the data of the chart as JSON.")
_LIST_QUESTIONS: Final = ("List the bars of the chart.",)
_LABELS: Final = (lexicon.PLACES, lexicon.PERSONS, lexicon.GOODS)
_LYING_LEFT: Final = 8  # the cell where lying bars start
_LYING_LENGTH: Final = 76  # pixels of the longest lying bar
_STANDING_HEIGHT: Final = 112  # pixels of the tallest standing bar
_STANDING_STEP: Final = 6  # cells from bar to bar


def make(rng: random.Random) -> Subject:
    """Draw one chart with random labels and distinct random values."""
    canvas = Canvas(rng)
    standing = rng.random() < 0.3
    count = rng.randint(3, 4) if standing else rng.randint(3, 7)
    labels = rng.sample(
        [label for label in rng.choice(_LABELS) if len(label) <= (5 if standing else 7)], count
    )
    title = f"{rng.choice(lexicon.TOPICS)} {rng.randint(2010, 2039)}"
    scale = rng.choice((1, 1, 10))
    raw = rng.sample(range(10, 100), count)
    values = [str(value) if scale == 1 else f"{value // 10}.{value % 10}" for value in raw]
    ink = canvas.invert_row(0) if rng.random() < 0.3 else None
    canvas.text(
        0, 2 * rng.randint(0, (COLS - len(title)) // 2), title, bold=rng.random() < 0.6, ink=ink
    )
    (_draw_standing if standing else _draw_lying)(
        canvas, labels, values, [value / max(raw) for value in raw]
    )
    page = canvas.finish()
    low = min(range(count), key=raw.__getitem__)
    high = max(range(count), key=raw.__getitem__)
    pairs = list(zip(labels, values, strict=True))
    pick, value = rng.choice(pairs)
    short = (
        Answer(f"{pick} has ").show(value).say(".").turn(f"What is the value of {pick}?"),
        Answer()
        .show(labels[high])
        .say(" is highest with ")
        .show(values[high])
        .say(".")
        .turn("Which bar is highest?"),
        Answer()
        .show(labels[low])
        .say(" is lowest with ")
        .show(values[low])
        .say(".")
        .turn("Which bar is lowest?"),
        Answer("The title is ").show(title).say(".").turn("What is the title?"),
        Answer("There are ")
        .show(str(count), fact=False)
        .say(" bars.")
        .turn("How many bars are there?"),
        _names(labels),
    )
    long = (
        _describe(rng.choice(_DESCRIBE_QUESTIONS), title, pairs, pairs[low], pairs[high]),
        _json(rng.choice(_JSON_QUESTIONS), title, pairs),
        _list(rng.choice(_LIST_QUESTIONS), title, pairs, pairs[low], pairs[high]),
    )
    return Subject(page, long, short)


def _draw_lying(canvas: Canvas, labels: list[str], values: list[str], parts: list[float]) -> None:
    step = 2 if len(labels) <= 5 else 1
    top = canvas.rng.randint(1, 11 - step * (len(labels) - 1))
    shared = canvas.tint()
    for index, (label, value, part) in enumerate(zip(labels, values, parts, strict=True)):
        row, length = top + index * step, max(6, round(part * _LYING_LENGTH))
        canvas.text(row, 0, label)
        x = _LYING_LEFT * CELL_W
        canvas.rect(x, row * CELL_H + 3, x + length, row * CELL_H + 13, shared)
        canvas.text(row, _LYING_LEFT + 2 * (length // 16 + 1), value)


def _draw_standing(
    canvas: Canvas, labels: list[str], values: list[str], parts: list[float]
) -> None:
    indent = 2 * canvas.rng.randint(0, (COLS - len(labels) * _STANDING_STEP) // 2)
    shared = canvas.tint()
    for index, (label, value, part) in enumerate(zip(labels, values, parts, strict=True)):
        col, height = indent + index * _STANDING_STEP, max(6, round(part * _STANDING_HEIGHT))
        base = 11 * CELL_H - 1
        canvas.rect(col * CELL_W, base - height, col * CELL_W + 30, base, shared)
        canvas.text(10 - height // CELL_H - 1, col, value)
        canvas.text(11, col, label)


def _describe(
    question: str,
    title: str,
    pairs: list[tuple[str, str]],
    low: tuple[str, str],
    high: tuple[str, str],
) -> Turn:
    answer = (
        Answer("The chart shows ")
        .show(title)
        .say(" with ")
        .show(str(len(pairs)), fact=False)
        .say(" bars. ")
    )
    for index, (label, value) in enumerate(pairs):
        answer.say("" if not index else " and " if index == len(pairs) - 1 else ", ")
        answer.show(label).say(" has ").show(value)
    answer.say(". The highest is ").show(high[0], fact=False).say(" with ").show(
        high[1], fact=False
    )
    return answer.say(" and the lowest is ").show(low[0], fact=False).say(".").turn(question)


def _json(question: str, title: str, pairs: list[tuple[str, str]]) -> Turn:
    answer = Answer('{"title": "').show(title).say('", "bars": [')
    for index, (label, value) in enumerate(pairs):
        answer.say(', {"name": "' if index else '{"name": "').show(label).say('", "value": ').show(
            value
        ).say("}")
    return answer.say("]}").turn(question)


def _list(
    question: str,
    title: str,
    pairs: list[tuple[str, str]],
    low: tuple[str, str],
    high: tuple[str, str],
) -> Turn:
    answer = Answer().show(title).say(":")
    for label, value in pairs:
        answer.say("\n- ").show(label).say(": ").show(value)
    answer.say("\nHighest: ").show(high[0], fact=False).say(". Lowest: ").show(low[0], fact=False)
    return answer.say(".").turn(question)


def _names(labels: list[str]) -> Turn:
    answer = Answer()
    for index, label in enumerate(labels):
        answer.say(", " if index else "").show(label)
    return answer.say(".").turn("Name the bars.")
