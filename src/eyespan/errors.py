"""What can go wrong, said in four parts: what was asked, what was found, what was needed, and what
to do about it. User mistakes raise these (each is a ValueError too, where Python users expect one);
broken invariants of our own are internal errors of the compiled core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class EyespanError(Exception):
    """Base of all errors that eyespan raises on purpose; its text is one readable sentence or two.

    Args:
        asked: what the caller wanted.
        found: what is there instead.
        needed: what would have been right.
        todo: what to do next.
    """

    def __init__(self, asked: str, *, found: str, needed: str, todo: str) -> None:
        self.asked, self.found, self.needed, self.todo = asked, found, needed, todo
        super().__init__(f"{asked}: {found}; {needed}. {todo}")


class ConfigError(EyespanError, ValueError):
    """An option has an unknown name or a value outside its range."""


class InputError(EyespanError, ValueError):
    """A prompt, an image or a file of the caller cannot be used."""


class ContextError(InputError):
    """The prompt leaves no room in the model's context."""


class UnsupportedTarget(EyespanError, ValueError):
    """The model cannot be verified in trees; nothing was run with it."""


class UnsupportedRequest(EyespanError, ValueError):
    """The request asks for something that speculation cannot honour here."""


class Overloaded(EyespanError):
    """Too many requests wait already."""


class BatchError(EyespanError):
    """Some requests of a list failed; the others are done.

    Args:
        results: what each request came to: an answer, or the exception that ended it.
    """

    def __init__(self, results: Sequence[Any]) -> None:
        self.results = tuple(results)
        failed = [at for at, each in enumerate(results) if isinstance(each, Exception)]
        first = results[failed[0]] if failed else None
        super().__init__(
            f"{len(results)} requests",
            found=f"{len(failed)} failed, the first at index {failed[0]} ({first})",
            needed="requests that can be answered are needed",
            todo="The others' answers are in `results` of this error.",
        )


class OutputError(EyespanError, OSError):
    """A trace or result file cannot be written."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a table; suggests the closest one.

    Args:
        kind: what the name should be, e.g. "drafter".
        name: what was given.
        known: every valid name.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else "Choose one of these."
    return ConfigError(
        f"{kind} '{name}'",
        found="no such name",
        needed=f"known are {', '.join(names)}" if names else "there is none yet",
        todo=hint,
    )


def unwritable(what: str, error: OSError) -> OutputError:
    """The error for a file that cannot be written.

    Args:
        what: its role and path, e.g. "trace file run.jsonl".
        error: what the system said.
    """
    return OutputError(
        what,
        found=error.strerror or str(error),
        needed="a place that can be written is needed",
        todo="Create its folder, make room, or choose another path.",
    )
