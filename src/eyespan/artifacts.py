"""What eyespan keeps on disk: trained drafters and saved memories. An artifact is a folder with a
`manifest.json` (what this is and what it fits) and one safetensors file that the manifest names by
its content. Everything is checked before it is used; nothing is ever unpickled.

A write is all or nothing: the tensors go to a new file first, then the manifest is swapped in, so
that a crash leaves the artifact that was there before.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from eyespan.errors import InputError, OutputError

FORMAT = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 20

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A checked artifact.

    Attributes:
        about: what its writer recorded: what it is for, shapes, settings.
        tensors: arrays by name.
    """

    about: Mapping[str, Any]
    tensors: Tensors


def write_artifact(
    path: str | os.PathLike[str], *, kind: str, about: Mapping[str, Any], tensors: Tensors
) -> None:
    """Write or replace an artifact.

    Args:
        path: its folder; made when missing.
        kind: what it is; `read_artifact` asks for the same.
        about: JSON-ready facts that a reader must check before use.
        tensors: arrays by name.

    Raises:
        OutputError: the folder cannot be written; an artifact that was there is unharmed.
    """
    folder = Path(path)
    blob = save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    digest = hashlib.sha256(blob).hexdigest()
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "file": f"tensors-{digest[:16]}.safetensors",
        "sha256": digest,
        "about": dict(about),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        swap_in(folder / str(manifest["file"]), blob)
        swap_in(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        for old in folder.glob("tensors-*.safetensors"):
            if old.name != manifest["file"]:
                old.unlink()
    except OSError as error:
        raise OutputError(
            f"writing a {kind} to '{folder}'",
            found=str(error),
            needed="a folder that can be written is needed",
            todo="Choose another folder or make room.",
        ) from error


def read_artifact(
    path: str | os.PathLike[str], *, kind: str, most_bytes: int | None = None
) -> Artifact:
    """Read an artifact and check that it is whole.

    Args:
        path: its folder.
        kind: what it must be.
        most_bytes: largest tensor file that is read.

    Raises:
        InputError: no artifact, one of another kind or format, a damaged one or one too large.
    """
    folder = Path(path)
    manifest = _read_manifest(folder, kind)
    name, digest = manifest.get("file"), manifest.get("sha256")
    if not isinstance(name, str) or Path(name).name != name:
        raise unusable(folder, kind, "a manifest that names no tensor file beside it")
    try:
        size = (folder / name).stat().st_size
        if most_bytes is not None and size > most_bytes:
            raise unusable(folder, kind, f"{size:,} bytes of tensors, more than {most_bytes:,}")
        blob = (folder / name).read_bytes()
    except OSError as error:
        raise unusable(folder, kind, f"no readable tensor file ({error})") from error
    if hashlib.sha256(blob).hexdigest() != digest:
        raise unusable(folder, kind, f"'{name}' with another content than when it was saved")
    try:
        tensors = load(blob)
    except (SafetensorError, ValueError, KeyError) as error:
        raise unusable(folder, kind, f"'{name}' is not safetensors ({error})") from error
    return Artifact(manifest["about"], tensors)


def read_about(path: str | os.PathLike[str], *, kind: str) -> Mapping[str, Any]:
    """Read what an artifact's writer recorded, without its tensors.

    Args:
        path: its folder.
        kind: what it must be.

    Raises:
        InputError: no artifact, or one of another kind or format.
    """
    about: Mapping[str, Any] = _read_manifest(Path(path), kind)["about"]
    return about


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        if file.stat().st_size > LARGEST_MANIFEST:
            raise unusable(folder, kind, f"a {MANIFEST} of more than {LARGEST_MANIFEST} bytes")
        manifest = json.loads(file.read_text("utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise unusable(folder, kind, f"no readable {MANIFEST} ({error})") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("about"), dict):
        raise unusable(folder, kind, f"a {MANIFEST} of another shape")
    if manifest.get("format") != FORMAT or manifest.get("kind") != kind:
        raise InputError(
            f"reading a {kind} from '{folder}'",
            found=f"a {manifest.get('kind')!r} in format {manifest.get('format')!r}",
            needed=f"'{kind}' in format {FORMAT} is needed",
            todo="Point to another folder, or save it again with this version.",
        )
    return manifest


def unusable(folder: str | os.PathLike[str], kind: str, found: str) -> InputError:
    """The error for an artifact that cannot be used, with nothing changed by the attempt."""
    return InputError(
        f"reading a {kind} from '{folder}'",
        found=found,
        needed=f"a folder written by eyespan, with {MANIFEST} and its tensor file, is needed",
        todo="Save it again or point to another folder; nothing was changed.",
    )


def swap_in(file: Path, content: bytes) -> None:
    """Write a file so that its name never stands for half of it."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
