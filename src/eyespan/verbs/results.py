"""The result file of a run over many pictures: JSON lines that survive an interruption.

The first line holds the run's settings, each further one a picture's answer or error. On resuming,
finished lines are kept; a half-written last line and the error lines of pictures that are asked for
again are dropped, so that those get another try. The file is appended to or replaced, both whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

from eyespan.errors import ConfigError, InputError, OutputError
from eyespan.locks import busy, lock
from eyespan.verbs.files import writing

VERSION = 1


class Results:
    """An open result file.

    Args:
        file: a new file, or one that an earlier run of the same settings left.
        settings: what the answers depend on, JSON-ready.
        pictures: what this run is about.

    Attributes:
        done: those of the pictures that already have their answer.

    Raises:
        ConfigError: the file was written with other settings.
        InputError: the file is something else.
        OutputError: it cannot be written, or another run writes there.
    """

    def __init__(self, file: Path, settings: Mapping[str, Any], pictures: Collection[str]) -> None:
        if os.path.exists(file) and not os.path.isfile(file):  # replacing it would destroy it
            raise OutputError(
                f"result file {file}",
                found="a device, a pipe or the like",
                needed="a regular file is needed, so that a run can be resumed",
                todo="Choose another --out, or leave it out for stdout.",
            )
        self.file = file
        place = Path(os.path.realpath(file))  # a link goes on pointing to its file
        with writing(file, "result file"):
            self._out: IO[str] = place.open("a", encoding="utf-8", errors=_ESCAPED)
        try:
            self._begin(place, settings, pictures)
        except BaseException:
            self._out.close()
            raise

    def _begin(self, place: Path, settings: Mapping[str, Any], pictures: Collection[str]) -> None:
        """Lock the file, keep what is finished and write it anew."""
        what = f"result file {self.file}"
        lock(self._out, what)
        if os.fstat(self._out.fileno()).st_ino != place.stat().st_ino:
            raise busy(what)  # replaced by another run between opening and locking
        self._settings = json.loads(json.dumps(settings))
        lines = [
            line
            for line in self._read()
            if line["type"] == "answer" or line["image"] not in pictures
        ]
        answered = {line["image"] for line in lines if line["type"] == "answer"}
        self.done = answered.intersection(pictures)
        part = place.with_name(f"{place.name}.{os.getpid()}.part")
        head = {"type": "run", "version": VERSION, "settings": self._settings}
        with writing(self.file, "result file"):
            new = part.open("w", encoding="utf-8", errors=_ESCAPED)
            try:
                lock(new, what)
                new.writelines(as_line(line) for line in (head, *lines))
                new.flush()
                part.replace(place)  # an interruption leaves the old file or the whole new one
            except BaseException:
                new.close()
                part.unlink(missing_ok=True)
                raise
            self._out.close()
            self._out = new

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; it has left this process when this returns.

        Raises:
            OutputError: the disk is full or gone.
        """
        with writing(self.file, "result file"):
            self._out.write(as_line(line))
            self._out.flush()

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    def _read(self) -> list[dict[str, Any]]:
        """The finished lines of an earlier run, its settings checked."""
        if not self.file.exists() or self.file.stat().st_size == 0:
            return []
        *whole, rest = self.file.read_bytes().split(b"\n")  # a finished line ends with a newline
        try:
            parsed = [json.loads(line) for line in whole]
            head = parsed[0] if parsed else {"type": "run", "settings": self._settings}
            settings = head["settings"] if head["type"] == "run" else None
            lines = [line for line in parsed[1:] if line["type"] and Path(line["image"])]
            dict(settings or ())
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            settings = None
        if settings is None or not (whole or _BEGIN.startswith(rest[: len(_BEGIN)])):
            raise InputError(
                f"result file {self.file}",
                found="something that this command did not write",
                needed="a new file, or one that an interrupted run left, is needed",
                todo="Choose another --out.",
            )
        if any(line["type"] == "answer" for line in lines):
            self._compare(settings)
        elif settings != self._settings:  # a run without an answer binds nobody to its settings
            return []
        return lines

    def _compare(self, settings: Mapping[str, Any]) -> None:
        for name in sorted({*settings, *self._settings}):
            before, now = settings.get(name), self._settings.get(name)
            if before != now:
                raise ConfigError(
                    f"to go on with {self.file}",
                    found=f"it was begun with {name} {before!r}, now it is {now!r}",
                    needed="answers of one file share all settings",
                    todo="Repeat the old settings, or choose another --out.",
                )


_ESCAPED = "backslashreplace"
"""A file name of other bytes is escaped, as JSON itself would."""
_BEGIN = b'{"type": "run"'


def as_line(line: Mapping[str, Any]) -> str:
    """One JSON line; what UTF-8 cannot hold (bytes of a file's name) becomes a question mark."""
    text = json.dumps(line, ensure_ascii=False)
    return text.encode(errors="replace").decode() + "\n"
