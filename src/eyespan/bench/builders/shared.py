"""What builders of tables share: the results of a run, and how they are described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eyespan.bench import metrics
from eyespan.bench.records import COMPILED, NOISE, PLAIN, STOCK, Run
from eyespan.bench.settings import Comparison, Settings
from eyespan.bench.tables import Cell, Figure, Series, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that tables are made of.

    Attributes:
        settings: of the run.
        runs: all answers.
        manifest: machine, versions, command (see `eyespan.bench.manifest`).
        skipped: methods that could not run here, with reasons.
        extra: results of runs that measure no answers (stress).
    """

    settings: Settings
    runs: Sequence[Run] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Methods that ran, in the order of the settings."""
        return [one.label for one in self.settings.methods if one.label not in self.skipped]

    def of(self, label: str) -> list[Run]:
        """All answers of one method."""
        return [run for run in self.runs if run.method == label]

    def timed(self, label: str) -> list[Run]:
        """Answers of one method that have a speed."""
        return metrics.comparable(self.of(label))

    def caption(self) -> str:
        """How it was measured."""
        said = self.settings
        inputs = len({(run.dataset, run.input) for run in self.runs})
        units = len({(run.dataset, run.input, run.turn) for run in self.runs})
        text = (
            f"{said.model}, {', '.join(said.datasets)}: {inputs} inputs, {units} turns, at most "
            f"{said.max_new_tokens} tokens, greedy, {said.repeats} x {_PAIRS[said.pairing]}"
        )
        if self.manifest:
            text += (
                f"; {self.manifest['machine']}, {self.manifest['threads']} threads, commit "
                f"{(self.manifest['commit'] or 'unknown')[:12]}"
            )
        if warning := repeats_said(int(self.manifest.get("repeated_inputs", 0)), inputs):
            text += f"; {warning}"
        for label, reason in self.skipped.items():
            text += f". {label} is left out: {reason}"
        return text + "."


def repeats_said(again: int, inputs: int) -> str:
    """A warning where more than one input in a hundred is an earlier one once more, else ""."""
    if again <= 0.01 * inputs:
        return ""
    return (
        f"{again} of {inputs} inputs repeat an earlier one, whose answer a method that remembers "
        "recalls"
    )


_PAIRS = {"each": "a plain run beside every run", "round": "a plain run in every round"}


def comparisons(report: Report) -> list[Comparison]:
    """Those whose methods both ran."""
    labels = report.labels
    return [one for one in report.settings.compare if {one.method, one.over} <= set(labels)]


def with_interval(report: Report, runs: Sequence[Run], ratios: Sequence[float]) -> str:
    """A mean with its interval, as text."""
    found = metrics.bootstrap(
        ratios, [run.image for run in runs], resamples=report.settings.resamples
    )
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if ratios else "-"


def most(values: Iterable[int], unit: int) -> Cell:
    """The largest value in a unit; -1 stands for one that nobody knows."""
    return max((value / unit for value in values if value >= 0), default=None)


def known(table: Table, *optional: str) -> Table:
    """The table without those columns that no row fills."""
    kept = [
        at
        for at, name in enumerate(table.columns)
        if name not in optional or any(row[at] is not None for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
    )


def number(value: float) -> Cell:
    """NaN, which stands for nothing to count, as an empty cell."""
    return None if value != value else value


def summary(report: Report) -> Table:
    """Every method over all inputs: speed over our plain loop and over stock, tau, the slow end."""
    columns = (
        "Method", "S", "95 % interval", "S over stock", "S over compiled", "S decode only",
        "ratio of sums", "tau", "tokens / forward", "P10", "median", "above 1", "tokens/s",
        "outputs",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    stock, compiled = report.timed(STOCK), report.timed(COMPILED)
    for label in [*report.labels, NOISE]:
        runs = report.timed(label)
        if not report.of(label):
            continue
        ratios = [metrics.throughput_ratio(run) for run in runs]
        found = metrics.bootstrap(
            ratios, [run.image for run in runs], resamples=report.settings.resamples
        )
        spread = metrics.spread(ratios) if ratios else None
        rows.append(
            (
                label,
                number(found.value),
                f"{found.low:.2f} to {found.high:.2f}" if ratios else None,
                number(metrics.mean(metrics.against(runs, stock))),
                number(metrics.mean(metrics.against(runs, compiled))),
                number(metrics.decode_speedup(runs)) if runs else None,
                number(metrics.ratio_of_sums(runs)) if runs else None,
                number(metrics.acceptance_length(runs)),
                number(metrics.tokens_per_forward(runs)) if runs else None,
                spread.p10 if spread else None,
                spread.p50 if spread else None,
                f"{spread.above_one:.0%}" if spread else None,
                number(metrics.tokens_per_second(runs)),
                outputs_of(report.of(label)),
            )
        )
    ran = {"S over stock": stock, "S over compiled": compiled}
    shown = [at for at, name in enumerate(columns) if ran.get(name, rows)]
    return Table(
        id="summary",
        title="All methods over all inputs",
        columns=tuple(columns[at] for at in shown),
        rows=tuple(tuple(row[at] for at in shown) for row in rows),
        caption=f"S is the mean of paired throughput ratios against plain decoding in our loop, "
        f"prefill included; '{NOISE}' is the same for a second plain side. {report.caption()}",
    )


def lossless(report: Report) -> Table:
    """How many answers of each method are the plain one."""
    rows = []
    for label in [*report.labels, NOISE, STOCK, COMPILED, PLAIN]:
        runs = report.of(label)
        if runs:
            counts = _counts(runs)
            rows.append((label, len(runs), *counts.values(), _first_error(runs)))
    return Table(
        id="lossless",
        title="Is every answer the plain one?",
        columns=("Method", "answers", "equal", "near tie", "DIFFERENT", "error", "first error"),
        rows=tuple(rows),
        caption="Compared token by token before times are looked at. A near tie is a difference "
        "at a token where the model's two best choices lie within rounding of each other. "
        + report.caption(),
    )


def outputs_of(runs: Sequence[Run]) -> str:
    """In a word: "equal", or what else there was."""
    counts = _counts(runs)
    others = [f"{count} {name}" for name, count in counts.items() if count and name != "equal"]
    return ", ".join(others) if others else "equal"


def equal_of(runs: Sequence[Run]) -> str:
    """How many answers are the plain one, of how many."""
    return f"{_counts(runs)['equal']} of {len(runs)}"


def _counts(runs: Iterable[Run]) -> dict[str, int]:
    statuses = [run.status for run in runs]
    return {name: statuses.count(name) for name in ("equal", "near tie", "DIFFERENT", "error")}


def _first_error(runs: Sequence[Run]) -> str | None:
    return next((f"{run.input}: {run.error}" for run in runs if run.error), None)


def depth_figure(report: Report) -> Figure:
    """How far into the tree verified paths reach."""
    series = []
    for label in report.labels:
        shares = metrics.acceptance_by_depth(report.timed(label))
        if shares:
            depths: tuple[float, ...] = tuple(range(1, len(shares) + 1))
            series.append(Series(name=label, x=depths, y=tuple(shares)))
    return Figure(
        id="acceptance_by_depth",
        title="Verify passes whose accepted path reaches a depth",
        kind="line",
        x_label="depth in the draft tree",
        y_label="share of passes that offered it",
        series=tuple(series),
        caption=report.caption(),
    )
