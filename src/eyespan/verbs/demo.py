"""`eyespan demo`: the embedded model answers questions about pictures, and races plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from eyespan.demo import Showcase, showcase
from eyespan.verbs import console, options
from eyespan.verbs.files import check_writable
from eyespan.verbs.generate import stream_answer

if TYPE_CHECKING:
    from eyespan.bench.clock import Race
    from eyespan.generation import Engine
    from eyespan.target import HuggingFaceTarget

EPILOG = """
Examples:

eyespan demo

eyespan demo --trace demo.jsonl
"""

FIRST = "receipt"
MORE = ("table", "chart", "scene")
PAIRS = 3
PAIRS_OF_MORE = 2
MAX_NEW_TOKENS = 200


def demo(trace: options.TraceOption = None) -> None:
    """Watch the embedded model read a picture, and see what reading ahead brings on this machine.

    First one question, with the drafted words coloured and the speed measured against plain
    decoding in our own loop and against stock generate(); then other kinds of pictures as a table.
    Takes about a minute on one CPU core.
    """
    check_writable(trace, "trace file")
    pictures = _chosen(showcase())
    out = console.answers()
    engines = _engines(options.Setup(model="demo").load_target())
    first = pictures[0]
    out.print(Text(f"{first.path}\n").append(f"> {first.question}\n", "bold"), soft_wrap=True)
    result, origins = stream_answer(
        engines["auto"],
        first.question,
        [first.path],
        show_drafts=True,
        max_new_tokens=MAX_NEW_TOKENS,
        trace=trace,
    )
    out.print(console.legend(origins), soft_wrap=True)
    rows = []
    for picture in pictures:
        with console.waiting(f"measuring: {picture.kind}"):
            race = _race(engines, picture, PAIRS if picture is first else PAIRS_OF_MORE)
        if picture is first:
            out.print(_first_line(race, result.forwards), soft_wrap=True)
        rows.append((picture.kind, race))
    out.print(_table(rows))
    out.print(
        "S: times faster, median of paired runs that took turns. 'auto' sends only guesses that "
        "pay on this machine; 'fixed' always sends the published 63 + 4 nodes.",
        style="dim",
    )
    if any(race.different for _, race in rows):
        raise typer.Exit(1)


def _chosen(pictures: Sequence[Showcase]) -> list[Showcase]:
    """One picture of each kind that is shown, in order."""
    by_kind = {picture.kind: picture for picture in reversed(pictures)}
    return [by_kind[kind] for kind in (FIRST, *MORE) if kind in by_kind]


def _engines(target: HuggingFaceTarget) -> dict[str, Engine]:
    from eyespan.generation import Engine

    return {
        "plain": Engine(target, "none", budget=0),
        "auto": Engine(target, "recap", budget="auto"),
        "fixed": Engine(target, "recap", budget="fixed"),
    }


def _race(engines: dict[str, Engine], picture: Showcase, rounds: int) -> Race:
    """All ways to answer take turns on one picture."""
    from eyespan.bench.clock import engine_side, race
    from eyespan.bench.stock import stock_side

    asked: dict[str, Any] = {"max_new_tokens": MAX_NEW_TOKENS}
    question, files = picture.question, [picture.path]
    sides = {name: engine_side(one, question, files, **asked) for name, one in engines.items()}
    stock = stock_side(engines["plain"].target, question, files, **asked)
    return race({**sides, **({"stock": stock} if stock else {})}, rounds=rounds)


def _first_line(race: Race, forwards: int) -> str:
    """tau, forwards and speeds of the first question."""
    made = race.answers["auto"]
    text = f"tau {len(made.token_ids) / forwards:.2f}: {len(made.token_ids)} tokens in {forwards} "
    if race.different:
        return (
            f"{text}forwards; answers DIFFER: {', '.join(race.different)} (eyespan verify --demo 6)"
        )
    return (
        f"{text}forwards. Same {len(made.token_ids)} tokens from plain decoding and from stock "
        f"generate(): S {race.speed('auto'):.2f} against our plain loop, "
        f"{race.speed('auto', 'stock'):.2f} against stock ({PAIRS} pairs)."
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
