"""Inputs to measure on: public sets from the hub or a folder, the demo's own, and yours.

A set is named in one string: `chartqa` (from the hub), `chartqa@FOLDER` (a local copy in the hub's
layout), `demo`, `demo:receipt`, or `folder:PATH` (pictures and questions of your own).
"""

from eyespan.bench.datasets.local import demo_source, folder_source
from eyespan.bench.datasets.public import PUBLIC, public_source
from eyespan.bench.datasets.record import Record, Source, answer_message, question_message
from eyespan.bench.datasets.selection import (
    Chosen,
    Selection,
    load_selection,
    record_of,
    repeated,
    select,
)
from eyespan.errors import unknown_name


def check_name(name: str) -> None:
    """Refuse what names no set; reads nothing.

    Raises:
        ConfigError: unknown name.
    """
    base = name.partition("@")[0] if not name.startswith("folder:") else "folder"
    if base.partition(":")[0] not in {"demo", "folder"} and base not in PUBLIC:
        raise unknown_name("dataset", base, [*PUBLIC, "demo", "demo:KIND", "folder:PATH"])


def open_source(name: str) -> Source:
    """Open a set.

    Raises:
        ConfigError: unknown name.
        InputError: it cannot be read, or its columns are others.
        OutputError: the package `datasets` is missing.
    """
    check_name(name)
    if name.startswith("folder:"):
        return folder_source(name.removeprefix("folder:"))
    base, _, origin = name.partition("@")
    if base.partition(":")[0] == "demo":
        return demo_source(base.partition(":")[2] or None)
    return public_source(base, origin or None)


__all__ = [
    "PUBLIC",
    "Chosen",
    "Record",
    "Selection",
    "Source",
    "answer_message",
    "check_name",
    "load_selection",
    "open_source",
    "question_message",
    "record_of",
    "repeated",
    "select",
]
