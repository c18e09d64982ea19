"""What is shown while a run is under way: how far it is, and every method so far.

Drawn between inputs only: a refresh in the background would take time from what is being measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from eyespan.bench import metrics
from eyespan.bench.builders.shared import outputs_of
from eyespan.bench.records import NOISE, STOCK, Run
from eyespan.bench.settings import Settings

EVERY_SECONDS = 30.0
"""How often a line is written where nobody watches."""


class Board:
    """A progress bar over a table on a terminal, a line now and then elsewhere.

    Args:
        console: where to draw.
        name: of the run.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, name
        self._watched = console.is_terminal and console.file.isatty()
        self._live: Live | None = None
        self._runs: list[Run] = []
        self._labels: list[str] = []
        self._said = monotonic()
        self._at = self._total = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        """Say what takes a while before the first input."""
        self._console.print(f"{self._name}: {text}", soft_wrap=True)

    def begin(self, settings: Settings, total: int, done: int, runs: Sequence[Run]) -> None:
        """Start at `done` of `total` inputs, `runs` known already."""
        self._labels = [one.label for one in settings.methods] + [NOISE]
        self._runs, self._at, self._total = list(runs), done, total
        if self._watched:
            self._task = self._progress.add_task(self._name, total=total, completed=done)
            self._live = Live(self._picture(), console=self._console, auto_refresh=False)
            self._live.start()
        else:
            self._say()

    def update(self, runs: Sequence[Run]) -> None:
        """One more input."""
        self._runs += runs
        self._at += 1
        if self._live is not None and self._task is not None:
            self._progress.update(self._task, completed=self._at)
            self._live.update(self._picture(), refresh=True)
        elif monotonic() - self._said > EVERY_SECONDS:
            self._say()

    def end(self) -> None:
        """Leave the last picture standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif not self._watched:
            self._say()

    def _say(self) -> None:
        self._said = monotonic()
        self._console.print(f"{self._name}: {self._at}/{self._total} inputs", soft_wrap=True)

    def _picture(self) -> Group:
        table = Table("method", box=None, pad_edge=False)
        for heading in ("S", "S / stock", "tau", "answers"):
            table.add_column(heading, justify="right")
        table.add_column("outputs")
        by_method = metrics.group(self._runs, lambda run: run.method)
        stock = metrics.comparable(by_method.get(STOCK, []))
        for label in self._labels:
            every = by_method.get(label, [])
            runs = metrics.comparable(every)
            table.add_row(
                label,
                _number(metrics.speedup(runs)),
                _number(metrics.mean(metrics.against(runs, stock))),
                _number(metrics.acceptance_length(runs)),
                str(len(every)),
                outputs_of(every) if every else "-",
            )
        return Group(self._progress, table)


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"
