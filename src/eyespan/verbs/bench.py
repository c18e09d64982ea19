"""`eyespan bench`: run a measurement, and compare two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from eyespan.errors import ConfigError
from eyespan.verbs import bench_report, console, options

if TYPE_CHECKING:
    from eyespan.bench.settings import Settings
    from eyespan.bench.tables import Table

bench = typer.Typer(
    name="bench",
    help="Measure methods against plain decoding, and compare measurements.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
bench.command(epilog=bench_report.EPILOG)(bench_report.report)

RUN_EPILOG = """
Examples:

eyespan bench run runs/recap_table1.toml --out results/table1

eyespan bench run runs/recap_table1.toml max_inputs=4 methods=RECAP --out results/quick

eyespan bench run runs/recap_table1.toml preset=paper model=./llava-1.6 --out results/llava

eyespan bench run runs/*.toml --out results
"""

COMPARE_EPILOG = """
Example:

eyespan bench compare results/before results/after
"""


@bench.command(epilog=RUN_EPILOG)
def run(
    what: Annotated[
        list[str],
        typer.Argument(metavar="RUN.toml... [KEY=VALUE...]", help="Run files, then settings."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where results go. Of several runs, each has a folder of its file's name there, "
            "and DIR itself holds all their tables.",
        ),
    ],
) -> None:
    """Run measurements and write their records, tables and figures.

    Every method answers every input in turn with plain decoding beside it; answers are compared
    token by token before times are looked at. A run that was interrupted continues where it was
    when it is started again with the same settings.

    Exit codes: 0 all answers equal or near ties, 1 an answer was DIFFERENT or failed, 2 bad input.
    """
    files = [Path(text) for text in what if text.endswith(".toml") and "=" not in text]
    overrides = [text for text in what if text not in map(str, files)]
    if not files:
        raise ConfigError(
            "a measurement",
            found="no run file",
            needed="a file that ends in .toml is needed",
            todo="Start with runs/recap_table1.toml.",
        )
    from eyespan.bench.builders import kind_of
    from eyespan.bench.settings import load_settings, usable_methods

    runs = {file: load_settings(file, overrides) for file in files}
    for settings in runs.values():  # every file is checked before the first one starts
        kind_of(settings.tables)
        usable_methods(settings)
    targets, code = Targets(), 0
    for file, settings in runs.items():
        folder = out if len(files) == 1 else out / file.stem
        code = max(code, _run_one(file.stem, settings, folder, targets))
    if len(files) > 1:
        from eyespan.bench.gather import gather

        gather(out, {file.stem: (runs[file].title, out / file.stem) for file in files})
    raise typer.Exit(code)


@bench.command(epilog=COMPARE_EPILOG)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of another one.")],
) -> None:
    """What changed from run A to run B, on the inputs that both measured."""
    from eyespan.bench.between import between

    show(between(a, b))


@dataclass(slots=True)
class Targets:
    """Keeps the model of the last run for the next one.

    Attributes:
        loaded: it, and what it was loaded for.
    """

    loaded: tuple[tuple[Any, ...], Any] | None = None

    def __call__(self, settings: Settings) -> Any:
        """The model that a run asks for."""
        wanted = (settings.model, settings.dtype, settings.device, settings.compiled_passes)
        if self.loaded is None or self.loaded[0] != wanted:
            self.loaded = None  # two models may not fit
            setup = options.Setup(
                model=settings.model,
                dtype=settings.dtype,
                device=settings.device,
                compiled=settings.compiled_passes,
            )
            self.loaded = (wanted, setup.load_target())
        return self.loaded[1]


def _run_one(name: str, settings: Settings, folder: Path, targets: Targets) -> int:
    from eyespan.bench.execute import execute
    from eyespan.bench.live import Board
    from eyespan.bench.tables import Results

    code = execute(settings, folder, targets, Board(console.notes(), name))
    for table in Results.read(folder).tables:
        show(table)
    return code


_FILE_WIDTH = 240
"""Characters of a line in files and pipes, where nothing wraps."""


def show(table: Table) -> None:
    """A table on stdout."""
    from eyespan.bench.markdown import cell_text

    out = console.answers()
    if not console.on_terminal(out):
        out.width = _FILE_WIDTH
    drawn = RichTable(box=None, pad_edge=False, title=table.title, title_justify="left")
    for at, head in enumerate(table.columns):
        text = any(isinstance(row[at], str) for row in table.rows)
        drawn.add_column(head, justify="left" if text else "right")
    for row in table.rows:
        drawn.add_row(*map(cell_text, row))
    out.print(drawn)
    out.print(Text(table.caption, "dim"), soft_wrap=True)
    out.print()
