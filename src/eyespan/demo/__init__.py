"""The demo: a small real vision-language model, its pictures and the generator that made them.

Importing this package loads neither torch nor transformers.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eyespan.demo.generator import held_out
from eyespan.demo.samples import KINDS, Kind, Sample, Turn, facts_right

MODEL_DIR: Final = Path(__file__).parent / "model"
IMAGES_DIR: Final = Path(__file__).parent / "images"


@dataclass(frozen=True, slots=True)
class Showcase:
    """One shipped picture with a question and the true answer."""

    path: Path
    kind: Kind
    question: str
    answer: str


def showcase() -> list[Showcase]:
    """The shipped pictures, two of each kind, in a fixed order; `images/showcase.json` describes
    them.
    """
    records = json.loads((IMAGES_DIR / "showcase.json").read_text(encoding="utf-8"))
    return [
        Showcase(IMAGES_DIR / record["file"], record["kind"], record["question"], record["answer"])
        for record in records
    ]


__all__ = [
    "IMAGES_DIR",
    "KINDS",
    "MODEL_DIR",
    "Kind",
    "Sample",
    "Showcase",
    "Turn",
    "facts_right",
    "held_out",
    "showcase",
]
