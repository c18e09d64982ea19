"""Captured sequences on disk: a folder with `manifest.json`, which says whose states these are and
what they mean, and `shard-00000.safetensors` and so on.

The manifest is the plan of the whole capture and is the same whichever rank writes it. A shard
appears under its name only when it is whole, so an interrupted capture goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eyespan.artifacts import MANIFEST, swap_in
from eyespan.errors import InputError, unwritable
from eyespan.target.weights import STATE_MEANING
from eyespan.train.teacher import SUPERVISE_MEANING, Lesson

KIND: Final = "training artifacts"
FORMAT: Final = 1
_HEADER: Final = "eyespan"
DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One captured sequence, as a shard's header lists it.

    Attributes:
        id: of the conversation.
        length: tokens.
        supervised: positions that a head learns from.
        visual: projected visual tokens.
        shard, place: where it lies.
    """

    id: str
    length: int
    supervised: int
    visual: int
    shard: int
    place: int


def shard_file(folder: Path, shard: int) -> Path:
    """Path of a shard."""
    return folder / f"shard-{shard:05d}.safetensors"


def plan_digest(about: Mapping[str, Any]) -> str:
    """What ties a shard to its manifest."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, about: Mapping[str, Any]) -> str:
    """Write the plan of a capture, or find the same one there.

    Args:
        folder: made when missing.
        about: JSON-ready facts: the target, what the states mean, the data.

    Returns:
        The plan's digest.

    Raises:
        InputError: the folder holds another capture.
        OutputError: it cannot be written.
    """
    digest = plan_digest(about)
    if (folder / MANIFEST).exists():
        found = _manifest(folder)
        if found["plan"] != digest:
            other = sorted(key for key in about if found["about"].get(key) != about[key])
            raise InputError(
                f"capturing into '{folder}'",
                found=f"another capture there; it differs in {', '.join(other) or 'its plan'}",
                needed="an empty folder or the same capture, which goes on, is needed",
                todo="Change store.out, or remove that folder.",
            )
        return digest
    manifest = {"format": FORMAT, "kind": KIND, "plan": digest, "about": dict(about)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        swap_in(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    except OSError as error:
        raise unwritable(f"manifest in '{folder}'", error) from error
    return digest


def read_about(folder: Path) -> Mapping[str, Any]:
    """The facts of a capture, once it is certain that its states mean what this version takes them
    for.

    Raises:
        InputError: no capture, another format, or another meaning of states.
    """
    about: Mapping[str, Any] = _manifest(folder)["about"]
    for key, needed in (("state_meaning", STATE_MEANING), ("supervise_meaning", SUPERVISE_MEANING)):
        if about.get(key) != needed:
            raise InputError(
                f"training on '{folder}'",
                found=f"{key} is {about.get(key)!r}",
                needed=f"{needed!r} is what heads are fed in decoding",
                todo="Capture again with this version.",
            )
    return about


def is_whole(folder: Path, shard: int, plan: str) -> bool:
    """Whether a shard is there and belongs to the plan."""
    try:
        with safe_open(shard_file(folder, shard), "pt") as file:
            return bool(_header(file)["plan"] == plan)
    except (OSError, SafetensorError, KeyError, ValueError):
        return False


def write_shard(
    folder: Path,
    shard: int,
    *,
    plan: str,
    lessons: Sequence[tuple[str, Lesson]],
    skipped: Mapping[str, str],
    dtype: torch.dtype,
) -> None:
    """Write one shard under its name, all or nothing.

    Args:
        folder: of the capture.
        shard: its number.
        plan: digest of the manifest.
        lessons: conversation ids and what was captured.
        skipped: conversation ids left out, with the reason.
        dtype: of states; logits stay float32.

    Raises:
        OutputError: it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    entries = []
    for place, (name, lesson) in enumerate(lessons):
        tensors |= {f"{place}.{key}": value for key, value in _tensors(lesson, dtype).items()}
        entries.append(
            {
                "id": name,
                "length": len(lesson.input_ids),
                "supervised": int(lesson.supervise.sum()),
                "visual": len(lesson.visual),
            }
        )
    # one key only: safetensors writes several in any order, and equal shards should be equal files
    header = {_HEADER: json.dumps({"plan": plan, "entries": entries, "skipped": dict(skipped)})}
    file = shard_file(folder, shard)
    try:
        swap_in(file, save(tensors or {"empty": torch.zeros(0)}, header))
    except OSError as error:
        raise unwritable(f"shard '{file}'", error) from error


def read_entries(folder: Path, shards: int) -> list[Entry]:
    """What all shards hold, in order.

    Raises:
        InputError: a shard is missing, damaged or from another capture.
    """
    plan, entries = str(_manifest(folder)["plan"]), []
    for shard in range(shards):
        if not is_whole(folder, shard, plan):
            raise InputError(
                f"training on '{folder}'",
                found=f"shard {shard} of {shards} is missing or from another capture",
                needed="all of them are needed",
                todo="Run `eyespan train capture` again with the same file; it goes on.",
            )
        with safe_open(shard_file(folder, shard), "pt") as file:
            listed = _header(file)["entries"]
        entries += [Entry(**one, shard=shard, place=place) for place, one in enumerate(listed)]
    return entries


def read_lesson(folder: Path, entry: Entry) -> dict[str, Tensor]:
    """The tensors of one sequence by field name; layers as `layer.<index>`."""
    prefix = f"{entry.place}."
    with safe_open(shard_file(folder, entry.shard), "pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def bytes_per_sequence(
    *, length: int, supervised: int, visual: int, width: int, layers: int, mid: bool, top: int,
    dtype: torch.dtype,
) -> int:  # fmt: skip
    """Size of one captured sequence on disk.

    Args:
        length: tokens.
        supervised: positions that a head learns from.
        visual: projected visual tokens.
        width: of a state.
        layers: states of how many layers besides the final one.
        mid: whether there are intermediate targets.
        top: predictions at a supervised position.
        dtype: of states.
    """
    states = length * (1 + layers) + supervised * mid + visual
    return states * width * dtype.itemsize + supervised * (8 * top + 4) + length * 6


def _tensors(lesson: Lesson, dtype: torch.dtype) -> dict[str, Tensor]:
    states = {"final": lesson.final, "visual": lesson.visual}
    states |= {f"layer.{layer}": state for layer, state in lesson.layers.items()}
    if lesson.mid is not None:
        states["mid"] = lesson.mid
    tensors = {name: torch.from_numpy(state).to(dtype) for name, state in states.items()}
    for name in ("input_ids", "top_ids", "top_logits", "log_sum_exp", "supervise", "media"):
        tensors[name] = torch.from_numpy(getattr(lesson, name))
    return tensors


def _header(file: Any) -> dict[str, Any]:
    """What a shard says of itself."""
    found: dict[str, Any] = json.loads((file.metadata() or {})[_HEADER])
    return found


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text("utf-8"))
        if (
            found["kind"] != KIND
            or found["format"] != FORMAT
            or not isinstance(found["about"], dict)
        ):
            raise ValueError(f"a {found['kind']!r} in format {found['format']!r}")
        if found["plan"] != plan_digest(found["about"]):
            raise ValueError("facts that were changed after the capture")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"training artifacts in '{folder}'",
            found=f"no usable {MANIFEST} ({error})",
            needed="a folder written by `eyespan train capture` is needed",
            todo="Capture first, or point data.artifacts to another folder.",
        ) from None
    manifest: dict[str, Any] = found
    return manifest
