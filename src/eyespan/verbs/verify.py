"""`eyespan verify`: is the speculative answer the plain one, token for token?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track
from rich.table import Table

from eyespan.verbs import console, options, sampling
from eyespan.verbs.cases import Case, cases_of
from eyespan.verbs.files import check_writable

if TYPE_CHECKING:
    from eyespan.bench.compare import Audit, Verdict
    from eyespan.generation import Engine
    from eyespan.types import Generation

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
        audit: of every token of the speculative answer, where it differs from the plain one.
        stock: transformers' own `generate()` against plain decoding, where it can be run.
    """

    name: str
    tokens: int
    control: Verdict
    drafted: Verdict
    stock: Verdict | None
    audit: Audit | None = None


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
    compiled: options.CompiledOption = False,
    strict: sampling.StrictOption = False,
    trace: options.TraceOption = None,
) -> None:
    """Compare speculative with plain decoding on your inputs, token for token.

    'equal': the same tokens. 'near tie': at the first different token the model's own two best
    choices were closer than rounding (a gap of 0.0001 in float32, 0.07 in float16, 0.5 in
    bfloat16), so plain decoding on another machine would waver there too. Behind it every token is
    rated the same way, by plain decoding fed with the speculative answer. 'DIFFERENT': anything
    else, which is a fault. The control runs plain decoding twice. Stock generate() runs too where
    it can.

    Exit codes: 0 equal or near ties, 1 DIFFERENT or a control that differs, 2 bad input.
    """
    wanted = options.setup(
        model=model,
        drafter=drafter,
        budget=budget,
        dtype=dtype,
        device=device,
        option=option,
        compiled=compiled,
    )
    cases = list(cases_of(image, prompt, inputs, demo))
    check_writable(trace, "trace file")
    engine = wanted.load()
    cost = Cost() if strict else None
    rows = compare_all(engine, cases, max_new_tokens, trace, cost)
    out = console.answers()
    out.print(_table(rows))
    if cost is not None:
        out.print(cost.line(), soft_wrap=True)
    verdict, code = summary(rows)
    out.print(verdict, soft_wrap=True)
    raise typer.Exit(code)


@dataclass(slots=True)
class Cost:
    """What `--strict` took over all inputs."""

    near_ties: int = 0
    extra: int = 0
    forwards: int = 0
    tokens: int = 0

    def add(self, result: Generation) -> None:
        """Count one answer."""
        self.near_ties += result.near_ties
        self.extra += result.strict_forwards
        self.forwards += result.forwards
        self.tokens += len(result.token_ids)

    def line(self) -> str:
        """One sentence."""
        return (
            f"strict: {self.near_ties} near ties decided by {self.extra} forwards on top of "
            f"{self.forwards}; plain decoding takes {self.tokens}"
        )


def compare_all(
    engine: Engine,
    cases: Sequence[Case],
    max_new_tokens: int,
    trace: Path | None = None,
    cost: Cost | None = None,
) -> list[Row]:
    """Run every input plainly twice, speculatively, and with stock `generate()` where possible.

    Args:
        engine: the speculative side.
        cases: the inputs.
        max_new_tokens: of each answer.
        trace: a file for the speculative answers.
        cost: turns `strict` on and counts what it takes.

    Raises:
        EyespanError: an input cannot be used.
    """
    from eyespan.bench.compare import Witness, audit, judge
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
        answer = engine.generate(
            *asked, max_new_tokens=max_new_tokens, trace=sink, strict=cost is not None
        )
        drafted = answer.token_ids
        if cost is not None:
            cost.add(answer)
        stock = stock_side(target, *asked, max_new_tokens=max_new_tokens)
        verdict = judge(first, drafted, gaps, target.info.dtype)
        checked = None
        if verdict.outcome == "near tie":
            checked = audit(target, target.prepare(*asked), drafted)
            ended = drafted[-1] in target.info.eos_ids or len(drafted) >= len(first)
            if checked.different or not ended:
                verdict = replace(verdict, outcome="DIFFERENT")
        rows.append(
            Row(
                case.name,
                len(first),
                judge(first, again, gaps, target.info.dtype),
                verdict,
                judge(first, stock().token_ids, gaps, target.info.dtype) if stock else None,
                checked,
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
        cells = [_cell(verdict) for verdict in (row.control, row.drafted, row.stock)]
        if (found := row.audit) is not None:
            wrong = f", {found.different} worse" if found.different else ""
            cells[1] += f"; of {found.tokens} tokens {found.near_ties} near ties{wrong}"
        table.add_row(row.name, str(row.tokens), *cells)
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
