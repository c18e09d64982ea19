"""What a run ends in: tables and figures as plain values, so that drawing, pages and comparisons
need to know nothing of how they were measured.

`tables.json` and `figures.json` in a run's folder hold lists of these, next to `manifest.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from eyespan.bench.manifest import write_json
from eyespan.errors import InputError

Cell: TypeAlias = str | int | float | None
FigureKind: TypeAlias = Literal["line", "bar", "scatter", "step", "heat"]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        id: short name, also its file's and its anchor's ("recap_table1").
        title: what is compared, in words.
        caption: how it was measured: set, model, machine, number of inputs, command.
        source: the paper's table it repeats ("RECAP Table 1"), or "".
        columns: their heads.
        rows: as many cells each as there are columns; floats are rounded when shown, None is "-".
    """

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, set of bars or cloud of points.

    Attributes:
        name: in the legend.
        x: numbers, or names of bars.
        y: as many.
        low, high: bounds of an interval around each y; empty when there is none.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure.

    Attributes:
        id, title, caption, source: as of a table.
        kind: "step" is a cumulative curve; "heat" reads each series as one row of a matrix.
        x_label, y_label: with units.
        series: what is drawn.
        baseline: a level to mark across the picture (1.0 for speeds), or None.
    """

    id: str
    title: str
    kind: FigureKind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    caption: str = ""
    source: str = ""
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """All tables and figures of a run."""

    tables: Sequence[Table] = field(default_factory=tuple)
    figures: Sequence[Figure] = field(default_factory=tuple)

    def write(self, folder: Path) -> None:
        """Write `tables.json` and `figures.json`.

        Raises:
            OutputError: the folder cannot be written.
        """
        write_json(folder / "tables.json", {"tables": [asdict(table) for table in self.tables]})
        write_json(folder / "figures.json", {"figures": [asdict(one) for one in self.figures]})

    @staticmethod
    def read(folder: Path) -> Results:
        """Read what `write` wrote; a missing file gives none of its kind.

        Raises:
            InputError: a file is no such list.
        """
        return Results(
            tuple(_made(folder / "tables.json", "tables", _table)),
            tuple(_made(folder / "figures.json", "figures", _figure)),
        )


def _made(file: Path, key: str, make: Callable[[dict[str, Any]], Made]) -> list[Made]:
    """The objects of one file, each checked."""
    found = []
    for number, values in enumerate(_list_of(file, key), 1):
        try:
            found.append(make(values))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(file, key, f"number {number} is none of {key}: {error}") from error
    return found


def _table(values: dict[str, Any]) -> Table:
    rows = tuple(map(tuple, values["rows"]))
    table = Table(**{**values, "columns": tuple(values["columns"]), "rows": rows})
    _check_texts(table, table.columns)
    for row in table.rows:
        if len(row) != len(table.columns):
            raise ValueError(f"a row of {len(row)} cells under {len(table.columns)} columns")
        if not all(cell is None or isinstance(cell, str | int | float) for cell in row):
            raise ValueError("a cell that is neither text nor number")
    return table


def _figure(values: dict[str, Any]) -> Figure:
    series = tuple(_series(line) for line in values["series"])
    figure = Figure(**{**values, "series": series})
    _check_texts(figure, (figure.x_label, figure.y_label, *(one.name for one in series)))
    if figure.kind not in get_args(FigureKind):
        raise ValueError(f"kind {figure.kind!r}")
    for one in series:
        numbers = (*one.y, *one.low, *one.high)
        if {len(one.x), len(one.low) or len(one.x), len(one.high) or len(one.x)} != {len(one.y)}:
            raise ValueError(f"series {one.name!r} has lists of different lengths")
        if not all(each is None or isinstance(each, int | float) for each in numbers):
            raise ValueError(f"series {one.name!r} holds values that are no numbers")
        if not all(isinstance(each, str | int | float) for each in one.x):
            raise ValueError(f"series {one.name!r} holds an x that is neither text nor number")
    return figure


def _check_texts(one: Table | Figure, more: Sequence[object]) -> None:
    """Ids name files and anchors; titles and labels are shown."""
    texts = (one.id, one.title, one.caption, one.source, *more)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a title or label that is no text")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", one.id):
        raise ValueError(f"id {one.id!r}, which cannot name a file")


def _series(values: dict[str, Any]) -> Series:
    lists = {key: tuple(value) for key, value in values.items() if key != "name"}
    return Series(name=values["name"], **lists)


def _list_of(file: Path, key: str) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(file, key, f"it cannot be read ({error})") from error
    if not isinstance(found, list):
        raise _unreadable(file, key, f"'{key}' is no list")
    return found


def _unreadable(file: Path, key: str, found: str) -> InputError:
    return InputError(
        f"{key} of a run in {file}",
        found=found,
        needed=f"a JSON object with a list '{key}' is needed, as eyespan writes it",
        todo="Run the command that made the folder again; finished inputs are kept.",
    )
