"""`eyespan demo`: the embedded model answers questions about pictures, and races plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from eyespan.demo import Showcase, showcase
from eyespan.errors import OutputError
from eyespan.verbs import console, options
from eyespan.verbs.files import check_writable, folder_for, writing
from eyespan.verbs.generate import stream_answer

if TYPE_CHECKING:
    from eyespan.bench.clock import Race, Side
    from eyespan.generation import Engine
    from eyespan.target import HuggingFaceTarget
    from eyespan.types import Generation

EPILOG = """
Examples:

eyespan demo

eyespan demo --trace demo.jsonl

eyespan demo --pictures pictures
"""

FIRST = "receipt"
MORE = ("table", "chart", "scene")
PAIRS = 2
ENOUGH_SECONDS = 40.0
"""After so long no further kind is begun: a slow machine shows fewer of them."""
MAX_NEW_TOKENS = 200
WARM_UP_TOKENS = 16
WARM_UP_ANSWERS = 2


def demo(
    trace: options.TraceOption = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            metavar="DIR",
            help="Copy the demo's twelve pictures there, to try the other commands on, and end.",
        ),
    ] = None,
) -> None:
    """Watch the embedded model read a picture, and see what reading ahead brings on this machine.

    First one question, with the drafted words coloured and the speed measured against plain
    decoding in our own loop and against stock generate(); then other kinds of pictures as a table.
    Takes about a minute on one CPU core.
    """
    if pictures is not None:
        return _hand_out(pictures)
    check_writable(trace, "trace file")
    shown, others = _chosen(showcase())
    out = console.answers()
    engines = _engines(options.Setup(model="demo").load_target())
    started = perf_counter()
    with console.waiting("warming up on other pictures"):
        _warm_up(engines, others)
    first = shown[0]
    out.print(Text(f"{first.path}\n").append(f"> {first.question}\n", "bold"), soft_wrap=True)
    engines["auto"].reset()
    result, origins = stream_answer(
        engines["auto"],
        first.question,
        [first.path],
        show_drafts=True,
        max_new_tokens=MAX_NEW_TOKENS,
        trace=trace,
    )
    out.print(console.legend(origins), soft_wrap=True)
    with console.waiting(f"measuring: {first.kind}"):
        race = _race(engines, first)
    out.print(_first_line(result, race), soft_wrap=True)
    rows = [(first.kind, race)]
    for picture in shown[1:]:
        if perf_counter() - started > ENOUGH_SECONDS:
            break
        with console.waiting(f"measuring: {picture.kind}"):
            rows.append((picture.kind, _race(engines, picture)))
    out.print()
    out.print(_table(rows))
    out.print(
        "S: times faster, median of paired runs that took turns. 'auto' sends only guesses that "
        "pay on this machine; 'fixed' always sends the published 63 + 4 nodes.",
        style="dim",
    )
    if any(race.different for _, race in rows):
        raise typer.Exit(1)
    return None


def _hand_out(folder: Path) -> None:
    """Copy the demo's pictures and say what to ask about them.

    Raises:
        OutputError: the folder cannot be written, or holds another file by one of their names.
    """
    folder_for(folder, "folder of pictures")
    copies = [(one, folder / one.path.name) for one in showcase()]
    for one, copy in copies:
        if copy.exists() and copy.read_bytes() != one.path.read_bytes():
            raise OutputError(
                f"picture {copy}",
                found="another file by this name",
                needed="a folder without such files is needed",
                todo="Choose another folder; nothing was copied.",
            )
    out = console.answers()
    for one, copy in copies:
        with writing(copy, "picture"):
            copy.write_bytes(one.path.read_bytes())
        out.print(Text(str(copy)).append(f"  {one.question}", "bold"), soft_wrap=True)


def _chosen(pictures: Sequence[Showcase]) -> tuple[list[Showcase], list[Showcase]]:
    """One picture of each kind that is shown, in order, and the other pictures of those kinds."""
    kinds = (FIRST, *MORE)
    shown = [next(picture for picture in pictures if picture.kind == kind) for kind in kinds]
    return shown, [one for one in pictures if one.kind in kinds and one not in shown]


def _engines(target: HuggingFaceTarget) -> dict[str, Engine]:
    from eyespan.generation import Engine

    return {
        "plain": Engine(target, "none", budget=0),
        "auto": Engine(target, "recap", budget="auto"),
        "fixed": Engine(target, "recap", budget="fixed"),
    }


def _warm_up(engines: dict[str, Engine], pictures: Sequence[Showcase]) -> None:
    """Walk every path that will be timed, and let the budget rule learn what is accepted, on
    pictures that are not shown; each answer forgets the words of the one before.
    """
    for side in _sides(engines, pictures[0], WARM_UP_TOKENS).values():
        side()
    for picture in pictures[:WARM_UP_ANSWERS]:
        _sides(engines, picture, MAX_NEW_TOKENS)["auto"]()


def _sides(engines: dict[str, Engine], picture: Showcase, max_new_tokens: int) -> dict[str, Side]:
    """All ways to answer about a picture."""
    from eyespan.bench.clock import engine_side
    from eyespan.bench.stock import stock_side

    question, files = picture.question, [picture.path]
    sides = {
        name: engine_side(engine, question, files, max_new_tokens=max_new_tokens)
        for name, engine in engines.items()
    }
    target = engines["plain"].target
    stock = stock_side(target, question, files, max_new_tokens=max_new_tokens)
    return {**sides, "stock": stock} if stock else sides


def _race(engines: dict[str, Engine], picture: Showcase) -> Race:
    """All ways to answer take turns on one picture."""
    from eyespan.bench.clock import race

    return race(_sides(engines, picture, MAX_NEW_TOKENS), rounds=PAIRS, warm_up=False)


def _first_line(shown: Generation, race: Race) -> str:
    """Tau and forwards of the answer that was shown, and its speed."""
    count = len(shown.token_ids)
    text = f"tau {shown.tau:.2f}: {count} tokens in {shown.forwards} forwards"
    if race.different:
        names = ", ".join(race.different)
        return f"{text}; another answer came from: {names} (see eyespan verify --demo 6)"
    return (
        f"{text}. Plain decoding and stock generate() write the same {count} tokens; S "
        f"{_number(race.speed('auto'))} against our plain loop, "
        f"{_number(race.speed('auto', 'stock'))} against stock (median of {PAIRS} pairs)."
    )


def _table(rows: Sequence[tuple[str, Race]]) -> Table:
    table = Table("picture", box=None, pad_edge=False)
    headings = ("tokens", "tau auto", "S auto", "S auto / stock", "tau fixed", "S fixed", "answers")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "answers" else "right")
    for kind, race in rows:
        table.add_row(
            kind,
            str(len(race.answers["plain"].token_ids)),
            _tau(race, "auto"),
            _number(race.speed("auto")),
            _number(race.speed("auto", "stock")),
            _tau(race, "fixed"),
            _number(race.speed("fixed")),
            f"{', '.join(race.different)} DIFFERENT" if race.different else "equal",
        )
    return table


def _tau(race: Race, side: str) -> str:
    made = race.answers[side].generation
    return "-" if made is None else f"{made.tau:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
