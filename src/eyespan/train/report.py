"""What long runs show: a progress bar where somebody watches, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar(Protocol):
    """One bar under way."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Move on by `count` and show a short note behind the bar."""
        ...


class Report:
    """Says things on a console; the ranks beside the first stay silent."""

    def __init__(self, console: Console | None = None, *, silent: bool = False) -> None:
        """Choose where.

        Args:
            console: default: stderr.
            silent: say nothing.
        """
        self.console = console or Console(stderr=True, highlight=False, emoji=False)
        self.silent = silent

    def say(self, text: str) -> None:
        """One line."""
        if not self.silent:
            self.console.print(text, soft_wrap=True, markup=False)

    @contextmanager
    def bar(self, what: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar from `done` to `total`.

        Args:
            what: is under way.
            total: steps in all.
            done: steps taken before.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        hidden = self.silent or not self.console.is_terminal
        with Progress(*columns, console=self.console, disable=hidden) as progress:
            task = progress.add_task(what, total=total, completed=done, note="")

            class Moving:
                def advance(self, count: int = 1, note: str = "") -> None:
                    progress.update(task, advance=count, note=note)

            yield Moving()
