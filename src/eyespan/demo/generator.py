"""Samples by seed: the held-out set behind every figure, and the endless training stream."""

import random
from collections.abc import Callable, Iterator
from typing import Final

from eyespan.demo import chart, lexicon, receipt, scene, table, text
from eyespan.demo.canvas import COLS, ROWS, Canvas, Page
from eyespan.demo.samples import KINDS, Kind, Sample, Subject, Turn

SUBJECTS: Final[dict[Kind, Callable[[random.Random], Subject]]] = {
    "receipt": receipt.make,
    "table": table.make,
    "chart": chart.make,
    "text": text.make,
    "scene": scene.make,
}
HELD_OUT_SEED: Final = 20261130


def held_out(count: int = 240, seed: int = HELD_OUT_SEED) -> Iterator[Sample]:
    """`count` samples that training never draws, the six kinds in turn.

    A dialog has three to five turns about a picture of any of the other kinds; every other sample
    has one turn with a long answer.
    """
    for index in range(count):
        yield held_out_sample(index, seed)


def held_out_sample(index: int, seed: int = HELD_OUT_SEED) -> Sample:
    """Sample `index` of `held_out`."""
    rng = random.Random(f"eyespan-demo/held-out/{seed}/{index}")
    kind = KINDS[index % len(KINDS)]
    names = tuple(SUBJECTS)
    subject = names[index // len(KINDS) % len(names)] if kind == "dialog" else kind
    made = SUBJECTS[subject](rng)
    turns = _dialog(rng, made) if kind == "dialog" else (rng.choice(made.long),)
    return Sample(f"{kind}-{index:04d}", kind, subject, made.page.image, turns, made.page)


def _dialog(rng: random.Random, made: Subject) -> tuple[Turn, ...]:
    """Two to four short questions with one long answer among them."""
    turns = rng.sample(made.short, rng.randint(2, 4))
    turns.insert(rng.randint(0, len(turns)), rng.choice(made.long))
    return tuple(turns)


def word_page(rng: random.Random) -> Page:
    """A page full of random words, all of the lexicon alike: the densest lesson in reading them."""
    words = lexicon.all_words()
    canvas = Canvas(rng)
    for row in range(ROWS):
        line = " " * rng.randint(0, 3)
        while True:
            word = rng.choice(words) + ("." if rng.random() < 0.1 else "")
            if len(line) + len(word) > COLS:
                break
            line += word + " " * rng.choice((1, 1, 1, 2))
        canvas.text(row, 0, line[:COLS].rstrip(), bold=rng.random() < 0.4)
    return canvas.finish()


def training_sample(
    seed: int,
    index: int,
    weights: dict[Kind, float],
    *,
    apart: bool = False,
    word_pages: float = 0.0,
) -> Sample:
    """Sample `index` of a training stream; `weights` gives the share of each kind of picture.

    Several turns share the picture, which is the dear part of a sequence. A dialog has one long
    answer, first in half of them. Turns meant to be asked `apart`, none seeing another, are two
    long ones and up to three short ones. A share of `word_pages` has no question at all.
    """
    rng = random.Random(f"eyespan-demo/train/{seed}/{index}")
    name = f"train-{seed}-{index}"
    if rng.random() < word_pages:
        page = word_page(rng)
        return Sample(name, "text", "text", page.image, (), page)
    subject = rng.choices(list(weights), list(weights.values()))[0]
    made = SUBJECTS[subject](rng)
    if apart:
        turns = rng.sample(made.long, 2) + rng.sample(made.short, rng.randint(2, 3))
    else:
        turns = rng.sample(made.short, rng.randint(1, 3))
        first = rng.random() < 0.5
        turns.insert(0 if first else rng.randint(0, len(turns)), rng.choice(made.long))
    return Sample(name, subject, subject, made.page.image, tuple(turns), made.page)
