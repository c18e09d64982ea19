"""A drafter's memory as a folder on disk, bound to the target whose words it holds.

Written as an artifact (`artifacts.py`): all or nothing, so that what was there before survives a
crash, and checked whole before anything of it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyespan.artifacts import MANIFEST, read_about, read_artifact, unusable, write_artifact
from eyespan.drafters.base import Drafter, Remembers
from eyespan.errors import InputError, UnsupportedRequest
from eyespan.memory import Memory
from eyespan.target.identity import differs

KIND = "draft memory"
LARGEST = 1 << 30
"""Bytes of arrays that are read."""


def save_memory(
    path: str | os.PathLike[str], drafter: Drafter, scope: str | None, target: Mapping[str, Any]
) -> None:
    """Write what a drafter remembers of one scope.

    Args:
        path: the memory's folder; made when missing, replaced when it is one.
        drafter: whose memory.
        scope: which of its scopes.
        target: what `identity_of` says of the target.

    Raises:
        UnsupportedRequest: the drafter keeps nothing between requests.
        InputError: the scope holds nothing yet, or the folder holds something else.
        OutputError: the folder cannot be written; a memory that was there is unharmed.
    """
    memory = remembers(drafter).export_memory(scope)
    if memory is None:
        raise InputError(
            f"saving the memory of scope {scope!r}",
            found=f"'{drafter.name}' remembers nothing of it",
            needed="a scope that has served a request, under settings that keep what it learned",
            todo="Run a request first.",
        )
    check_place(path)
    write_artifact(
        path,
        kind=KIND,
        about={"target": dict(target), "memory": memory.kind, "settings": dict(memory.settings)},
        tensors=memory.tensors,
    )


def load_memory(
    path: str | os.PathLike[str], drafter: Drafter, scope: str | None, target: Mapping[str, Any]
) -> None:
    """Replace what a drafter remembers of one scope by a saved memory.

    Args:
        path: the memory's folder.
        drafter: which takes it.
        scope: where it goes.
        target: what `identity_of` says of the target.

    Raises:
        UnsupportedRequest: the drafter keeps nothing between requests.
        InputError: damaged, too large, of another target, or written under settings that do not
            fit; what the drafter remembers is then as it was.
    """
    reader = remembers(drafter)
    about = read_about(path, kind=KIND)
    if (found := differs(target, about.get("target"))) is not None:
        raise InputError(
            f"reading a memory from '{path}'",
            found=f"it was learned from another target: {found}",
            needed=f"a memory of '{target['name']}' is needed",
            todo="Load the model that it was saved with, or begin another memory.",
        )
    saved = read_artifact(path, kind=KIND, most_bytes=LARGEST)
    kind, settings = about.get("memory"), about.get("settings")
    if not isinstance(kind, str) or not isinstance(settings, Mapping):
        raise unusable(path, KIND, f"a {MANIFEST} that does not say what it holds")
    try:
        reader.import_memory(scope, Memory(kind, settings, saved.tensors))
    except (KeyError, TypeError, ValueError) as error:
        raise unusable(path, KIND, f"nothing that '{drafter.name}' can use: {error}") from error


def check_place(path: str | os.PathLike[str]) -> bool:
    """Whether a memory is there; refuses a folder with something else in it.

    Raises:
        InputError: a file, a folder of another kind, or a damaged memory.
    """
    folder = Path(path)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    read_about(folder, kind=KIND)
    return True


def remembers(drafter: Drafter) -> Remembers:
    """The drafter as one that keeps a memory.

    Raises:
        UnsupportedRequest: it keeps nothing between requests.
    """
    if isinstance(drafter, Remembers):
        return drafter
    raise UnsupportedRequest(
        f"a saved memory for the drafter '{drafter.name}'",
        found="it keeps nothing between requests",
        needed="a drafter with a memory is needed: recap, token_recycling, suffix, lookahead, "
        "stand, or one that wraps them",
        todo="Choose one of these, or leave the memory out.",
    )
