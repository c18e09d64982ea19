"""A run's folder as one page: verdict on losslessness, figures, tables, and how it was measured.

The page needs nothing but itself: styles, script and pictures stand in it, and its own policy
forbids every request. All text is escaped by the template; pictures are drawn anew from
`figures.json`, never taken from files.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from eyespan.bench.plots import INK, svg_of
from eyespan.bench.tables import Cell, Figure, Results, Table
from eyespan.errors import InputError, unwritable

TEMPLATE = Path(__file__).with_name("report.html.jinja")
STATUSES = {"equal": "equal", "near tie": "near ties", "different": "different", "error": "errors"}
"""Columns that say how outputs compare with plain decoding, and how the page calls them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How outputs compare with plain decoding.

    Attributes:
        kind: "good", "close" (near ties), "bad" or "none" (nothing was compared).
        headline: one sentence.
        counts: (name of a class, answers).
        where: title of the table that says so.
    """

    kind: str
    headline: str
    counts: tuple[tuple[str, int], ...] = ()
    where: str = ""


def write_report(folder: Path, file: Path) -> Path:
    """Write a folder's page.

    Args:
        folder: holds `tables.json`, `figures.json` and `manifest.json`, or some of them.
        file: the page, replaced where it exists.

    Raises:
        InputError: no such folder, nothing to show, or a file of another shape.
        ConfigError: there are figures and matplotlib is not installed.
        OutputError: the page cannot be written.
    """
    page = page_of(folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise unwritable(f"report {file}", error) from error
    return file


def page_of(folder: Path) -> str:
    """The page as text; raises as `write_report` does."""
    results, manifest = Results.read(folder), read_manifest(folder)
    if not results.tables and not results.figures:
        raise InputError(
            f"report of {folder}",
            found="no such folder" if not folder.is_dir() else "it holds no tables and no figures",
            needed="a folder with tables.json or figures.json is needed",
            todo="Make one with `eyespan bench run`, `eyespan replay` or `eyespan diagnose`.",
        )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)  # fmt: skip
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    name = folder.resolve().name
    parts = [Shown.of(number, table) for number, table in enumerate(results.tables)]
    pictures = [Picture.of(number, figure) for number, figure in enumerate(results.figures)]
    return template.render(
        name=name,
        verdicts=verdicts(results.tables),
        groups=grouped(parts, pictures),
        facts=facts_of(manifest),
        headline=headline_of(manifest),
    )


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """The run's manifest; empty where there is none.

    Raises:
        InputError: it is no JSON object.
    """
    file = folder / "manifest.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _bad_manifest(file, f"it cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise _bad_manifest(file, "no JSON object")
    return found


def _bad_manifest(file: Path, found: str) -> InputError:
    return InputError(
        f"manifest {file}",
        found=found,
        needed="a JSON object is needed, as eyespan writes it",
        todo="Run the command that made the folder again, or remove the file.",
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """A table as the page shows it.

    Attributes:
        anchor: its place in the page.
        table: itself.
        numeric: for each column, whether it holds numbers only.
        cells: texts of each row.
        keys: what each cell sorts by.
        csv: the table as a data URI.
    """

    anchor: str
    table: Table
    numeric: tuple[bool, ...]
    cells: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, ...], ...]
    csv: str

    @staticmethod
    def of(number: int, table: Table) -> Shown:
        """Prepare a table."""
        columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
        texts = [column_texts(column) for column in columns]
        keys = [[sort_key(cell) for cell in column] for column in columns]
        return Shown(
            anchor=f"table-{number + 1}",
            table=table,
            numeric=tuple(
                any(is_number(cell) for cell in column)
                and all(cell is None or is_number(cell) for cell in column)
                for column in columns
            ),
            cells=tuple(zip(*texts, strict=True)),
            keys=tuple(zip(*keys, strict=True)),
            csv=csv_of(table),
        )


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as the page shows it.

    Attributes:
        anchor: its place in the page.
        figure: itself.
        svg: the drawing, ready to stand in a page.
        numbers: what is drawn, as a table.
    """

    anchor: str
    figure: Figure
    svg: Markup
    numbers: Shown

    @staticmethod
    def of(number: int, figure: Figure) -> Picture:
        """Draw a figure."""
        anchor = f"figure-{number + 1}"
        rows: list[tuple[Cell, ...]] = []
        for series in figure.series:
            low = series.low or (None,) * len(series.y)
            high = series.high or (None,) * len(series.y)
            rows += [
                (series.name, *point) for point in zip(series.x, series.y, low, high, strict=True)
            ]
        columns = ("Series", figure.x_label or "Name", figure.y_label or "Value", "Low", "High")
        table = Table(id=figure.id, title=figure.title, columns=columns, rows=tuple(rows))
        return Picture(anchor, figure, inline(svg_of(figure), anchor), Shown.of(number, table))


@dataclass(frozen=True, slots=True)
class Group:
    """Figures and tables that belong together."""

    pictures: tuple[Picture, ...]
    tables: tuple[Shown, ...]


def grouped(tables: Sequence[Shown], pictures: Sequence[Picture]) -> list[Group]:
    """Each table with the figures of its source before it; figures without such a table first."""
    left = list(pictures)
    groups = []
    for shown in tables:
        near = [one for one in left if _belong(one.figure.source, shown.table.source)]
        left = [one for one in left if one not in near]
        groups.append(Group(tuple(near), (shown,)))
    return ([Group(tuple(left), ())] if left else []) + groups


def _belong(figure: str, table: str) -> bool:
    """Whether a table's source names the figure's: "RECAP Table 5, Figure 3" has its figure 3."""
    paper, _, place = figure.partition(" ")
    named = re.search(rf"{re.escape(place)}(?!\w)", table) if place else None
    return named is not None and table.startswith(paper)


def inline(svg: str, prefix: str) -> Markup:
    """A drawing for a page: no prolog, metadata or name space, ids of its own, ink of the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<title>.*?</title>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = re.sub(r'(<svg\b[^>]*?)\swidth="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg\b[^>]*?)\sheight="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r'(\bhref)="#', rf'\1="#{prefix}-', body)
    return Markup(body.replace(INK, "currentColor"))


def verdicts(tables: Sequence[Table]) -> list[Verdict]:
    """What tables that count equal, near tie, different and failed answers say."""
    found = []
    for table in tables:
        places = {
            status: at
            for at, column in enumerate(table.columns)
            for status in STATUSES
            if column.strip().lower().rstrip("s") == status
        }
        if "equal" in places and "different" in places:
            counts = {name: _sum(table, at) for name, at in places.items()}
            found.append(_verdict(counts, table.title))
    return found or [Verdict("none", "No outputs were compared with plain decoding here.")]


def _sum(table: Table, at: int) -> int:
    """Sum of a column, without the row of the plain loop: the others are compared with it."""
    rows = [row for row in table.rows if row[0] != "plain"]
    return int(sum(cell for row in rows if is_number(cell := row[at])))  # type: ignore[misc]


def _verdict(counts: Mapping[str, int], title: str) -> Verdict:
    total = sum(counts.values())
    different, ties, errors = (counts.get(name, 0) for name in ("different", "near tie", "error"))
    if total == 0:
        return Verdict("none", "No outputs were compared with plain decoding here.", (), title)
    if different or errors:
        parts = (
            [f"{different:,} of {total:,} answers differ from plain decoding"] if different else []
        )
        parts += [f"{errors:,} of {total:,} answers failed"] if errors else []
        kind, headline = "bad", "; ".join(parts)
        headline = ("Not lossless: " if different else "Incomplete: ") + headline + "."
    elif ties:
        kind = "close"
        headline = f"Lossless up to near ties: {ties:,} of {total:,} answers part at one."
    else:
        kind, headline = "good", f"Lossless: all {total:,} answers equal plain decoding."
    named = tuple((STATUSES[name], count) for name, count in counts.items())
    return Verdict(kind, headline, named, title)


def facts_of(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The manifest, flattened to names and texts."""
    facts: list[tuple[str, str]] = []
    for key, value in manifest.items():
        if isinstance(value, dict):
            facts += [(f"{key}: {name}", text) for name, text in facts_of(value)]
        elif isinstance(value, list | tuple):
            facts.append((str(key), "\n".join(_text(each) for each in value)))
        else:
            facts.append((str(key), _text(value)))
    return facts


def headline_of(manifest: Mapping[str, Any]) -> list[str]:
    """What a reader wants to know first."""
    wanted = {"machine": 60, "time": 25, "commit": 12}
    shown = [(manifest.get(key), most) for key, most in wanted.items()]
    return [value[:most] for value, most in shown if isinstance(value, str) and value]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_number(cell: object) -> bool:
    """Whether a cell is a number (a truth value is none)."""
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def column_texts(column: Sequence[Cell]) -> list[str]:
    """A column's cells; floats share their number of decimals, so that digits stand in line: three
    digits of the middle one.
    """
    sizes = sorted(abs(x) for x in column if isinstance(x, float) and math.isfinite(x) and x)
    middle = sizes[len(sizes) // 2] if sizes else 1.0
    decimals = min(max(2 - math.floor(math.log10(middle)), 0), 6)
    return [cell_text(cell, decimals) for cell in column]


def cell_text(cell: Cell, decimals: int) -> str:
    """A cell as text."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.{decimals}f}" if math.isfinite(cell) else str(cell)
    return cell


def sort_key(cell: Cell) -> str:
    """What a cell sorts by in the page: a number's full value, or the text."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return repr(cell) if is_number(cell) else str(cell)


def csv_of(table: Table) -> str:
    """A table as a data URI of CSV."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(
        out.getvalue().encode("utf-8", errors="replace")
    ).decode("ascii")
