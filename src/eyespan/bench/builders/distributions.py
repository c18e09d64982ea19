"""How times and speeds are distributed over inputs: latencies (table 15, figure 6) and paired
ratios (table 18, figure 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eyespan.bench import metrics
from eyespan.bench.builders.shared import Report
from eyespan.bench.records import PLAIN, Run
from eyespan.bench.tables import Cell, Figure, Results, Series, Table

WANTED = (50.0, 90.0, 95.0, 99.0)
MOST_CURVES = 6
"""More cannot be told apart in one picture."""


def table15(report: Report) -> Results:
    """Latency percentiles of whole inputs, and their curve; each method beside its own plain
    runs, which come once where all methods share them.
    """
    rows: list[tuple[Cell, ...]] = []
    lines = []
    for label in report.labels:
        runs = report.timed(label)
        if not runs:
            continue
        shared = report.settings.pairing == "round"
        plain = (PLAIN if shared else f"{PLAIN}, beside {label}", _partners(runs))
        for name, some in ([] if shared and rows else [plain]) + [(label, runs)]:
            latencies = metrics.input_latencies(some)
            rows.append((name, *metrics.percentiles(latencies, WANTED)))
            seconds, shares = metrics.cumulative(latencies)
            lines.append(Series(name=name, x=seconds, y=shares))
    drawn = _fastest(lines) if len(lines) > MOST_CURVES else lines
    caption = (
        f"Seconds from the prepared prompt to the last token, turns summed. {report.caption()}"
    )
    table = Table(
        id="recap_table15",
        title="Latency of an input in seconds",
        columns=("Method", *(f"P{at:.0f}" for at in WANTED)),
        rows=tuple(rows),
        caption=caption,
        source="RECAP Table 15, Figure 6",
    )
    figure = Figure(
        id="recap_figure6",
        title="Latency of an input",
        kind="step",
        x_label="seconds",
        y_label="share of inputs",
        series=tuple(drawn),
        caption=caption
        if len(drawn) == len(lines)
        else f"{caption} Plain and the fastest methods.",
        source="RECAP Figure 6",
    )
    return Results((table,), (figure,))


def table18(report: Report) -> Results:
    """P10, median, P90 of paired ratios by set, and the share above 1."""
    rows: list[tuple[Cell, ...]] = []
    lines = []
    for label in report.labels:
        groups = metrics.group(report.timed(label), lambda run: run.dataset)
        found = {
            name: metrics.spread([metrics.throughput_ratio(run) for run in some])
            for name, some in groups.items()
        }
        for name, one in found.items():
            rows.append((label, name, one.p10, one.p50, one.p90, 100 * one.above_one))
        lines.append(
            Series(
                name=label,
                x=tuple(found),
                y=tuple(one.p50 for one in found.values()),
                low=tuple(one.p10 for one in found.values()),
                high=tuple(one.p90 for one in found.values()),
            )
        )
    table = Table(
        id="recap_table18",
        title="Paired ratios over inputs",
        columns=("Method", "Set", "P10", "P50", "P90", "above 1 %"),
        rows=tuple(rows),
        caption=report.caption(),
        source="RECAP Table 18, Figure 8",
    )
    figure = Figure(
        id="recap_figure8",
        title="Speedup of single inputs: median, P10 to P90",
        kind="scatter",
        x_label="set",
        y_label="times faster than plain decoding",
        series=tuple(line for line in lines if line.x),
        caption=report.caption(),
        source="RECAP Figure 8",
        baseline=1.0,
    )
    return Results((table,), (figure,))


def _fastest(lines: Sequence[Series]) -> list[Series]:
    """The first curve, plain decoding's, and those of the methods with the smallest means."""
    first, *others = lines
    methods = [one for one in others if not one.name.startswith(PLAIN)]
    methods.sort(key=lambda one: metrics.mean([x for x in one.x if isinstance(x, float)]))
    return [first, *methods[: MOST_CURVES - 1]]


def _partners(runs: list[Run]) -> list[Run]:
    """The plain runs beside these."""
    return [replace(run, tokens=run.plain_tokens, seconds=run.plain_seconds) for run in runs]
