"""The one shape that every set of inputs is turned into, and the hash that names a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from PIL import Image

from eyespan.target.images import Picture, open_picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One input: pictures and the questions asked about them, one after another.

    Attributes:
        id: unique within its set.
        images: in the order in which the first question shows them.
        turns: the questions; later ones are asked with the model's own answers as history.
        category: what kind of input it is, for tables by category.
        reference: right answers as the set gives them; never shown to the model.
    """

    id: str
    images: tuple[Picture, ...]
    turns: tuple[str, ...]
    category: str
    reference: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A set of inputs that can be read row by row.

    Attributes:
        name: as runs name it ("chartqa", "demo:receipt").
        origin: where it was read from, for manifests.
        size: rows; None for sets that are made on demand and never end.
        record: a row's input; None for rows that are no input of this set (a video among pictures).
            Raises InputError where the row is broken.
        shuffled: whether a selection is drawn at random; otherwise it is the first rows.
    """

    name: str
    origin: str
    size: int | None
    record: Callable[[int], Record | None]
    shuffled: bool = True


def image_hash(picture: Picture) -> str:
    """16 hexadecimal digits of the pixels, whatever file format holds them.

    Raises:
        InputError: it cannot be opened.
    """
    image = open_picture(picture)
    return _pixel_hash(image)


def _pixel_hash(image: Image.Image) -> str:
    size = f"{image.width}x{image.height}".encode()
    return sha256(size + image.tobytes()).hexdigest()[:16]


def question_message(question: str, images: int) -> Mapping[str, Any]:
    """A user's turn: placeholders of its pictures, then the text."""
    parts: list[dict[str, str]] = [{"type": "image"}] * images
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


def answer_message(answer: str) -> Mapping[str, Any]:
    """A model's turn."""
    return {"role": "assistant", "content": answer}


def cluster_of(hashes: Sequence[str], record_id: str) -> str:
    """Inputs that share their pictures share this name: they are resampled together, as they are
    not independent. Inputs without pictures stand alone.
    """
    return "+".join(hashes) if hashes else f"text:{record_id}"
