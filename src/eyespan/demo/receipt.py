"""Till receipts: shop, date, counted goods with prices, total."""

import random
from typing import Final

from eyespan.demo import lexicon
from eyespan.demo.canvas import COLS, Canvas
from eyespan.demo.samples import Answer, Subject, Turn

_JSON_QUESTIONS: Final = (
    "Turn this receipt into JSON.", "Extract the receipt as JSON.",
    "Give all fields of the receipt as JSON.",
    "Read the receipt and answer in JSON.",
)  # fmt: skip
_LIST_QUESTIONS: Final = ("List what was bought and the total.", "What does this receipt say?")


def make(rng: random.Random) -> Subject:
    """Draw one receipt with random shop, goods, counts and prices."""
    canvas = Canvas(rng)
    shop = f"{rng.choice(lexicon.SHOP_NAMES)} {rng.choice(lexicon.SHOP_TYPES)}"
    date = f"{rng.randint(1, 28)} {rng.choice(lexicon.MONTHS)} {rng.randint(2010, 2039)}"
    names = rng.sample(lexicon.GOODS, rng.randint(3, 6))
    counts = [rng.randint(1, 9) for _ in names]
    cents = [rng.randint(100, 9999) for _ in names]
    prices = [f"{value // 100}.{value % 100:02d}" for value in cents]
    total = f"{sum(cents) // 100}.{sum(cents) % 100:02d}"
    _draw(canvas, shop, date, list(zip(counts, names, prices, strict=True)), total)
    page = canvas.finish()
    long = (
        _json(rng.choice(_JSON_QUESTIONS), shop, date, names, counts, prices, total),
        _list(rng.choice(_LIST_QUESTIONS), shop, date, names, counts, prices, total),
    )
    pick = rng.randrange(len(names))
    dearest = max(range(len(names)), key=cents.__getitem__)
    short = (
        Answer("The total is ")
        .show(total)
        .say(".")
        .turn(rng.choice(("What is the total?", "How much was paid?"))),
        Answer(f"The {names[pick]} costs ")
        .show(prices[pick])
        .say(".")
        .turn(f"What does the {names[pick]} cost?"),
        Answer("It was bought at ").show(shop).say(".").turn("Which shop is it?"),
        Answer("The date is ").show(date).say(".").turn("What is the date?"),
        Answer()
        .show(names[dearest])
        .say(" costs most, ")
        .show(prices[dearest])
        .say(".")
        .turn("What costs most?"),
        Answer()
        .show(str(counts[pick]), fact=False)
        .say(f" {names[pick]}.")
        .turn(f"How many {names[pick]}?"),
        _names(names),
    )
    return Subject(page, long, short)


def _draw(
    canvas: Canvas, shop: str, date: str, items: list[tuple[int, str, str]], total: str
) -> None:
    rng = canvas.rng
    ink = canvas.invert_row(0) if rng.random() < 0.3 else None
    canvas.text(
        0, 2 * rng.randint(0, (COLS - len(shop)) // 2), shop, bold=rng.random() < 0.6, ink=ink
    )
    canvas.text(1, 2 * rng.randint(0, (COLS - len(date)) // 2), date)
    first = rng.randint(2, 10 - len(items))
    bold = rng.random() < 0.3
    indent = rng.choice((0, 2))
    for row, (count, name, price) in enumerate(items, start=first):
        canvas.text(row, indent, str(count), bold=bold)
        canvas.text(row, indent + 2, name, bold=bold)
        canvas.text(row, COLS - len(price), price, bold=bold)
    last = first + len(items)
    if rng.random() < 0.5:
        canvas.rect(0, last * 16 + 6, COLS * 8, last * 16 + 8, canvas.tint())
        last += 1
    canvas.text(min(last, 11), 2, "Total", bold=True)
    canvas.text(min(last, 11), COLS - len(total), total, bold=True)


def _json(
    question: str,
    shop: str,
    date: str,
    names: list[str],
    counts: list[int],
    prices: list[str],
    total: str,
) -> Turn:
    answer = Answer('{"shop": "').show(shop).say('", "date": "').show(date).say('", "items": [')
    for index, (name, count, price) in enumerate(zip(names, counts, prices, strict=True)):
        answer.say(', {"name": "' if index else '{"name": "').show(name)
        answer.say('", "count": ').show(str(count), fact=False).say(', "price": ').show(price).say(
            "}"
        )
    return answer.say('], "total": ').show(total).say("}").turn(question)


def _list(
    question: str,
    shop: str,
    date: str,
    names: list[str],
    counts: list[int],
    prices: list[str],
    total: str,
) -> Turn:
    answer = Answer().show(shop).say(" on ").show(date).say(" sold ")
    for index, (name, count, price) in enumerate(zip(names, counts, prices, strict=True)):
        answer.say(", " if index else "").show(str(count), fact=False).say(" ").show(name).say(
            " for "
        ).show(price)
    return answer.say(". The total is ").show(total).say(".").turn(question)


def _names(names: list[str]) -> Turn:
    answer = Answer()
    for index, name in enumerate(names):
        answer.say(", " if index else "").show(name)
    return answer.say(".").turn("Name the goods.")
