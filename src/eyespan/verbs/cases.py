"""Inputs to compare on: one question, a file of them, or the demo's held-out set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyespan.errors import ConfigError, InputError


@dataclass(frozen=True, slots=True)
class Case:
    """One input to compare on."""

    name: str
    prompt: Any
    images: Sequence[Any]


def cases_of(
    image: list[Path] | None, prompt: str | None, inputs: Path | None, demo: int | None
) -> Iterator[Case]:
    """The inputs that the options name.

    Args:
        image: pictures of one question.
        prompt: that question.
        inputs: a file of JSON lines.
        demo: how many pictures of the demo's held-out set.

    Raises:
        ConfigError: not exactly one kind of input.
        InputError: see `read_cases`.
    """
    ways = (prompt is not None or bool(image), inputs is not None, demo is not None)
    if sum(ways) != 1 or (image and prompt is None):
        raise ConfigError(
            "inputs to verify on",
            found="--image without --prompt" if image and sum(ways) == 1 else _KINDS[sum(ways)],
            needed="one of --prompt (with or without --image), --inputs and --demo is needed",
            todo="Try `eyespan verify --demo 6`.",
        )
    if inputs is not None:
        yield from read_cases(inputs)
    elif demo is not None:
        from eyespan.bench.held_out import asks

        for ask in asks(demo):
            yield Case(ask.name, ask.messages, [ask.image])
    else:
        yield Case("input", prompt, image or [])


_KINDS = ("none", "one", "two kinds at once", "three kinds at once")


def read_cases(file: Path) -> list[Case]:
    """Inputs from JSON lines; picture paths are taken from the file's own folder.

    Raises:
        InputError: no such file, no lines, or one of another shape.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_inputs(file, str(error)) from error
    cases = []
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
            images = [file.parent / name for name in line.get("images", [])]
            if not isinstance(line["prompt"], str) or set(line) - {"prompt", "images"}:
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _bad_inputs(file, f"line {number} is something else") from None
        cases.append(Case(f"line {number}", line["prompt"], images))
    if not cases:
        raise _bad_inputs(file, "no lines")
    return cases


def _bad_inputs(file: Path, found: str) -> InputError:
    return InputError(
        f"inputs {file}",
        found=found,
        needed='JSON lines {"prompt": "...", "images": ["a.png"]} are needed',
        todo="Correct the file.",
    )
