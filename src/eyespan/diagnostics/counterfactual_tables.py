"""Tables and figures of the counterfactual diagnostics: means of benchmark means and intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from eyespan.bench.tables import Cell, Figure, Results, Series, Table
from eyespan.diagnostics.counterfactual import Aligned, Anchor, Found
from eyespan.diagnostics.resample import Sums, macro_interval

LONGEST = 5
"""Accepted lengths from here on are one group."""
BINS = 5

Item = TypeVar("Item", Anchor, Aligned)


def results(found: Found, model: str) -> Results:
    """All of figure 1 and appendix E."""
    caption = (
        f"{found.answers} answers of {model}, {found.rounds} rounds with a draft, "
        f"{len(found.anchors)} valid anchors. Means of benchmark means; 95% intervals from 10,000 "
        "resamples of pictures within benchmarks."
    )
    tables, figures = _acceptance(found.anchors, caption)
    more, drawn = _alignment(found.aligned, caption)
    return Results((*tables, *more), (*figures, *drawn))


def _acceptance(anchors: Sequence[Anchor], caption: str) -> tuple[list[Table], list[Figure]]:
    rows: list[tuple[Cell, ...]] = []
    names, changed, drops = [], [], []
    for length in range(LONGEST + 1):
        chosen = [one for one in anchors if min(one.accepted, LONGEST) == length]
        name = f"{length}+" if length == LONGEST else str(length)
        share = macro(chosen, lambda one: one.changed)
        drop = macro(chosen, lambda one: one.drop)
        mean = macro(chosen, lambda one: one.changed_mean)
        wrong = macro(chosen, lambda one: one.changed_wrong)
        percent = [None if each is None else 100.0 * each for each in share]
        rows.append(
            (name, len(chosen), len({one.group for one in chosen}), *percent,
             *(None if each[0] is None else 100.0 * each[0] for each in (mean, wrong)), *drop)
        )  # fmt: skip
        if chosen:
            names.append(name)
            changed.append(percent)
            drops.append(drop)
    table = Table(
        id="recap_figure1_left",
        title="What the picture decides, by accepted length",
        columns=("Accepted", "Rounds", "Pictures", "Changed (%)", "2.5%", "97.5%",
                 "By the mean picture (%)", "By a wrong picture (%)", "Log-probability drop",
                 "2.5%", "97.5%"),
        rows=tuple(rows),
        caption=caption,
        source="RECAP Figure 1, Evidence 1",
    )  # fmt: skip
    if not names:
        return [table], []
    return [table], [
        _bars("recap_figure1_change", "Failed drafts stand where the picture decides",
              "Accepted draft tokens", "Target's choice changes (%)", names, changed, table),
        _bars("recap_figure1_drop", "Visual dependence of the root prediction",
              "Accepted draft tokens", "Drop of its log probability (nats)", names, drops, table),
    ]  # fmt: skip


def _alignment(aligned: Sequence[Aligned], caption: str) -> tuple[list[Table], list[Figure]]:
    bins = quintiles(aligned)
    rows: list[tuple[Cell, ...]] = []
    names, shares, gains = [], [], []
    for number, chosen in enumerate(bins, 1):
        context = macro(chosen, lambda one: one.context_share)[0]
        gain = macro(chosen, lambda one: float(one.gain))
        relative = macro(chosen, lambda one: one.relative)[0]
        name = f"Q{number}"
        rows.append(
            (
                name,
                len(chosen),
                relative,
                None if context is None else 1.0 - context,
                context,
                *gain,
            )
        )
        if context is not None:
            names.append(name)
            shares.append(context)
            gains.append(gain)
    table = Table(
        id="recap_figure1_right",
        title="Which source the picture supports, and which goes further",
        columns=("Quintile", "States", "E_GC - E_U", "Token share", "Context share",
                 "Contextual gain (tokens)", "2.5%", "97.5%"),
        rows=tuple(rows),
        caption=f"{len(aligned)} eligible states, quintiles within benchmarks. {caption}",
        source="RECAP Figure 1, Evidence 2",
    )  # fmt: skip
    if not names:
        return [table], []
    support = Figure(
        id="recap_figure1_support",
        title="Visual support of both sources",
        kind="bar",
        x_label="From token-aligned to context-aligned",
        y_label="Share of visual support",
        series=(
            Series(name="token only (U)", x=tuple(names), y=tuple(1.0 - one for one in shares)),
            Series(name="contextual (G, C)", x=tuple(names), y=tuple(shares)),
        ),
        caption=table.caption,
        source=table.source,
    )
    gain_figure = _bars(
        "recap_figure1_gain", "The better source changes with the picture's support",
        "From token-aligned to context-aligned", "Contextual minus token-only length (tokens)",
        names, gains, table,
    )  # fmt: skip
    return [table], [support, gain_figure]


def macro(
    chosen: Iterable[Item], value: Callable[[Item], float]
) -> tuple[float | None, float | None, float | None]:
    """Mean of benchmark means with its interval; None where there is nothing to tell."""
    by_benchmark: dict[str, dict[str, Sums]] = {}
    for one in chosen:
        groups = by_benchmark.setdefault(one.benchmark, {})
        total, count = groups.get(one.group, (0.0, 0.0))
        groups[one.group] = (total + float(value(one)), count + 1)
    if not by_benchmark:
        return None, None, None
    means = [_mean(groups) for groups in by_benchmark.values()]
    low, high = macro_interval(list(by_benchmark.values())) or (None, None)
    return float(np.mean(means)), low, high


def _mean(groups: Mapping[str, Sums]) -> float:
    return sum(total for total, _ in groups.values()) / sum(count for _, count in groups.values())


def quintiles(aligned: Sequence[Aligned]) -> list[list[Aligned]]:
    """Five bins by relative support, made within each benchmark; one with fewer than five states
    has no quintiles and is left out.
    """
    bins: list[list[Aligned]] = [[] for _ in range(BINS)]
    for benchmark in dict.fromkeys(one.benchmark for one in aligned):
        ranked = sorted(
            (one for one in aligned if one.benchmark == benchmark), key=lambda one: one.relative
        )
        for rank, one in enumerate(ranked if len(ranked) >= BINS else ()):
            bins[BINS * rank // len(ranked)].append(one)
    return bins


def _bars(
    name: str,
    title: str,
    x_label: str,
    y_label: str,
    names: Sequence[str],
    values: Sequence[Sequence[float | None]],
    table: Table,
) -> Figure:
    """Bars with their intervals; where there is none, the bar itself."""
    rows = [[float("nan") if one is None else one for one in row] for row in values]
    drawn = np.array([[at, *(at if np.isnan(end) else end for end in ends)] for at, *ends in rows])
    return Figure(
        id=name,
        title=title,
        kind="bar",
        x_label=x_label,
        y_label=y_label,
        series=(
            Series(
                name=y_label,
                x=tuple(names),
                y=tuple(drawn[:, 0].tolist()),
                low=tuple(drawn[:, 1].tolist()),
                high=tuple(drawn[:, 2].tolist()),
            ),
        ),
        caption=table.caption,
        source=table.source,
    )
