"""What a run ends in: tables and figures as plain values, so that drawing, pages and comparisons
need to know nothing of how they were measured.

`tables.json` and `figures.json` in a run's folder hold lists of these, next to `manifest.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from eyespan.bench.manifest import write_json
from eyespan.errors import InputError

Cell: TypeAlias = str | int | float | None
FigureKind: TypeAlias = Literal["line", "bar", "scatter", "step", "heat"]


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
        tables = [
            Table(
                **{**one, "columns": tuple(one["columns"]), "rows": tuple(map(tuple, one["rows"]))}
            )
            for one in _list_of(folder / "tables.json", "tables")
        ]
        figures = [
            Figure(**{**one, "series": tuple(_series(line) for line in one["series"])})
            for one in _list_of(folder / "figures.json", "figures")
        ]
        return Results(tuple(tables), tuple(figures))


def _series(values: dict[str, Any]) -> Series:
    lists = {key: tuple(value) for key, value in values.items() if key != "name"}
    return Series(name=values["name"], **lists)


def _list_of(file: Path, key: str) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{key} of a run",
            found=f"{file} cannot be read ({error})",
            needed=f"a JSON object with a list '{key}' is needed, as `eyespan bench run` writes it",
            todo="Run the same `eyespan bench run` again; finished inputs are kept.",
        ) from error
    return list(found)
