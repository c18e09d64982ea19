"""Tables as Markdown, for pages and changelogs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eyespan.bench.tables import Cell, Table
from eyespan.errors import unwritable


def markdown(table: Table) -> str:
    """One table: a heading, rows, and its caption below."""
    numbers = [
        all(isinstance(row[at], int | float | None) for row in table.rows)
        for at in range(len(table.columns))
    ]
    rules = ["---:" if number else "---" for number in numbers]
    lines = [table.columns, rules, *([cell_text(cell) for cell in row] for row in table.rows)]
    drawn = [f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines]
    return "\n".join([f"### {table.title}", "", *drawn, "", table.caption, ""])


def cell_text(value: Cell) -> str:
    """A cell as people read it: about three digits, "-" for nothing."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    places = 3 if abs(value) < 0.1 else 2 if abs(value) < 100 else 0
    return f"{value:.{places}f}"


def write_markdown(file: Path, tables: Iterable[Table]) -> None:
    """Write tables one below the other.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        file.write_text("\n".join(map(markdown, tables)), encoding="utf-8")
    except OSError as error:
        raise unwritable(f"result file {file}", error) from error


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
