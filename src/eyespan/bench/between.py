"""Two runs side by side: what changed between folder A and folder B."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eyespan.bench import metrics
from eyespan.bench.records import PLAIN, Run, read_runs
from eyespan.bench.tables import Cell, Table
from eyespan.errors import InputError

RESAMPLES = 2000


def between(a: Path, b: Path) -> Table:
    """Every method that both runs measured: S, tau and outputs in A and in B, on common units.

    Units are matched by set, input, turn and repeat, and only those whose answers are the plain one
    in both count. The interval is of the paired difference of S, over resampled pictures: a change
    whose interval holds 0 is no change. Seconds of two runs are never compared directly; machines
    differ.

    Raises:
        InputError: a folder holds no results, or the two have nothing in common.
    """
    ours, theirs = read_runs(a), read_runs(b)
    methods = [one for one in dict.fromkeys(run.method for run in ours) if one != PLAIN]
    rows = [
        row
        for label in methods
        if (row := _row(label, _timed(ours, label), _timed(theirs, label))) is not None
    ]
    if not rows:
        raise InputError(
            f"comparing {a} with {b}",
            found="no method that both measured on the same input",
            needed="runs over the same inputs are needed",
            todo="Run the same file twice, with different settings of what you compare.",
        )
    return Table(
        id="compare",
        title=f"{a} against {b}",
        columns=(
            "Method",
            "units",
            "S in A",
            "S in B",
            "B - A",
            "low",
            "high",
            "tau in A",
            "tau in B",
        ),
        rows=tuple(rows),
        caption="Paired by set, input, turn and repeat; 95 % intervals of the difference over "
        "resampled pictures.",
    )


def _timed(runs: Sequence[Run], label: str) -> dict[tuple[object, ...], Run]:
    return {
        (run.stream, run.dataset, run.input, run.turn, run.repeat): run
        for run in metrics.comparable(runs)
        if run.method == label and run.plain_seconds
    }


def _row(
    label: str, ours: dict[tuple[object, ...], Run], theirs: dict[tuple[object, ...], Run]
) -> tuple[Cell, ...] | None:
    common = [key for key in ours if key in theirs]
    if not common:
        return None
    a, b = [ours[key] for key in common], [theirs[key] for key in common]
    changes = [
        metrics.throughput_ratio(two) - metrics.throughput_ratio(one)
        for one, two in zip(a, b, strict=True)
    ]
    found = metrics.bootstrap(changes, [run.image for run in a], resamples=RESAMPLES)
    speeds, taus = (
        [statistic(some) for some in (a, b)]
        for statistic in (metrics.speedup, metrics.acceptance_length)
    )
    return (label, len(common), *speeds, found.value, found.low, found.high, *taus)
