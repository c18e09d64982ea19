"""`eyespan verify`: is the speculative answer the plain one, token for token?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track
from rich.table import Table

from eyespan.verbs import console, options
from eyespan.verbs.cases import Case, cases_of
from eyespan.verbs.files import check_writable

if TYPE_CHECKING:
    from eyespan.bench.compare import Verdict
    from eyespan.generation import Engine

EPILOG = """
Examples:

eyespan verify --demo 12

eyespan verify --model ./my-model --image page.png --prompt "Transcribe the text."

eyespan verify --budget fixed --inputs questions.jsonl
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one input showed.

    Attributes:
        name: of the input.
        tokens: length of the plain answer.
        control: a second plain run against the first.
        drafted: speculative decoding against plain decoding.
        stock: transformers' own `generate()` against plain decoding, where it can be run.
    """

    name: str
    tokens: int
    control: Verdict
    drafted: Verdict
    stock: Verdict | None


def verify(
    image: Annotated[
        list[Path] | None, typer.Option("--image", "-i", metavar="FILE", help="A picture.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="What to ask about the pictures."),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE",
            help='JSON lines {"prompt": ..., "images": [paths from FILE\'s folder]}.',
        ),
    ] = None,
    demo: Annotated[
        int | None,
        typer.Option("--demo", min=1, metavar="N", help="N pictures of the demo's held-out set."),
    ] = None,
    model: options.ModelOption = "demo",
    drafter: options.DrafterOption = "recap",
    max_new_tokens: options.TokensOption = 256,
    budget: options.BudgetOption = "auto",
    option: options.SettingOption = None,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    trace: options.TraceOption = None,
) -> None:
    """Compare speculative with plain decoding on your inputs, token for token.

    'equal': the same tokens. 'near tie': at the first different token the model's own two best
    choices were closer than rounding (a gap of 0.0001 in float32, 0.07 in float16, 0.5 in
    bfloat16), so plain decoding on another machine would waver there too. 'DIFFERENT': anything
    else, which is a fault. The control runs plain decoding twice. Stock generate() runs too where
    it can.

    Exit codes: 0 equal or near ties, 1 DIFFERENT or a control that differs, 2 bad input.
    """
    wanted = options.setup(
        model=model, drafter=drafter, budget=budget, dtype=dtype, device=device, option=option
    )
    cases = list(cases_of(image, prompt, inputs, demo))
    check_writable(trace, "trace file")
    engine = wanted.load()
    rows = compare_all(engine, cases, max_new_tokens, trace)
    out = console.answers()
    out.print(_table(rows))
    verdict, code = summary(rows)
    out.print(verdict, soft_wrap=True)
    raise typer.Exit(code)


def compare_all(
    engine: Engine, cases: Sequence[Case], max_new_tokens: int, trace: Path | None = None
) -> list[Row]:
    """Run every input plainly twice, speculatively, and with stock `generate()` where possible.

    Raises:
        EyespanError: an input cannot be used.
    """
    from eyespan.bench.compare import Witness, judge
    from eyespan.bench.stock import stock_side
    from eyespan.generation import Engine
    from eyespan.trace import Trace

    witness, target = Witness(), engine.target
    watched = Engine(target, witness, budget=0)
    plain = Engine(target, "none", budget=0)
    sink = Trace(trace) if trace else None
    notes, rows = console.notes(), []
    steps = track(
        cases, "comparing", console=notes, transient=True, disable=not console.on_terminal(notes)
    )
    for case in steps:
        asked = (case.prompt, case.images)
        first = watched.generate(*asked, max_new_tokens=max_new_tokens).token_ids
        gaps = list(witness.gaps)
        again = plain.generate(*asked, max_new_tokens=max_new_tokens).token_ids
        drafted = engine.generate(*asked, max_new_tokens=max_new_tokens, trace=sink).token_ids
        stock = stock_side(target, *asked, max_new_tokens=max_new_tokens)
        rows.append(
            Row(
                case.name,
                len(first),
                judge(first, again, gaps, target.info.dtype),
                judge(first, drafted, gaps, target.info.dtype),
                judge(first, stock().token_ids, gaps, target.info.dtype) if stock else None,
            )
        )
    if sink:
        sink.close()
    return rows


def _table(rows: Sequence[Row]) -> Table:
    table = Table("input", box=None, pad_edge=False)
    table.add_column("tokens", justify="right")
    for heading in ("plain, again", "drafted", "stock generate()"):
        table.add_column(heading)
    for row in rows:
        verdicts = (row.control, row.drafted, row.stock)
        table.add_row(row.name, str(row.tokens), *(_cell(verdict) for verdict in verdicts))
    return table


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    if verdict.at is None:
        return verdict.outcome
    gap = "" if verdict.gap is None else f", gap {verdict.gap:.2g}"
    return f"{verdict.outcome} at token {verdict.at}{gap}"


def summary(rows: Sequence[Row]) -> tuple[str, int]:
    """One line and the exit code."""
    counts = {
        outcome: sum(row.drafted.outcome == outcome for row in rows)
        for outcome in ("equal", "near tie", "DIFFERENT")
    }
    wavering = sum(row.control.outcome != "equal" for row in rows)
    foreign = sum(row.stock is not None and row.stock.outcome == "DIFFERENT" for row in rows)
    text = f"{counts['equal']} of {len(rows)} equal"
    if counts["near tie"]:
        text += f", {counts['near tie']} near ties"
    if counts["DIFFERENT"]:
        text += f", {counts['DIFFERENT']} DIFFERENT"
    if wavering:
        text += f"; plain decoding itself wavered on {wavering}, so this machine cannot tell"
    if foreign:
        text += f"; stock generate() DIFFERENT from our plain loop on {foreign}"
    fault = counts["DIFFERENT"] or wavering or foreign
    lossless = "NOT lossless" if counts["DIFFERENT"] else "unclear" if fault else "lossless"
    return f"{lossless}: {text}", 1 if fault else 0
