"""Sets that need no download: the demo's held-out pictures, and a user's own folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eyespan.bench.datasets.hub import pictures_of
from eyespan.bench.datasets.record import Record, Source
from eyespan.demo import KINDS
from eyespan.demo.generator import held_out_sample
from eyespan.errors import InputError, unknown_name


def demo_source(kind: str | None) -> Source:
    """The demo's held-out set; samples are drawn on demand, so it never ends.

    Args:
        kind: only samples of this kind ("receipt", ..., "dialog"); None takes all in turn.

    Raises:
        ConfigError: an unknown kind.
    """
    kinds: tuple[str, ...] = KINDS
    if kind is not None and kind not in kinds:
        raise unknown_name("kind of demo picture", kind, kinds)

    def record(row: int) -> Record:
        number = row if kind is None else row * len(kinds) + kinds.index(kind)
        sample = held_out_sample(number)
        return Record(
            id=sample.id,
            images=(sample.image,),
            turns=tuple(turn.question for turn in sample.turns),
            category=sample.kind,
            reference=tuple(turn.answer for turn in sample.turns),
        )

    name = "demo" if kind is None else f"demo:{kind}"
    return Source(name, "held-out samples of the embedded model", None, record, shuffled=False)


QUESTIONS = "questions.jsonl"
_FIELDS = {"id", "images", "turns", "question", "category", "reference"}


def folder_source(path: str) -> Source:
    """A user's inputs: a JSON-lines file, or a folder that holds `questions.jsonl`.

    A line is {"images": ["a.png"], "question": "..."}; "turns" (a list) asks several questions,
    "id", "category" and "reference" may be added. Pictures are found from the file's own folder.

    Raises:
        InputError: no such file, no lines, or a line of another shape.
    """
    where = Path(path).expanduser()
    file = where / QUESTIONS if where.is_dir() else where
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(file, getattr(error, "strerror", None) or str(error)) from error
    rows = [_row(file, at, line) for at, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise _bad(file, "no lines")
    ids = [row["id"] for row in rows]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise _bad(file, f"two lines with the id '{twice}'")

    def record(row: int) -> Record:
        line = rows[row]
        name = f"{file.name} input '{line['id']}'"
        reference = line.get("reference", [])
        return Record(
            id=line["id"],
            images=pictures_of(line["images"], file.parent, name),
            turns=tuple(line["turns"]),
            category=str(line.get("category", "folder")),
            reference=tuple(reference if isinstance(reference, list) else [str(reference)]),
        )

    return Source(f"folder:{path}", str(file), len(rows), record, shuffled=False)


def _row(file: Path, number: int, text: str) -> dict[str, Any]:
    """One line, its shape checked."""
    try:
        line = json.loads(text)
        unknown = set(line) - _FIELDS
        turns = line["turns"] if "turns" in line else [line["question"]]
        images = line.get("images", [])
        texts = [*turns, *images]
        whole = turns and all(isinstance(one, str) for one in texts) and isinstance(images, list)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _bad(file, f"line {number} is something else") from None
    if unknown:
        raise _bad(file, f"line {number} has unknown fields ({', '.join(sorted(unknown))})")
    if not whole:
        raise _bad(file, f"line {number} has questions or pictures that are no lists of text")
    return {**line, "id": str(line.get("id", number)), "turns": turns, "images": images}


def _bad(file: Path, found: str) -> InputError:
    return InputError(
        f"questions {file}",
        found=found,
        needed='JSON lines {"images": ["a.png"], "question": "..."} are needed',
        todo="Correct the file; see the documentation of folder: for all fields.",
    )
