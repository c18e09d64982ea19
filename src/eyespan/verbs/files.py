"""Files that verbs read and write: pictures by folder or pattern, and outputs that are checked
before a model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path

from eyespan.errors import InputError, OutputError

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


def pictures_of(pattern: str) -> list[Path]:
    """The pictures of a folder (by file ending, not below it) or the files of a glob, sorted.

    Raises:
        InputError: there are none.
    """
    folder = Path(pattern)
    if folder.is_dir():
        found = [file for file in folder.iterdir() if file.suffix.lower() in PICTURES]
    else:
        found = [Path(name) for name in glob(pattern, recursive=True)]
    files = sorted(file for file in found if file.is_file())
    if not files:
        missing = not folder.exists() and not has_magic(pattern)
        raise InputError(
            f"--images {pattern}",
            found="no such folder or file" if missing else "no picture there",
            needed="a folder with pictures or a quoted pattern such as 'scans/*.png' is needed",
            todo="Check the path.",
        )
    return files


def name_of(picture: Path) -> str:
    """A picture's path as JSON can hold it: bytes that are no text become replacement marks."""
    return os.fsencode(picture).decode(errors="replace")


def check_writable(file: Path | None, what: str) -> None:
    """Make sure that a file can be written later; what it holds now stays.

    Args:
        file: None is fine.
        what: its role, for the message.

    Raises:
        OutputError: it cannot.
    """
    if file is None:
        return
    existed = file.exists()
    with writing(file, what):
        with file.open("a", encoding="utf-8"):
            pass
        if not existed:
            file.unlink()


@contextmanager
def writing(file: Path, what: str) -> Iterator[None]:
    """Turn the system's errors about a file into ours.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{what} {file}",
            found=error.strerror or str(error),
            needed="a place that can be written is needed",
            todo="Create its folder, make room, or choose another path.",
        ) from error


def drop_half_line(file: Path) -> None:
    """Cut off an unfinished last line, as an interrupted writer leaves it.

    Raises:
        OutputError: the file cannot be changed.
    """
    if not file.exists():
        return
    with writing(file, "trace file"), file.open("r+b") as lines:
        lines.truncate(lines.read().rfind(b"\n") + 1)
