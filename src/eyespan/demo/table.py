"""Tables of two to four columns: a name and random values."""

import random
from typing import Final

from eyespan.demo import lexicon
from eyespan.demo.canvas import SIDE, Canvas
from eyespan.demo.samples import Answer, Subject, Turn

_MARKDOWN_QUESTIONS: Final = (
    "Turn this table into Markdown.", "Write the table in Markdown.", "Copy the table as Markdown.",
    "Read the table and answer in Markdown.",
)  # fmt: skip
_ROWS_QUESTIONS: Final = ("Read the table row by row.", "What does the table say?")
_NAMES: Final = {"City": lexicon.PLACES, "Name": lexicon.PERSONS, "Item": lexicon.GOODS}
_STARTS: Final = {
    2: (0, 14),
    3: (0, 10, 18),
    4: (0, 8, 14, 20),
}  # first cell of each column, even on purpose


def make(rng: random.Random) -> Subject:
    """Draw one table with random names and values."""
    canvas = Canvas(rng)
    columns = rng.choice((2, 3, 3, 4))
    first = rng.choice(tuple(_NAMES))
    width = 4 if columns == 4 else 6
    header = [
        first,
        *rng.sample([topic for topic in lexicon.TOPICS if len(topic) <= width], columns - 1),
    ]
    names = rng.sample([name for name in _NAMES[first] if len(name) <= 7], rng.randint(3, 7))
    makers = [rng.choice((_small, _small, _large, _decimal, _month)) for _ in header[1:]]
    rows = [[name, *(maker(rng) for maker in makers)] for name in names]
    _draw(canvas, header, rows)
    page = canvas.finish()
    row = rng.choice(rows)
    column = rng.randrange(1, columns)
    line = rng.randrange(len(rows))
    short = (
        Answer(f"{header[column]} of {row[0]} is ").show(row[column]).say(".").turn(
            f"What is {header[column]} of {row[0]}?"
        ),
        _row_turn(rows[line], f"Read row {line + 1} of the table."),
        _row_turn(row, f"Read the row of {row[0]}."),
        _column_turn([row[0] for row in rows], f"List the column {first}."),
        _column_turn([row[column] for row in rows], f"List the column {header[column]}."),
        Answer("The table has ").show(str(len(rows)), fact=False).say(" rows.").turn(
            "How many rows are there?"
        ),
    )  # fmt: skip
    long = (
        _markdown(rng.choice(_MARKDOWN_QUESTIONS), header, rows),
        _rows(rng.choice(_ROWS_QUESTIONS), header, rows),
    )
    return Subject(page, long, short)


def _small(rng: random.Random) -> str:
    return str(rng.randint(10, 99))


def _large(rng: random.Random) -> str:
    return str(rng.randint(100, 999))


def _decimal(rng: random.Random) -> str:
    return f"{rng.randint(1, 9)}.{rng.randint(0, 9)}"


def _month(rng: random.Random) -> str:
    return rng.choice(lexicon.MONTHS)


def _draw(canvas: Canvas, header: list[str], rows: list[list[str]]) -> None:
    rng = canvas.rng
    starts = _STARTS[len(header)]
    gap = rng.choice((0, 1))
    top = rng.randint(0, 11 - len(rows) - gap)
    ink = canvas.invert_row(top) if rng.random() < 0.5 else None
    rule, bold = canvas.tint(), rng.random() < 0.3
    if gap:
        canvas.rect(0, top * 16 + 22, SIDE, top * 16 + 24, rule)
    if rng.random() < 0.4:
        for start in starts[1:]:
            canvas.rect(
                start * 8 - 6, top * 16, start * 8 - 5, (top + 1 + gap + len(rows)) * 16, rule
            )
    for start, title in zip(starts, header, strict=True):
        canvas.text(top, start, title, bold=True, ink=ink)
    for index, row in enumerate(rows, start=top + 1 + gap):
        for start, cell in zip(starts, row, strict=True):
            canvas.text(index, start, cell, bold=bold)


def _markdown(question: str, header: list[str], rows: list[list[str]]) -> Turn:
    answer = Answer("|")
    for title in header:
        answer.say(" ").show(title, fact=False).say(" |")
    answer.say("\n|" + "---|" * len(header))
    for row in rows:
        answer.say("\n|")
        for cell in row:
            answer.say(" ").show(cell).say(" |")
    return answer.turn(question)


def _rows(question: str, header: list[str], rows: list[list[str]]) -> Turn:
    answer = Answer()
    for index, row in enumerate(rows):
        answer.say(" " if index else "").show(row[0]).say(": ")
        for column, (title, cell) in enumerate(zip(header[1:], row[1:], strict=True)):
            answer.say(", " if column else "").show(title, fact=False).say(" ").show(cell)
        answer.say(".")
    return answer.turn(question)


def _row_turn(row: list[str], question: str) -> Turn:
    answer = Answer("|")
    for cell in row:
        answer.say(" ").show(cell).say(" |")
    return answer.turn(question)


def _column_turn(cells: list[str], question: str) -> Turn:
    answer = Answer()
    for index, cell in enumerate(cells):
        answer.say(", " if index else "").show(cell)
    return answer.say(".").turn(question)
