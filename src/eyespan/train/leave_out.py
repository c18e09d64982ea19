"""What a capture must not learn from, because something is measured on it.

Benchmark pictures are often in training mixes; FOVEA's authors leave such conversations out by id
and picture hash. Here the inputs that a benchmark run chose (`inputs/` in its folder) are named,
and a conversation that shows one of their pictures is left out. Ids count for LLaVA-665K alone,
whose hold-out goes by them: those of other sets are often plain numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from eyespan.bench.datasets.public import is_held_out
from eyespan.bench.datasets.record import image_hash
from eyespan.errors import InputError
from eyespan.train.conversations import Conversation

LLAVA = "llava_665k"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Pictures and ids that are for measuring.

    Attributes:
        pictures: hashes of pixels, and the set that each belongs to.
        llava: whether ids of LLaVA-665K's held-out hundredth count too.
    """

    pictures: dict[str, str]
    llava: bool

    def check(self, asked: Conversation) -> None:
        """Refuse a conversation that something is measured on.

        Raises:
            InputError: it shares a picture or is held out; or a picture cannot be opened.
        """
        held = self.llava and is_held_out(asked.id)
        images = asked.images if self.pictures else ()
        shared = next((at for at in map(image_hash, images) if at in self.pictures), None)
        if not held and shared is None:
            return
        where = f"{LLAVA}'s hold-out" if shared is None else f"'{self.pictures[shared]}'"
        raise InputError(
            f"conversation '{asked.id}'",
            found=f"it is measured on, in {where}",
            needed="what is measured on is not learned from (data.leave_out)",
            todo="It is left out.",
        )

    def digest(self) -> str:
        """Short name of the whole, for manifests."""
        text = json.dumps([sorted(self.pictures), self.llava])
        return sha256(text.encode()).hexdigest()[:16]


def read_left_out(names: Sequence[str]) -> LeftOut:
    """What `data.leave_out` names.

    Args:
        names: "llava_665k", or folders of benchmark runs, their `inputs` folders or single files of
            these.

    Raises:
        InputError: no such place, or files of another kind.
    """
    pictures: dict[str, str] = {}
    for name in names:
        if name != LLAVA:
            for file in _files(Path(name)):
                dataset, inputs = _inputs(file)
                pictures |= {shown: dataset for one in inputs for shown in one["images"]}
    return LeftOut(pictures, LLAVA in names)


def _files(place: Path) -> list[Path]:
    """Lists of chosen inputs at a place; of several runs in one folder, those of all."""
    found = [place] if place.is_file() else sorted(place.glob("*.json"))
    if place.is_dir() and place.name != "inputs":
        found = sorted(place.rglob("inputs/*.json"))
    if not found:
        raise _unusable(place, "no list of inputs there")
    return found


def _inputs(file: Path) -> tuple[str, list[dict[str, Any]]]:
    try:
        held = json.loads(file.read_text("utf-8"))
        inputs = [*held["inputs"], *held["warm_up"]]
        if not all(isinstance(shown, str) for one in inputs for shown in one["images"]):
            raise ValueError("hashes that are no text")
        return str(held["dataset"]), inputs
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unusable(file, f"no list of a run's inputs ({error})") from error


def _unusable(place: Path, found: str) -> InputError:
    return InputError(
        f"data.leave_out = '{place}'",
        found=found,
        needed="the folder of an `eyespan bench run`, or its inputs folder, is needed",
        todo=f"Start that run once: it chooses its inputs first. Or write '{LLAVA}'.",
    )
