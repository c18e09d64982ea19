"""Paired changes of throughput: components (table 4), longer keys and suffix nodes by set (figure
3 b, table 7), streams (table 8, figure 4), root fallbacks (table 12) and fusion rules (table 13). A
gain is 100 (mean R - 1) over inputs whose turns are pooled (eq. 11).
"""

from __future__ import annotations

from collections.abc import Sequence

from eyespan.bench import metrics
from eyespan.bench.builders.shared import Report, comparisons, number
from eyespan.bench.records import Run
from eyespan.bench.settings import Comparison
from eyespan.bench.tables import Cell, Figure, Results, Series, Table


def table4(report: Report) -> Results:
    """Every comparison with its interval over picture clusters."""
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(report):
        over, runs = report.timed(one.over), report.timed(one.method)
        rows.append((one.section, one.label, *_change(report, over, runs)))
    table = Table(
        id="recap_table4",
        title="What each part brings",
        columns=("Part", "Comparison", *_CHANGE),
        rows=tuple(rows),
        caption="Paired change of throughput, the turns of an input pooled; 95 % intervals from "
        f"resampled pictures. {report.caption()}",
        source="RECAP Table 4",
    )
    return Results((table,))


_CHANGE = ("gain %", "low", "high", "tau over", "tau with", "inputs")


def _change(report: Report, over: Sequence[Run], runs: Sequence[Run]) -> tuple[Cell, ...]:
    """Cells of `_CHANGE`: a gain with its interval, and tau on both sides."""
    found, inputs = _interval(report, over, runs)
    taus = [metrics.acceptance_length(some) for some in (over, runs)]
    return (*map(number, (found.value, found.low, found.high, *taus)), inputs)


def _interval(
    report: Report, over: Sequence[Run], runs: Sequence[Run]
) -> tuple[metrics.Interval, int]:
    """A gain with its interval over picture clusters, and of how many inputs."""
    ratios = metrics.pooled_ratios(runs, over)
    clusters = {(run.stream, run.dataset, run.input): run.image for run in runs}
    found = metrics.bootstrap(
        [100 * (ratio - 1) for ratio in ratios.values()],
        [clusters[key] for key in ratios],
        resamples=report.settings.resamples,
    )
    return found, len(ratios)


def figure3(report: Report) -> Results:
    """Every comparison set by set, with its interval: where longer keys bring speed."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Series] = []
    for one in comparisons(report):
        found = {}
        for name in report.settings.datasets:
            over, runs = (_runs(report, label, name) for label in (one.over, one.method))
            if not runs or not over:
                continue
            found[name], inputs = _interval(report, over, runs)
            numbers = map(number, (found[name].value, found[name].low, found[name].high))
            rows.append((one.label, name, *numbers, inputs))
        bars.append(
            Series(
                name=one.label,
                x=tuple(found),
                y=tuple(each.value for each in found.values()),
                low=tuple(each.low for each in found.values()),
                high=tuple(each.high for each in found.values()),
            )
        )
    caption = f"95 % intervals from resampled pictures. {report.caption()}"
    source = "RECAP Figure 3 (b)"
    table = Table(
        id="recap_figure3",
        title="What longer keys bring, set by set",
        columns=("Comparison", "Set", "gain %", "low", "high", "inputs"),
        rows=tuple(rows),
        caption=caption,
        source=source,
    )
    figure = Figure(
        id="recap_figure3b",
        title="What longer keys bring, set by set",
        kind="bar",
        x_label="set",
        y_label="throughput gain (%)",
        series=tuple(bars),
        caption=caption,
        source=source,
        baseline=0.0,
    )
    return Results((table,), (figure,))


def table7(report: Report) -> Results:
    """Every comparison set by set, with tau on both sides: the online part of the table."""
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(report):
        for name in report.settings.datasets:
            over, runs = (_runs(report, label, name) for label in (one.over, one.method))
            rows.append((one.label, name, *_change(report, over, runs)))
    table = Table(
        id="recap_table7_online",
        title="What suffix nodes bring, set by set",
        columns=("Comparison", "Set", *_CHANGE),
        rows=tuple(rows),
        caption=f"95 % intervals from resampled pictures. {report.caption()}",
        source="RECAP Table 7 (online)",
    )
    return Results((table,))


def table12(report: Report) -> Results:
    """S, tau and the change against the first method, averaged over turns."""
    first, *_ = report.labels
    reference = report.timed(first)
    rows: list[tuple[Cell, ...]] = []
    for label in report.labels:
        runs = report.timed(label)
        change = metrics.gain(metrics.against(runs, reference))
        speed, tau = metrics.speedup(runs), metrics.acceptance_length(runs)
        rows.append((label, number(speed), number(tau), number(change)))
    table = Table(
        id="recap_table12",
        title="Other rows where no key of the root is known",
        columns=("Variant", "S", "tau", f"throughput against '{first}' %"),
        rows=tuple(rows),
        caption=report.caption(),
        source="RECAP Table 12",
    )
    return Results((table,))


def table13(report: Report) -> Results:
    """Every comparison by set, then the mean over sets."""
    datasets = list(report.settings.datasets)
    rows: list[tuple[Cell, ...]] = []
    for one in comparisons(report):
        gains = [_gain(report, one, dataset=name) for name in datasets]
        tau = metrics.acceptance_length(report.timed(one.method))
        rows.append((one.label, *map(number, gains), number(metrics.mean(gains)), number(tau)))
    table = Table(
        id="recap_table13",
        title="Fusion rules: change of throughput in percent",
        columns=("Variant", *datasets, "Mean", "tau"),
        rows=tuple(rows),
        caption=report.caption(),
        source="RECAP Table 13",
    )
    return Results((table,))


def table8(report: Report) -> Results:
    """Gains by set and schedule: mean and spread over the orders of the inputs."""
    said = report.settings
    rows: list[tuple[Cell, ...]] = []
    bars: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    for one in comparisons(report):
        for name in said.datasets:
            cells: list[Cell] = []
            for schedule in said.schedules:
                gains = [
                    _gain(report, one, dataset=name, stream=f"{schedule}/{seed}")
                    for seed in said.seeds
                ]
                mean, sd = metrics.mean(gains), metrics.sample_sd(gains)
                cells += [number(mean), number(sd)]
                if mean == mean:  # a set without answers has no bar
                    bars.setdefault((one.label, schedule), []).append((name, mean, sd))
            rows.append((one.label, name, *cells))
    heads = [f"{schedule} {what}" for schedule in said.schedules for what in ("gain %", "SD")]
    caption = (
        f"Each order of the inputs (seeds {', '.join(map(str, said.seeds))}) is a stream of its "
        f"own; SD is over orders. {report.caption()}"
    )
    table = Table(
        id="recap_table8",
        title="Memory across requests, by order of the stream",
        columns=("Comparison", "Set", *heads),
        rows=tuple(rows),
        caption=caption,
        source="RECAP Table 8, Figure 4",
    )
    figure = Figure(
        id="recap_figure4",
        title="What a lasting memory brings, by order of the stream",
        kind="bar",
        x_label="set",
        y_label="throughput gain (%)",
        series=tuple(
            _bars(f"{label}, {schedule}", values) for (label, schedule), values in bars.items()
        ),
        caption=caption,
        source="RECAP Figure 4",
        baseline=0.0,
    )
    return Results((table,), (figure,))


def _bars(name: str, values: Sequence[tuple[str, float, float]]) -> Series:
    spread = [0.0 if sd != sd else sd for _, _, sd in values]
    middle = [mean for _, mean, _ in values]
    return Series(
        name=name,
        x=tuple(dataset for dataset, _, _ in values),
        y=tuple(middle),
        low=tuple(mean - sd for mean, sd in zip(middle, spread, strict=True)),
        high=tuple(mean + sd for mean, sd in zip(middle, spread, strict=True)),
    )


def _gain(report: Report, one: Comparison, *, dataset: str, stream: str | None = None) -> float:
    runs, over = (_runs(report, label, dataset, stream) for label in (one.method, one.over))
    return metrics.gain(metrics.pooled_ratios(runs, over).values())


def _runs(report: Report, label: str, dataset: str, stream: str | None = None) -> list[Run]:
    """A method's timed answers on one set, of one stream where it is named."""
    return [
        run
        for run in report.timed(label)
        if run.dataset == dataset and stream in (None, run.stream)
    ]
