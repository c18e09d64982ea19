"""Scenes of coloured shapes on a 3 x 3 board of 64-pixel places."""

import random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from eyespan.demo import lexicon
from eyespan.demo.canvas import Canvas, Color, Shape
from eyespan.demo.samples import Answer, Subject, Turn

_DESCRIBE_QUESTIONS: Final = (
    "Describe the picture.",
    "What is in the picture?",
    "Tell me what you see.",
)
_LIST_QUESTIONS: Final = ("List the shapes.", "Which shapes are there, and where?")
_JSON_QUESTIONS: Final = ("Give the shapes as JSON.",)
_PLACE: Final = 64  # pixels a side
_RADIUS: Final = {"small": 11, "large": 24}
_RGB: Final[dict[str, Color]] = {
    "red": (215, 30, 35), "orange": (245, 140, 20), "yellow": (240, 220, 30),
    "green": (30, 150, 60), "blue": (35, 75, 205), "purple": (125, 45, 160),
    "pink": (245, 140, 190), "black": (25, 25, 25),
}  # fmt: skip


def make(rng: random.Random) -> Subject:
    """Draw three to six shapes at random places."""
    canvas = Canvas(rng, light_paper=True)
    shapes: list[Shape] = []
    for place in sorted(rng.sample(range(9), rng.randint(3, 6))):
        shapes.append(_draw(canvas, place))
    page = canvas.finish()
    pick = rng.choice(shapes)
    where_it_is = lexicon.PLACE_NAMES[pick.place]
    color = rng.choice([shape.color for shape in shapes])
    same = [shape for shape in shapes if shape.color == color]
    where = Answer("It is at ").show(where_it_is).say(".").turn(f"Where is the {_name(pick)}?")
    color_turn = (
        Answer("It is ")
        .show(pick.color)
        .say(".")
        .turn(f"What color is the shape at {where_it_is}?")
    )
    short = (
        Answer("A ").show(_name(pick)).say(".").turn(f"What is at {where_it_is}?"),
        Answer("There are ")
        .show(str(len(shapes)), fact=False)
        .say(" shapes.")
        .turn("How many shapes are there?"),
        where if sum(_name(pick) == _name(shape) for shape in shapes) == 1 else color_turn,
        color_turn,
        Answer("There is ")
        .show(str(len(same)), fact=False)
        .say(f" {color}.")
        .turn(f"How many {color} shapes?"),
    )
    long = (
        _describe(rng.choice(_DESCRIBE_QUESTIONS), shapes),
        _list(rng.choice(_LIST_QUESTIONS), shapes),
        _json(rng.choice(_JSON_QUESTIONS), shapes),
    )
    return Subject(page, long, short)


def _name(shape: Shape) -> str:
    return f"{shape.size} {shape.color} {shape.shape}"


def _draw(canvas: Canvas, place: int) -> Shape:
    rng = canvas.rng
    size, color, kind = (
        rng.choice(lexicon.SIZES),
        rng.choice(lexicon.COLORS),
        rng.choice(lexicon.SHAPES),
    )
    radius = _RADIUS[size] + rng.randint(-1, 1)
    slack = 32 - radius - 2
    x = place % 3 * _PLACE + 32 - radius + rng.randint(-min(slack, 5), min(slack, 5))
    y = place // 3 * _PLACE + 32 - radius + rng.randint(-min(slack, 5), min(slack, 5))
    red, green, blue = (min(255, max(0, value + rng.randint(-12, 12))) for value in _RGB[color])
    canvas.mask(x, y, _mask(kind, radius), (red, green, blue))
    shape = Shape(place, size, color, kind, (x, y, x + 2 * radius + 1, y + 2 * radius + 1))
    canvas.record(shape)
    return shape


def _mask(kind: str, radius: int) -> NDArray[np.bool_]:
    """The pixels of a shape, [2 * radius + 1, 2 * radius + 1], in integer arithmetic only."""
    axis = np.arange(-radius, radius + 1)
    dx, dy = axis[None, :], axis[:, None]
    ax, ay = np.abs(dx) + 0 * dy, np.abs(dy) + 0 * dx
    masks: dict[str, NDArray[np.bool_]] = {
        "circle": dx * dx + dy * dy <= radius * radius,
        "square": np.maximum(ax, ay) * 10 <= radius * 9,
        "triangle": 2 * ax <= dy + radius,
        "diamond": ax + ay <= radius,
        "ring": (dx * dx + dy * dy <= radius * radius)
        & (4 * (dx * dx + dy * dy) >= radius * radius),
        "cross": (3 * ax <= radius) | (3 * ay <= radius),
        "bar": 3 * ay + 0 * ax <= radius,
        "frame": (np.maximum(ax, ay) * 10 <= radius * 9) & (np.maximum(ax, ay) * 2 >= radius),
    }
    return masks[kind]


def _describe(question: str, shapes: list[Shape]) -> Turn:
    answer = Answer("There are ").show(str(len(shapes)), fact=False).say(" shapes.")
    for shape in shapes:
        answer.say(" At ").show(lexicon.PLACE_NAMES[shape.place], fact=False).say(" is a ").show(
            _name(shape)
        ).say(".")
    return answer.turn(question)


def _list(question: str, shapes: list[Shape]) -> Turn:
    answer = Answer()
    for shape in shapes:
        answer.say("- ").show(lexicon.PLACE_NAMES[shape.place], fact=False).say(": ").show(
            _name(shape)
        ).say("\n")
    return answer.say("Count: ").show(str(len(shapes)), fact=False).turn(question)


def _json(question: str, shapes: list[Shape]) -> Turn:
    answer = Answer("[")
    for index, shape in enumerate(shapes):
        answer.say(', {"place": "' if index else '{"place": "').show(
            lexicon.PLACE_NAMES[shape.place], fact=False
        )
        answer.say('", "size": "').show(shape.size, fact=False).say('", "color": "').show(
            shape.color, fact=False
        )
        answer.say('", "shape": "').show(shape.shape, fact=False).say('"}')
        answer.fact(f'"size": "{shape.size}", "color": "{shape.color}", "shape": "{shape.shape}"')
    return answer.say("]").turn(question)
