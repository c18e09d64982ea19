"""Where time and memory go: stages of a round (table 9), tree budgets (table 10) and a full
vocabulary (table 11).
"""

from __future__ import annotations

from eyespan.bench import metrics
from eyespan.bench.builders.main import GIB, MIB
from eyespan.bench.builders.shared import Report, known, most, number
from eyespan.bench.records import Run
from eyespan.bench.tables import Cell, Results, Table

STAGES = {
    "propose": "Suffix look-up, look-up, fusion, search",
    "pack": "Packing",
    "refresh": "Memory refresh, suffix index update",
    "verify": "Walk and token commitment",
    "commit": "Cache commitment",
    "other": "Other decoding",
    "forward": "Target verification",
}


def table9(report: Report) -> Results:
    """Milliseconds of a verify pass by stage, on the wall and of the processor."""
    sides: list[dict[str, float]] = []
    for label in report.labels:
        runs = report.timed(label)
        sides += [metrics.stage_ms(runs), metrics.stage_cpu_ms(runs)]
    rows: list[tuple[Cell, ...]] = [
        (title, *(times.get(stage) for times in sides)) for stage, title in STAGES.items()
    ]
    rows += [
        ("All but target verification", *map(_host_ms, sides)),
        ("Its share of decoding %", *map(_host_share, sides)),
    ]
    table = Table(
        id="recap_table9",
        title="Milliseconds of a verify pass by stage",
        columns=("Stage", *(f"{label} {of}" for label in report.labels for of in ("wall", "CPU"))),
        rows=tuple(rows),
        caption="Pooled over passes; stages do not overlap. CPU is the processor's time, of all "
        "threads and waiting for a GPU included; other decoding has none of its own, and the last "
        "rows leave it out there. " + report.caption(),
        source="RECAP Table 9",
    )
    return Results((table,))


def table10(report: Report) -> Results:
    """What a larger tree costs and brings."""
    rows: list[tuple[Cell, ...]] = []
    for label in report.labels:
        runs = report.timed(label)
        per_input = [_preparation_ms(run) for run in runs if run.forwards > 1]
        passes = sum(run.forwards - 1 for run in runs)
        rows.append(
            (
                label,
                sum(run.drafted for run in runs) / passes if passes else None,
                number(metrics.mean(per_input)),
                number(metrics.percentiles(per_input, (95,))[0]),
                most((run.state_bytes for run in report.of(label)), MIB),
                most((run.peak_bytes for run in runs), GIB),
                number(metrics.acceptance_length(runs)),
                number(metrics.speedup(runs)),
            )
        )
    table = Table(
        id="recap_table10",
        title="Tree budgets",
        columns=("Method", "mean nodes", "prep. ms", "p95 ms", "host MiB", "GPU GiB", "tau", "S"),
        rows=tuple(rows),
        caption="Preparation is look-up to packing, milliseconds a pass: the mean and the 95th "
        "percentile over answers. Host memory is the largest that a drafter held after an answer, "
        "GPU memory the most that was allocated during one, weights included. " + report.caption(),
        source="RECAP Table 10",
    )
    return Results((known(table, "GPU GiB"),))


def table11(report: Report) -> Results:
    """A memory of a row for every id, look-ups in it and trees over it."""
    rows = [
        (
            one["keys"],
            one["bytes"] / MIB,
            most((one.get("resident_bytes", -1),), MIB),
            one["lookup_ns"],
            one["lookup_alone_ns"],
            one["tree_us"],
        )
        for one in report.extra["stress"]
    ]
    table = Table(
        id="recap_table11",
        title="U at several fillings",
        columns=(
            "keys",
            "host MiB",
            "process MiB",
            "look-up ns",
            "one after another ns",
            "63-node tree us",
        ),
        rows=tuple(rows),
        caption="Made-up rows, every filling in a fresh process: what the memory counts and what "
        "the process grew by. A look-up reads a whole row of a random key, 64 keys a call; the "
        f"fastest of several runs, since memory is shared with everything else. {report.caption()}",
        source="RECAP Table 11",
    )
    return Results((table,))


def _preparation_ms(run: Run) -> float:
    spent = run.stage_ms.get("propose", 0.0) + run.stage_ms.get("pack", 0.0)
    return spent / (run.forwards - 1)


def _host_ms(times: dict[str, float]) -> float | None:
    return sum(ms for stage, ms in times.items() if stage != "forward") if times else None


def _host_share(times: dict[str, float]) -> float | None:
    host = _host_ms(times)
    return None if host is None else 100 * host / (host + times["forward"])
