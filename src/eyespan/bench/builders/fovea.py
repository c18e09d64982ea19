"""FOVEA's tables and figures: every method by set (table 1), retrained variants (table 2), ways for
a picture to reach a node (table 3), retrieval controls (table 7), fixed numbers of entries (figure
4) and how deep nodes are corrected (figure 6).

S is the paired throughput ratio and tau that of eq. 10 of RECAP, as in all tables; a *macro* value
is the mean over sets of a set's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from eyespan.bench import metrics
from eyespan.bench.builders.main import MIB, by_set
from eyespan.bench.builders.shared import Report, comparisons, known, most, number
from eyespan.bench.records import Run
from eyespan.bench.settings import Comparison
from eyespan.bench.tables import Cell, Figure, Results, Series, Table

Measure: TypeAlias = Callable[[Sequence[Run]], float]
MEASURES: tuple[tuple[str, Measure], ...] = (
    ("S", metrics.speedup),
    ("tau", metrics.acceptance_length),
)


def table1(report: Report) -> Results:
    """S and tau of every method on every set, and the plain average over sets."""
    return Results((by_set(report, "fovea_table1", "FOVEA Table 1"),))


def table2(report: Report) -> Results:
    """The same of retrained variants, and what each loses against the whole method."""
    values = by_set(report, "fovea_table2", "FOVEA Table 2")
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(report):
        changes = [_relative(report, one, measure) for _, measure in MEASURES]
        rows.append((one.section, one.label, *(number(change) for change in changes)))
    losses = Table(
        id="fovea_table2_changes",
        title="What a variant changes, macro averages in percent",
        columns=("Part", "Variant", "S %", "tau %"),
        rows=tuple(rows),
        caption=report.caption(),
        source="FOVEA Table 2",
    )
    return Results((values, losses, paired_lengths(report)) if rows else (values,))


def table3(report: Report) -> Results:
    """What an interface between picture and node costs, and what it brings."""
    rows: list[tuple[Cell, ...]] = []
    for label in report.labels:
        runs = report.timed(label)
        beside = [run for run in runs if min(run.peak_bytes, run.plain_peak_bytes) >= 0]
        over = [(run.peak_bytes - run.plain_peak_bytes) / MIB for run in beside]
        rows.append(
            (
                label,
                metrics.stage_ms(runs).get("propose"),
                most((run.state_bytes for run in report.of(label)), MIB),
                number(metrics.mean(over)),
                *(number(measure(runs)) for _, measure in MEASURES),
            )
        )
    table = Table(
        id="fovea_table3",
        title="Ways for a picture to reach a node",
        columns=("Interface", "draft ms", "extra MiB", "GPU peak over plain MiB", "S", "tau"),
        rows=tuple(rows),
        caption="Draft time is that of a proposal, pooled over passes, whatever is encoded again "
        "included. Extra memory is the largest that a request's drafter state held at its end: "
        "cached keys and values, visual memory, kept inputs; a GPU's peak beyond that of the plain "
        f"run beside it is the mean over answers. {report.caption()}",
        source="FOVEA Table 3",
    )
    return Results((known(table, "GPU peak over plain MiB"),))


def table7(report: Report) -> Results:
    """Change of S and tau by set against the whole method, mean and SD over repeats."""
    names = report.settings.datasets
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(report):
        cells: list[Cell] = []
        for chosen in [*((name,) for name in names), names]:
            for _, measure in MEASURES:
                changes = [
                    _macro(report, one.method, measure, chosen, repeat)
                    - _macro(report, one.over, measure, chosen, repeat)
                    for repeat in range(report.settings.repeats)
                ]
                cells.append(_with_sd([each for each in changes if each == each]))
        rows.append((one.label, *cells))
    heads = [f"{name} {what}" for name in [*names, "Macro"] for what in ("change of S", "of tau")]
    table = Table(
        id="fovea_table7",
        title="Matched controls of retrieval on the same weights",
        columns=("Variant", *heads),
        rows=tuple(rows),
        caption=f"Absolute changes, mean ± SD over {report.settings.repeats} repeats. "
        + report.caption(),
        source="FOVEA Table 7",
    )
    return Results((table, paired_lengths(report)))


def figure4(report: Report) -> Results:
    """Change of S and tau against dense aggregation in percent, by number of entries."""
    names = report.settings.datasets
    rows: list[tuple[Cell, ...]] = []
    bars: dict[str, list[Series]] = {}
    for one in comparisons(report):
        cells: list[Cell] = []
        for what, measure in MEASURES:
            changes = [_relative(report, one, measure, (name,)) for name in names]
            cells += [number(each) for each in (*changes, _relative(report, one, measure))]
            there = [(n, c) for n, c in zip(names, changes, strict=True) if c == c]
            if there:
                x, y = zip(*there, strict=True)
                bars.setdefault(what, []).append(Series(name=one.label, x=x, y=y))
        rows.append((one.label, *cells))
    heads = [f"{name} {what} %" for what, _ in MEASURES for name in [*names, "Macro"]]
    table = Table(
        id="fovea_figure4",
        title="How many entries a node takes, against all of them",
        columns=("Retrieval", *heads),
        rows=tuple(rows),
        caption=report.caption(),
        source="FOVEA Figure 4",
    )
    figures = [
        Figure(
            id=f"fovea_figure4_{what}",
            title=f"{what} against dense retrieval",
            kind="bar",
            x_label="set",
            y_label=f"change of {what} (%)",
            series=tuple(series),
            caption=report.caption(),
            source="FOVEA Figure 4",
            baseline=0.0,
        )
        for what, series in bars.items()
    ]
    return Results((table, paired_lengths(report)), figures)


def figure6(report: Report) -> Results:
    """tau, S and the share of answers faster than plain decoding, by correction depth."""
    rows: list[tuple[Cell, ...]] = []
    points: list[tuple[float, tuple[float, float, float]]] = []
    depths = {one.label: one.options.get("correct_depth") for one in report.settings.methods}
    for label in report.labels:
        runs = report.timed(label)
        ratios = [metrics.throughput_ratio(run) for run in runs]
        share = 100 * metrics.spread(ratios).above_one if ratios else float("nan")
        found = (metrics.acceptance_length(runs), metrics.mean(ratios), share)
        rows.append((label, *(number(value) for value in found)))
        depth = depths[label]
        if isinstance(depth, int) and all(value == value for value in found):
            points.append((depth, found))
    table = Table(
        id="fovea_figure6",
        title="Sensitivity to the correction depth",
        columns=("Corrected nodes", "tau", "S", "faster than plain %"),
        rows=tuple(rows),
        caption=report.caption(),
        source="FOVEA Figure 6",
    )
    points.sort()
    shown = (("tau", "tokens a pass"), ("S", "ratio"), ("share", "answers faster than plain (%)"))
    figures = [
        Figure(
            id=f"fovea_figure6_{name}",
            title=f"{name} by correction depth",
            kind="line",
            x_label="deepest corrected node",
            y_label=unit,
            series=(
                Series(
                    name=name,
                    x=tuple(depth for depth, _ in points),
                    y=tuple(found[at] for _, found in points),
                ),
            ),
            caption=report.caption(),
            source="FOVEA Figure 6",
        )
        for at, (name, unit) in enumerate(shown)
        if points
    ]
    return Results((table,), figures)


def paired_lengths(report: Report) -> Table:
    """Every comparison's change of tau, answer by answer, set by set and over all, with an interval
    that says whether it is one.
    """
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(report):
        if one.method == one.over:
            continue
        runs = report.timed(one.method)
        pictures = {(run.stream, run.dataset, run.input): run.image for run in runs}
        changes = metrics.length_changes(runs, report.timed(one.over))
        for name in [*report.settings.datasets, None]:
            there = {unit: by for unit, by in changes.items() if name in (None, unit[1])}
            if not there:
                continue
            found = metrics.bootstrap(
                list(there.values()),
                [pictures[unit[:3]] for unit in there],
                resamples=report.settings.resamples,
            )
            cells = map(number, (found.value, found.low, found.high))
            rows.append((one.label, name or "all", *cells, len(there)))
    return Table(
        id="fovea_paired_tau",
        title="Changes of tau, answer by answer",
        columns=("Variant", "set", "change of tau", "low", "high", "answers"),
        rows=tuple(rows),
        caption="95 % intervals over resampled pictures; one that holds 0 is no change. "
        + report.caption(),
        source="after FOVEA",
    )


def _macro(
    report: Report,
    label: str,
    measure: Measure,
    names: Sequence[str],
    repeat: int | None = None,
) -> float:
    """Mean over sets of a method's value; NaN where a set has no answer."""
    runs = [run for run in report.timed(label) if repeat in (None, run.repeat)]
    return metrics.mean([measure([run for run in runs if run.dataset == one]) for one in names])


def _relative(
    report: Report, one: Comparison, measure: Measure, names: Sequence[str] | None = None
) -> float:
    """Change in percent of a macro value."""
    chosen = report.settings.datasets if names is None else names
    over = _macro(report, one.over, measure, chosen)
    return 100 * (_macro(report, one.method, measure, chosen) / over - 1)


def _with_sd(values: Sequence[float]) -> str | None:
    """Mean and spread as text; a single value has no spread."""
    if not values:
        return None
    sd = metrics.sample_sd(values)
    return f"{metrics.mean(values):+.3f}" + (f" ± {sd:.3f}" if sd == sd else "")
