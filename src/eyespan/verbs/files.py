"""Files that verbs read and write: pictures by folder or pattern, and outputs that are checked
before a model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path

from eyespan.errors import InputError, OutputError, unwritable

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


def pictures_of(pattern: str) -> list[Path]:
    """The pictures of a folder (by file ending, not below it) or the files of a glob, sorted.

    Raises:
        InputError: there are none.
    """
    if os.path.isdir(pattern):  # os.path: a name that the system refuses is no folder either
        names = [str(Path(pattern) / name) for name in _listing(pattern)]
        names = [name for name in names if Path(name).suffix.lower() in PICTURES]
    else:
        names = glob(pattern, recursive=True)
    files = sorted(Path(name) for name in names if os.path.isfile(name))
    if not files:
        raise _no_pictures(pattern)
    return files


def _no_pictures(pattern: str) -> InputError:
    """Why a folder or pattern names no picture."""
    needed = "a folder with pictures or a quoted pattern such as 'scans/*.png' is needed"
    if has_magic(pattern) and not os.path.isdir(pattern):
        found, todo = "no file of such a name", "Check the pattern; ** reaches folders below."
    elif not os.path.isdir(pattern):
        found, todo = "no such folder or file", "Check the path."
    else:
        others = len(_listing(pattern))
        found = (
            f"a folder without pictures ({others} other names in it)"
            if others
            else ("an empty folder")
        )
        needed = f"files that end in {', '.join(sorted(PICTURES))} are needed"
        todo = f"Folders below are not searched; '{pattern.rstrip('/')}/**/*.png' would."
    return InputError(f"--images {pattern}", found=found, needed=needed, todo=todo)


def name_of(picture: Path) -> str:
    """A picture's path as JSON can hold it: bytes that are no text are spelled, \\xff, so that two
    pictures never share a name.
    """
    return os.fsencode(picture).decode(errors="backslashreplace")


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise InputError(
            f"--images {folder}",
            found=error.strerror or str(error),
            needed="a folder that can be read is needed",
            todo="Check its permissions.",
        ) from error


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
    with writing(file, what):
        place = Path(os.path.realpath(file))
        try:
            place.stat()
        except FileNotFoundError:  # tried beside it: another run may make it at this very moment
            probe = place.with_name(f".{os.getpid()}.part")
            probe.touch()
            probe.unlink()
        else:
            with place.open("a", encoding="utf-8"):
                pass


@contextmanager
def writing(file: Path, what: str) -> Iterator[None]:
    """Turn the system's errors about a file into ours.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise unwritable(f"{what} {file}", error) from error


def folder_for(folder: Path, what: str) -> None:
    """Make a folder for results, and make sure that files can be written there.

    Raises:
        OutputError: they cannot.
    """
    with writing(folder, what):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
