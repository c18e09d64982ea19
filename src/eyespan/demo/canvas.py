"""A 192 x 192 page of 24 x 12 character cells, and what was drawn on it.

A cell is 8 x 16 pixels, so a 16 x 16 patch of the vision tower holds exactly two characters. All
drawing is integer arithmetic on a committed glyph atlas and `random.Random`, so a seed gives the
same bytes on every machine.
"""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CELL_W: Final = 8  # pixels
CELL_H: Final = 16
COLS: Final = 24
ROWS: Final = 12
SIDE: Final = COLS * CELL_W
CHARS: Final = "".join(chr(code) for code in range(32, 127))
ATLAS_PATH: Final = Path(__file__).with_name("glyphs.png")

Color = tuple[int, int, int]


@cache
def glyph_atlas() -> NDArray[np.uint8]:
    """Ink coverage 0-255 of every glyph: [weight 2, character 95, CELL_H, CELL_W]."""
    with Image.open(ATLAS_PATH) as picture:
        flat = np.asarray(picture.convert("L"), dtype=np.uint8)
    return flat.reshape(2, CELL_H, len(CHARS), CELL_W).transpose(0, 2, 1, 3).copy()


@dataclass(frozen=True, slots=True)
class TextRun:
    """One string as drawn: the cell of its first character and its text."""

    row: int
    col: int
    text: str


@dataclass(frozen=True, slots=True)
class Shape:
    """One coloured shape: its place 0-8 in reading order, its words and its box in pixels (x0, y0,
    x1, y1).
    """

    place: int
    size: str
    color: str
    shape: str
    box: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Page:
    """A finished picture and its ground truth, from which dense labels are made in training."""

    image: Image.Image
    runs: tuple[TextRun, ...]
    shapes: tuple[Shape, ...]


class Canvas:
    """Draws one page; the constructor picks paper and ink with enough contrast to read."""

    def __init__(self, rng: random.Random, *, light_paper: bool = False) -> None:
        self.rng = rng
        dark = not light_paper and rng.random() < 0.25
        bright = tuple(rng.randint(195, 255) for _ in range(3))
        deep = tuple(rng.randint(0, 90) for _ in range(3))
        self.paper: Color = deep if dark else bright  # type: ignore[assignment]
        self.ink: Color = bright if dark else deep  # type: ignore[assignment]
        self.pixels: NDArray[np.int32] = np.empty((SIDE, SIDE, 3), dtype=np.int32)
        self.pixels[:] = self.paper
        self._runs: list[TextRun] = []
        self._shapes: list[Shape] = []

    def text(
        self, row: int, col: int, text: str, *, bold: bool = False, ink: Color | None = None
    ) -> None:
        """Draw `text` over what is there; raises ValueError if it does not fit on the page."""
        if not (0 <= row < ROWS and col >= 0 and col + len(text) <= COLS):
            raise ValueError(
                f"asked to draw {text!r} at row {row}, column {col}; "
                f"the page has {ROWS} rows of {COLS} cells; "
                "needed: the whole text inside; shorten it or move it left"
            )
        atlas = glyph_atlas()[int(bold)]
        color = np.array(self.ink if ink is None else ink, dtype=np.int32)
        strip = np.concatenate([atlas[ord(char) - 32] for char in text], axis=1).astype(np.int32)[
            :, :, None
        ]
        y, x = row * CELL_H, col * CELL_W
        area = self.pixels[y : y + CELL_H, x : x + strip.shape[1]]
        area[:] = (area * (255 - strip) + color * strip + 127) // 255
        self._runs.append(TextRun(row, col, text))

    def rect(self, x0: int, y0: int, x1: int, y1: int, color: Color) -> None:
        """Fill the half-open pixel box."""
        self.pixels[y0:y1, x0:x1] = color

    def mask(self, x0: int, y0: int, mask: NDArray[np.bool_], color: Color) -> None:
        """Colour the True pixels of `mask`, whose corner lies at (x0, y0)."""
        area = self.pixels[y0 : y0 + mask.shape[0], x0 : x0 + mask.shape[1]]
        area[mask] = color

    def record(self, shape: Shape) -> None:
        """Note a shape that was drawn."""
        self._shapes.append(shape)

    def invert_row(self, row: int) -> Color:
        """Paint a row in the ink colour, for a header; gives the colour to write on it with."""
        self.rect(0, row * CELL_H, SIDE, (row + 1) * CELL_H, self.ink)
        return self.paper

    def tint(self) -> Color:
        """A random middle colour that text of either ink is not drawn on: for bars and rules."""
        return (self.rng.randint(60, 200), self.rng.randint(60, 200), self.rng.randint(60, 200))

    def finish(self) -> Page:
        """Add a little sensor noise (at most 8 of 255) and close the page."""
        span = self.rng.randint(1, 8)
        noise = np.frombuffer(self.rng.randbytes(SIDE * SIDE), dtype=np.uint8).reshape(
            SIDE, SIDE, 1
        )
        grain = noise.astype(np.int32) * (2 * span + 1) // 256 - span
        pixels = np.clip(self.pixels + grain, 0, 255).astype(np.uint8)
        runs = sorted(self._runs, key=lambda run: (run.row, run.col))
        return Page(Image.fromarray(pixels, "RGB"), tuple(runs), tuple(self._shapes))
