"""`eyespan replay`: drafting against recorded answers, without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyespan.drafters import make_drafter
from eyespan.errors import ConfigError
from eyespan.verbs import console, options
from eyespan.verbs.files import folder_for

if TYPE_CHECKING:
    from eyespan.bench.tables import Results
    from eyespan.diagnostics.questions import Question
    from eyespan.diagnostics.recorded import Recording

EPILOG = """
Examples:

eyespan replay --record demo --max-inputs 60 --out replayed

eyespan replay replayed/traces/*.jsonl --out again -d recap -d recap,orders=U -d token_recycling

eyespan bench report again
"""


def replay(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TRACE...", help="Files of --trace; each is one data set."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where tables and figures go.")
    ] = Path("replay"),
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "-d",
            metavar="NAME[,KEY=VALUE...]",
            help="Draft with it, too; repeatable. Default: recap.",
        ),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="MODEL",
            help="First let MODEL answer questions about pictures and keep the traces in "
            "DIR/traces.",
        ),
    ] = None,
    dataset: options.DatasetOption = None,
    max_inputs: Annotated[
        int,
        typer.Option("--max-inputs", metavar="N", min=1, help="With --record: of each set."),
    ] = 60,
    max_new_tokens: options.TokensOption = 256,
    growth: Annotated[
        int,
        typer.Option("--growth", metavar="N", min=0, help="Requests of the growth curve; 0: none."),
    ] = 10_000,
) -> None:
    """Draft against recorded answers and tabulate what would have been guessed.

    Needs no model. Traces with the target's rows, as recap and other drafters that read rows leave
    them, give all tables; traces without rows can be drafted with tokens alone.

    Exit codes: 0 done, 2 bad input.
    """
    wanted = {text: drafter_of(text) for text in drafter or ["recap"]}
    if (record is None) == (not traces):
        raise ConfigError(
            "eyespan replay",
            found="traces and --record" if traces else "neither traces nor --record",
            needed="one of them is needed",
            todo="Name trace files, or record with `eyespan replay --record demo`.",
        )
    folder_for(out, "result folder")
    if record is not None:
        from eyespan.diagnostics.questions import questions

        asked = questions(dataset or ["demo"], max_inputs)
        traces = _recorded(record, asked, out / "traces", max_new_tokens)
    from eyespan.bench.manifest import manifest, write_json
    from eyespan.diagnostics.recorded import read_recordings

    with console.waiting("reading traces"):
        recordings = read_recordings(traces or [])
    results, seconds = run(recordings, wanted, growth)
    results.write(out)
    write_json(
        out / "manifest.json",
        {
            **manifest(),
            "traces": [
                {"file": str(file), "requests": len(one.requests), "states": one.states}
                for file, one in zip(traces or [], recordings, strict=True)
            ],
            "seconds": seconds,
        },
    )
    states = sum(one.states for one in recordings)
    console.notes().print(
        f"{states:,} states, {len(results.tables)} tables and {len(results.figures)} figures in "
        f"{out}; see them with: eyespan bench report {out}",
        soft_wrap=True,
    )


def drafter_of(text: str) -> tuple[str, dict[str, Any]]:
    """A drafter's name and options from `NAME[,KEY=VALUE...]`.

    Raises:
        ConfigError: unknown, or a value that does not fit.
    """
    name, *pairs = re.split(r",(?=\w+=)", text)  # a value may be a list
    return name, options.drafter_options(name, pairs)


def run(
    recordings: Sequence[Recording], wanted: dict[str, tuple[str, dict[str, Any]]], growth: int
) -> tuple[Results, dict[str, float]]:
    """All tables and figures, and the wall seconds of each part."""
    from time import perf_counter

    from eyespan.bench.tables import Figure, Results, Table
    from eyespan.diagnostics import replay_tables as tables
    from eyespan.diagnostics import source_tables, sources
    from eyespan.diagnostics.growth import SEEDS, grow
    from eyespan.diagnostics.matched import compare
    from eyespan.diagnostics.recorded import vocabulary
    from eyespan.diagnostics.replay import replay as draft

    size, pool = vocabulary(recordings), tables.Pool(recordings)
    made: list[Table] = []
    drawn: list[Figure] = []
    seconds: dict[str, float] = {}
    begun = perf_counter()

    def keep(part: str, found: tuple[list[Table], list[Figure]]) -> None:
        nonlocal begun
        made.extend(found[0])
        drawn.extend(found[1])
        seconds[part], begun = perf_counter() - begun, perf_counter()

    def build(name: str, chosen: Any) -> Any:
        return make_drafter(name, vocab_size=size, **chosen)

    by_drafter = {}
    for text, (name, chosen) in wanted.items():
        with console.waiting(f"drafting with {text}"):
            by_drafter[text] = {
                one.name: draft(one, build(name, chosen), vocab_size=size) for one in recordings
            }
    keep("drafters", tables.drafters_tables(pool, by_drafter))
    if not sources.with_rows(recordings):
        console.notes().print("no rows in these traces: only drafters are replayed")
        return Results(made, drawn), seconds
    with console.waiting("asking U, C and G"):
        empty, seeded = (
            {one.name: sources.coverage(one, size, seeded=each) for one in recordings}
            for each in (False, True)
        )
        keep("sources", source_tables.coverage_tables(pool, empty, seeded))
    for part, policies, seeds, make in (
        ("matched", tables.BACKOFF, False, tables.matched_tables),
        ("suffix", tables.SUFFIX, True, tables.suffix_tables),
    ):
        with console.waiting(f"matching continuations: {part}"):
            drafters = {each: build("recap", chosen) for each, chosen in policies.items()}
            found = {one.name: compare(one, drafters, seeded=seeds) for one in recordings}
            keep(part, (make(pool, found), []))
    with console.waiting("fusing"):
        fused = {one.name: sources.fusion(one, size) for one in recordings}
        keep("fusion", source_tables.fusion_tables(pool, fused))
    exchanged = {one.name: sources.swapped(one, size) for one in recordings}
    some = {name: one for name, one in exchanged.items() if one is not None}
    keep("swapped", (source_tables.swapped_tables(pool, some) if some else [], []))
    if growth:
        with console.waiting(f"replaying {growth:,} requests"):
            every = [one for recording in recordings for one in recording.requests]
            curves = [grow(every, size, requests=growth, seed=seed) for seed in SEEDS]
            keep("growth", tables.growth_tables(pool, curves, len(every)))
    return Results(made, drawn), seconds


def _recorded(model: str, asked: Sequence[Question], folder: Path, most: int) -> list[Path]:
    """Let a model answer and keep the traces."""
    from eyespan.bench.manifest import progress
    from eyespan.diagnostics.record import record

    target = options.Setup(model=model).load_target()
    return record(target, asked, folder, tell=progress, max_new_tokens=most)
