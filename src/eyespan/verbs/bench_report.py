"""`eyespan bench report`: a run's folder as a page that people read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyespan.errors import unknown_name
from eyespan.verbs import console

if TYPE_CHECKING:
    from eyespan.bench.tables import Table

EPILOG = """
Examples:

eyespan bench report replayed

eyespan bench report replayed --out page.html --no-pictures

eyespan bench report results --markdown overview
"""


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Holds tables.json, figures.json, manifest.json.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page; default: DIR/report.html."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--markdown",
            metavar="TABLE",
            help="Only print the table of this id (tables.json) as Markdown, to paste it.",
        ),
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures/--no-pictures",
            help="Also write DIR/figures/*.svg and *.png of each figure.",
        ),
    ] = True,
) -> None:
    """Write one self-contained page of a run's tables and figures.

    It stands alone: no request leaves it, tables sort by a click on a head, and it prints.

    Exit codes: 0 done, 2 bad input.
    """
    from eyespan.bench.plots import save
    from eyespan.bench.report import write_report
    from eyespan.bench.tables import Results

    if table is not None:
        _print_markdown(Results.read(folder).tables, table)
        return
    with console.waiting("drawing"):
        file = write_report(folder, out or folder / "report.html")
        if pictures:
            for figure in Results.read(folder).figures:
                save(figure, folder / "figures")
    console.answers().print(file, soft_wrap=True)


def _print_markdown(tables: Sequence[Table], wanted: str) -> None:
    from eyespan.bench.markdown import markdown

    known = {table.id: table for table in tables}
    if wanted not in known:
        raise unknown_name("table of this folder", wanted, known)
    console.answers().print(markdown(known[wanted]), soft_wrap=True, markup=False, end="")
