"""The tables and figures of a replay that ask U, C and G themselves: what they cover and recall,
how their rows are fused, and what another picture's rows know.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eyespan.bench.tables import Cell, Figure, Series, Table
from eyespan.diagnostics.replay_tables import PROTOCOL, Pool
from eyespan.diagnostics.resample import interval
from eyespan.diagnostics.sources import (
    ORDERS,
    REFERENCE,
    VARIANTS,
    Coverage,
    Fused,
    Swapped,
)


def coverage_tables(
    pool: Pool, empty: Mapping[str, Coverage], seeded: Mapping[str, Coverage]
) -> tuple[list[Table], list[Figure]]:
    """Table 5 and figure 3 (a), and the paired comparison of section 5.2.

    Args:
        pool: for captions.
        empty: by data set, retrieval that begins empty.
        seeded: the same with the prompts' rows.
    """
    main = Table(
        id="recap_table5",
        title="Coverage and conditional Recall@8 of U, C and G",
        columns=("Data set", *(f"{name} coverage (%)" for name in ORDERS),
                 *(f"{name} Recall@8 (%)" for name in ORDERS), "States"),
        rows=tuple(
            (name, *(one.percent_covered(each) for each in ORDERS),
             *(one.recall[each].percent for each in ORDERS), one.states)
            for name, one in empty.items()
        ),
        caption=pool.caption(f"{PROTOCOL}; retrieval begins empty."),
        source="RECAP Table 5, Figure 3 (a)",
    )  # fmt: skip
    rows = []
    for name, one in seeded.items():
        low, high = interval(one.paired.by_group) or (None, None)
        rows.append((name, one.paired.states, one.paired.percent, _points(low), _points(high)))
    paired = Table(
        id="recap_specificity",
        title="Recall@8 of G minus U where both have a row",
        columns=("Data set", "States", "Gain (pp)", "2.5%", "97.5%"),
        rows=tuple(rows),
        caption=pool.caption(
            f"{PROTOCOL}; prompts seed U. Intervals resample pictures 2,000 times."
        ),
        source="RECAP section 5.2",
    )
    series = [
        Series(
            name=name,
            x=tuple(
                _known(one.percent_covered(each)) for each in ORDERS if one.recall[each].states
            ),
            y=tuple(_known(one.recall[each].percent) for each in ORDERS if one.recall[each].states),
        )
        for name, one in empty.items()
    ]
    figure = Figure(
        id="recap_figure3",
        title="Finer keys recall more and cover less",
        kind="line",
        x_label="Query coverage (%)",
        y_label="Conditional Recall@8 (%)",
        series=tuple(one for one in series if one.x),
        caption=pool.caption("Each data set joins U (right), C and G (left)."),
        source="RECAP Figure 3",
    )
    return [main, paired], [figure] if figure.series else []


def fusion_tables(pool: Pool, found: Mapping[str, Fused]) -> tuple[list[Table], list[Figure]]:
    """Tables 14, 16 and 17, figure 7."""
    rows14: list[tuple[Cell, ...]] = [
        (
            variant,
            *(
                _minus(one.recall[variant].percent, one.recall[REFERENCE].percent)
                for one in found.values()
            ),
        )
        for variant in VARIANTS
    ]
    absolute = tuple(one.recall[REFERENCE].percent for one in found.values())
    rows16: list[tuple[Cell, ...]] = []
    points: list[tuple[str, float, float, float]] = []
    for name, one in found.items():
        bounds = interval(one.gain.by_group)
        low, high = (_points(bounds[0]), _points(bounds[1])) if bounds else (None, None)
        gate = one.disputed["Confidence gate"].percent
        rows16.append(
            (
                name,
                one.gain.states,
                one.disputed["RECAP"].percent,
                gate,
                one.gain.percent,
                low,
                high,
            )
        )
        if one.gain.percent is not None:
            at = one.gain.percent
            points.append((name, at, at if low is None else low, at if high is None else high))
    protocol = f"{PROTOCOL}; prompts seed U, C and G begin empty."
    tables = [
        Table(
            id="recap_table14",
            title=f"All-query Recall@8 of fusion rules, change against {REFERENCE} (pp)",
            columns=("Variant", *found),
            rows=(*rows14, (f"{REFERENCE}, absolute (%)", *absolute)),
            caption=pool.caption(f"{protocol} States without a row count as misses."),
            source="RECAP Table 14",
        ),
        Table(
            id="recap_table16",
            title="Recall@8 where sources disagree",
            columns=("Data set", "States", "RECAP", "Confidence gate", "Difference (pp)", "2.5%",
                     "97.5%"),
            rows=tuple(rows16),
            caption=pool.caption(
                f"States at which two rows differ in their first choice. {protocol} Intervals "
                "resample pictures 2,000 times."
            ),
            source="RECAP Table 16, Figure 7",
        ),
        _weights_table(pool, found),
    ]  # fmt: skip
    figure = Figure(
        id="recap_figure7",
        title="Fusion against the confidence gate where sources disagree",
        kind="scatter",
        x_label="",
        y_label="Recall@8 gain over the confidence gate (pp)",
        series=(
            Series(
                name="RECAP minus gate",
                x=tuple(name for name, _, _, _ in points),
                y=tuple(at for _, at, _, _ in points),
                low=tuple(low for _, _, low, _ in points),
                high=tuple(high for _, _, _, high in points),
            ),
        ),
        caption=pool.caption("Points are differences, bars 95% intervals over pictures."),
        source="RECAP Figure 7",
        baseline=0.0,
    )
    return tables, [figure] if points else []


def _weights_table(pool: Pool, found: Mapping[str, Fused]) -> Table:
    """Table 17."""

    def cells(weights: Mapping[int, np.ndarray], calls: Mapping[int, int]) -> tuple[Cell, ...]:
        row: list[Cell] = []
        for rows in (2, 3):
            means = [float(each) / calls[rows] if calls[rows] else None for each in weights[rows]]
            row += [calls[rows], *means]
        return tuple(row)

    rows = [(name, *cells(one.weights, one.calls)) for name, one in found.items()]
    weights = {
        count: np.sum([one.weights[count] for one in found.values()], axis=0) for count in (2, 3)
    }
    calls = {count: sum(one.calls[count] for one in found.values()) for count in (2, 3)}
    return Table(
        id="recap_table17",
        title="Mean fusion weights by specificity rank",
        columns=("Data set", "Calls, two rows", "w1", "w2", "Calls, three rows", "w1", "w2", "w3"),
        rows=(*rows, ("Pooled", *cells(weights, calls))),
        caption=pool.caption(
            "Every look-up of every 63-node tree with two or three rows counts once. Without "
            "confidence the weights would be 0.778, 0.222 and 0.700, 0.200, 0.100."
        ),
        source="RECAP Table 17 (replayed states in place of the online run)",
    )


def swapped_tables(pool: Pool, found: Mapping[str, Swapped]) -> list[Table]:
    """Appendix C: matching against swapped pictures."""
    rows: list[tuple[Cell, ...]] = []
    for name, one in found.items():
        low, high = interval(one.gain["fused"].by_group) or (None, None)
        rows.append(
            (name, one.own.states, one.own.percent, one.other.percent, one.gain["fused"].percent,
             _points(low), _points(high), *(one.gain[each].percent for each in ORDERS))
        )  # fmt: skip
    return [
        Table(
            id="recap_swapped",
            title="Rows computed under the own picture against those under another one",
            columns=("Data set", "States", "Own (%)", "Swapped (%)", "Gain (pp)", "2.5%", "97.5%",
                     "U alone (pp)", "C alone (pp)", "G alone (pp)"),
            rows=tuple(rows),
            caption=pool.caption(
                "Fused Recall@8 on states that both cover; question, answer and states are held "
                "fixed. Rows are the request's own; donors are samples of the same kind. Intervals "
                "resample pictures 2,000 times."
            ),
            source="RECAP Appendix C",
        )
    ]  # fmt: skip


def _points(share: float | None) -> float | None:
    """A share as percentage points."""
    return None if share is None else 100.0 * share


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _known(value: float | None) -> float:
    """A number where one is known to be."""
    assert value is not None
    return value
