"""Two runs side by side: what changed between folder A and folder B."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyespan.bench import metrics
from eyespan.bench.records import PLAIN, Run, read_runs
from eyespan.bench.tables import Cell, Table
from eyespan.errors import InputError

RESAMPLES = 2000


def between(a: Path, b: Path) -> Table:
    """Every method that both runs measured: S, tau and outputs in A and in B, on common units.

    Units are matched by set, input, pictures, turn and repeat, and only those whose answers are the
    plain one in both count. The interval is of the paired difference of S, over resampled pictures:
    a change whose interval holds 0 is no change. Seconds of two runs are never compared directly;
    machines differ. Settings that are not alike, another model above all, are said beneath.

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
        caption="Paired by set, input, pictures, turn and repeat; 95 % intervals of the difference "
        f"over resampled pictures.{_unlike(_settings(a), _settings(b))}",
    )


_SAID = ("methods", "datasets", "max_inputs")
"""Settings that the rows themselves tell of: what is compared, and on how many units."""


def _settings(folder: Path) -> Mapping[str, Any]:
    """What a run measured with; nothing where its settings were lost, which its answers survive."""
    try:
        held = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return held if isinstance(held, dict) else {}
    except (OSError, ValueError):
        return {}


def _unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """In words, settings that two runs do not share."""
    if not a or not b:
        return " What both ran with is not known: a folder has no readable run.json."
    differ = [
        f"{key} ({json.dumps(a.get(key))} in A, {json.dumps(b.get(key))} in B)"
        for key in sorted({*a, *b}.difference(_SAID))
        if a.get(key) != b.get(key)
    ]
    return f" The two runs differ in {', '.join(differ)}." if differ else ""


def _timed(runs: Sequence[Run], label: str) -> dict[tuple[object, ...], Run]:
    return {
        (run.stream, run.dataset, run.input, run.image, run.turn, run.repeat): run
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
