"""The main comparisons: every method by set (table 1), by category (table 2), with what it costs
to serve (table 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from eyespan.bench import metrics
from eyespan.bench.builders.shared import Report, equal_of, most, number, summary
from eyespan.bench.records import Run
from eyespan.bench.tables import Cell, Results, Table

MIB, GIB = 2**20, 2**30
BYTES_16_BIT = 2


OVERVIEW = (
    "Method", "S", "95 % interval", "S over stock", "S over compiled", "S decode only", "tau",
    "P10", "above 1",
)  # fmt: skip


def overview(report: Report) -> Results:
    """What a reader wants to know of every method first."""
    whole = summary(report)
    shown = [name for name in OVERVIEW if name in whole.columns]
    places = [whole.columns.index(name) for name in shown]
    rows = [(*(row[at] for at in places), equal_of(report.of(str(row[0])))) for row in whole.rows]
    return Results(
        (
            replace(
                whole,
                id="overview",
                title="Every method on one clock",
                columns=(*shown, "equal answers"),
                rows=tuple(rows),
            ),
        )
    )


def table1(report: Report) -> Results:
    """S and tau of every method on every set, and the plain average over sets."""
    return Results((by_set(report, "recap_table1", "RECAP Table 1"),))


def by_set(report: Report, id_: str, source: str) -> Table:
    """S and tau by set, and their plain average."""
    return _by_column(
        report,
        lambda run: run.dataset,
        list(report.settings.datasets),
        average=lambda runs, cells: [metrics.mean(cells[0]), metrics.mean(cells[1])],
        last="Average",
        id_=id_,
        title="Speedup S and acceptance length tau by set",
        source=source,
    )


def table2(report: Report) -> Results:
    """S and tau by category; "overall" weighs every turn alike."""
    return _by_category(report, "recap_table2", "RECAP Table 2")


def by_category(report: Report) -> Results:
    """The same for inputs that are none of the paper's."""
    return _by_category(report, "by_category", "")


def _by_category(report: Report, id_: str, source: str) -> Results:
    categories = list(dict.fromkeys(run.category for run in report.runs if run.category))
    table = _by_column(
        report,
        lambda run: run.category,
        categories,
        average=lambda runs, cells: [metrics.speedup(runs), metrics.acceptance_length(runs)],
        last="Overall",
        id_=id_,
        title="Speedup S and acceptance length tau by category",
        source=source,
    )
    return Results((table,))


def table3(report: Report) -> Results:
    """What methods bring and what they add to a server."""
    rows: list[tuple[Cell, ...]] = []
    for label in report.labels:
        runs = report.timed(label)
        plain = [run.plain_tokens / run.plain_seconds["total"] for run in runs]
        weights = max((run.parameters for run in report.of(label)), default=0)
        rows.append(
            (
                label,
                weights / 1e6,
                weights * BYTES_16_BIT / GIB,
                most((run.state_bytes for run in report.of(label)), MIB),
                number(metrics.acceptance_length(runs)),
                number(metrics.speedup(runs)),
                number(metrics.mean(plain)),
            )
        )
    table = Table(
        id="recap_table3",
        title="What a method adds to a server, and what it brings",
        columns=("Method", "params (M)", "GiB", "host MiB", "tau", "S", "plain tokens/s"),
        rows=tuple(rows),
        caption="Weights of the drafter in millions, and what they take on the device at 16 bits. "
        "Host memory is the largest that a drafter held after an answer, its request's own "
        f"included. {report.caption()}",
        source="RECAP Table 3",
    )
    return Results((table,))


def _by_column(
    report: Report,
    key: Callable[[Run], str],
    columns: Sequence[str],
    *,
    average: Callable[[Sequence[Run], tuple[list[float], list[float]]], list[float]],
    last: str,
    id_: str,
    title: str,
    source: str,
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for label in report.labels:
        runs = report.timed(label)
        groups = metrics.group(runs, key)
        speeds = [metrics.speedup(groups.get(name, [])) for name in columns]
        taus = [metrics.acceptance_length(groups.get(name, [])) for name in columns]
        cells = [number(one) for pair in zip(speeds, taus, strict=True) for one in pair]
        overall = [number(one) for one in average(runs, (speeds, taus))]
        rows.append((label, *cells, *overall))
    heads = [f"{name} {what}" for name in [*columns, last] for what in ("S", "tau")]
    said = " ".join(leaders(rows, [*columns, last], at) for at in (0, 1))
    return Table(
        id=id_,
        title=title,
        columns=("Method", *heads),
        rows=tuple(rows),
        caption=f"{said} {report.caption()}".strip(),
        source=source,
    )


def leaders(rows: Sequence[tuple[Cell, ...]], columns: Sequence[str], at: int) -> str:
    """In words, which method has the highest S (`at` 0) or tau (1) where.

    Args:
        rows: label, then S and tau of each column.
        columns: names of what they stand under.
        at: which of the two.
    """
    led: dict[str, list[str]] = {}
    for place, name in zip(range(1 + at, 1 + 2 * len(columns), 2), columns, strict=True):
        known = [(row[place], str(row[0])) for row in rows if isinstance(row[place], int | float)]
        if known:
            led.setdefault(max(known, key=itemgetter(0))[1], []).append(name)
    parts = [f"{label} ({', '.join(names)})" for label, names in led.items()]
    return f"Highest {('S', 'tau')[at]}: {'; '.join(parts)}." if parts else ""
