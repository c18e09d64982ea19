"""`--memory`: what a drafter remembers, read before a verb's answers and written after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from eyespan.generation import Engine

MemoryOption = Annotated[
    Path | None,
    typer.Option(
        "--memory",
        metavar="DIR",
        help="What the drafter learned: read before the answers when it is there, written after.",
    ),
]


def check_memory_place(folder: Path | None) -> None:
    """Refuse what is no memory before a model is loaded.

    Raises:
        InputError: a file, a folder with something else in it, or a damaged memory.
    """
    if folder is not None:
        from eyespan.saved_memory import check_place

        check_place(folder)


@contextmanager
def remembering(engine: Engine, folder: Path | None, scope: str | None) -> Iterator[None]:
    """Load a memory, and save it at the end, interrupted or not; one that would be empty is not
    written.

    Args:
        engine: whose drafter's memory.
        folder: None does nothing.
        scope: the memory scope of the answers.

    Raises:
        InputError, UnsupportedRequest: see `Engine.load_memory`; before the first answer.
        OutputError: it cannot be written.
    """
    if folder is None:
        yield
        return
    from eyespan.saved_memory import check_place, remembers

    remembers(engine.drafter)
    if check_place(folder):
        engine.load_memory(folder, scope)
    try:
        yield
    finally:
        if engine.drafter.is_warm(scope):
            engine.save_memory(folder, scope)
