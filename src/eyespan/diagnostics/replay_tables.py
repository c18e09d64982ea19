"""The tables and figures of a replay, in the paper's arrangement: one data set a trace file. Those
that ask U, C and G themselves are in `source_tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eyespan.bench.tables import Cell, Figure, Series, Table
from eyespan.diagnostics.growth import SEEDS, Growth
from eyespan.diagnostics.matched import Comparison
from eyespan.diagnostics.recorded import Recording
from eyespan.diagnostics.replay import Replayed
from eyespan.diagnostics.resample import interval

BACKOFF: Mapping[str, Mapping[str, object]] = {
    "U": {"orders": "U", "fusion": "backoff", "suffix_tokens": 0},
    "U+C backoff": {"orders": "U+C", "fusion": "backoff", "suffix_tokens": 0},
    "U+C+G backoff": {"fusion": "backoff", "suffix_tokens": 0},
    "Uniform fusion": {"fusion": "uniform", "suffix_tokens": 0},
    "Prior-weighted fusion": {"fusion": "fixed_prior", "suffix_tokens": 0},
}
"""Policies of table 6, as fields of RECAP's config."""

SUFFIX: Mapping[str, Mapping[str, object]] = {
    "Fusion": {"fusion": "fixed_prior", "suffix_tokens": 0},
    "Fusion + suffix": {"fusion": "fixed_prior", "suffix_inside_budget": True},
}
"""Policies of table 7."""

PROTOCOL = "Every state asks before it learns; states are the answers' tokens"


@dataclass(frozen=True, slots=True)
class Pool:
    """What was replayed, for captions.

    Attributes:
        recordings: the trace files.
    """

    recordings: Sequence[Recording]

    def caption(self, text: str) -> str:
        """A table's caption: how it was measured and on what."""
        requests = sum(len(one.requests) for one in self.recordings)
        states = sum(one.states for one in self.recordings)
        models = ", ".join(dict.fromkeys(one.requests[0].model for one in self.recordings))
        return f"{text} {requests} requests, {states:,} states of {models}."


def drafters_tables(
    pool: Pool, found: Mapping[str, Mapping[str, Replayed]]
) -> tuple[list[Table], list[Figure]]:
    """What each drafter would have done.

    Args:
        pool: for captions.
        found: drafter -> data set -> replay.
    """
    sets = [one.name for one in pool.recordings]
    tau_rows: list[tuple[Cell, ...]] = []
    cost_rows: list[tuple[Cell, ...]] = []
    lines = []
    for name, by_set in found.items():
        total = Replayed()
        for one in by_set.values():
            total = total.merged(one)
        rounds = max(total.rounds, 1)
        seen = 100.0 * total.known / max(total.drafted + total.rounds, 1)
        tau_rows.append((name, *(by_set[each].tau for each in sets), total.tau, seen))
        host = {
            stage: 1e3 * total.stage_ms.get(stage, 0.0) / rounds for stage in ("propose", "refresh")
        }
        cost_rows.append(
            (name, total.rounds, total.drafted / rounds, total.accepted / rounds,
             100.0 * total.hits / rounds, host["propose"], host["refresh"])
        )  # fmt: skip
        depths = range(1, len(total.accepted_by_depth) + 1)
        if total.accepted:
            lines.append(
                Series(
                    name=name,
                    x=tuple(float(depth) for depth in depths),
                    y=tuple(100.0 * count / rounds for count in total.accepted_by_depth),
                )
            )
    tables = [
        Table(
            id="replay_tau",
            title="tau of each drafter on the recorded answers",
            columns=("Drafter", *sets, "All", "Rows known (%)"),
            rows=tuple(tau_rows),
            caption=pool.caption(
                "Tokens per target pass, prefills included, at each method's published tree size. "
                "Exact where all rows of its nodes are in the trace; otherwise the drafter learns "
                "less than it would on a model, and its tau is mostly a lower bound."
            ),
        ),
        Table(
            id="replay_drafters",
            title="Drafting on the recorded answers, and what it costs the host",
            columns=("Drafter", "Rounds", "Nodes a round", "Accepted a round", "First token (%)",
                     "Propose (us)", "Refresh (us)"),
            rows=tuple(cost_rows),
            caption=pool.caption("First token: rounds whose tree held the next token."),
        ),
    ]  # fmt: skip
    figures = [
        Figure(
            id="replay_depth",
            title="How deep drafts are accepted",
            kind="line",
            x_label="Depth of the draft (tokens)",
            y_label="Rounds that accept so deep (%)",
            series=tuple(lines),
            caption=pool.caption("All data sets together."),
        )
    ]
    return tables, figures if lines else []


def matched_tables(pool: Pool, found: Mapping[str, Comparison]) -> list[Table]:
    """Table 6: policies by data sets."""
    names = list(next(iter(found.values())).policies)
    rows: list[tuple[Cell, ...]] = [
        (name, *(one.policies[name].mean for one in found.values())) for name in names
    ]
    nodes = [
        one.policies[names[0]].nodes / max(one.policies[names[0]].states, 1)
        for one in found.values()
    ]
    return [
        Table(
            id="recap_table6",
            title="Matched continuation length at equal node counts",
            columns=("Policy", *found),
            rows=(*rows, ("Mean nodes of each", *nodes)),
            caption=pool.caption(
                f"{PROTOCOL}; retrieval begins empty; at most 63 nodes, cut to the smallest count "
                "of all policies. Root and correction token are not counted."
            ),
            source="RECAP Table 6",
        )
    ]


def suffix_tables(pool: Pool, found: Mapping[str, Comparison]) -> list[Table]:
    """Table 7, its offline part."""
    rows: list[tuple[Cell, ...]] = []
    for name, one in found.items():
        plain, more = (one.policies[policy] for policy in SUFFIX)
        change = {
            group: (more.by_group[group][0] - total, count)
            for group, (total, count) in plain.by_group.items()
        }
        low, high = interval(change) or (None, None)
        hits = 100.0 * (more.first - plain.first) / max(plain.states, 1)
        rows.append((name, plain.mean, more.mean, more.mean - plain.mean, low, high, hits))
    return [
        Table(
            id="recap_table7",
            title="What the suffix adds at equal node counts",
            columns=("Data set", "Fusion", "+ suffix", "Difference", "2.5%", "97.5%",
                     "First-token hits (pp)"),
            rows=tuple(rows),
            caption=pool.caption(
                f"Matched continuation length. {PROTOCOL}; prompts seed U; suffix nodes count "
                "within 63. Intervals resample pictures 2,000 times."
            ),
            source="RECAP Table 7 (offline)",
        )
    ]  # fmt: skip


def growth_tables(
    pool: Pool, curves: Sequence[Growth], distinct: int
) -> tuple[list[Table], list[Figure]]:
    """Figure 5 and its numbers: mean and range over the orders."""
    first = curves[0]
    rows = []
    for at, requests in enumerate(first.requests):
        rows.append(
            (requests, *(
                float(np.mean([pick(one)[at] for one in curves])) for pick in _CURVES.values()
            ))
        )  # fmt: skip
    caption = pool.caption(
        f"Cyclic replay of {distinct} requests, shuffled anew at each pass; mean of orders "
        f"{', '.join(map(str, SEEDS))}."
    )
    table = Table(
        id="recap_growth",
        title="The persistent map U over replayed requests",
        columns=("Requests", "Keys of U", "MiB", "Propose (ns)", "Refresh (ns)"),
        rows=tuple(rows),
        caption=caption,
        source="RECAP Figure 5",
    )
    size = _figure("recap_figure5", "Persistent U over cyclic replay", "Size of U (MiB)",
                   {"U": _CURVES["MiB"]}, curves, caption)  # fmt: skip
    cost = _figure(
        "recap_figure5_time",
        "Host time of an operation over cyclic replay",
        "Mean time (ns)",
        {"63-node tree": _CURVES["propose"], "refresh of a pack": _CURVES["refresh"]},
        curves,
        caption,
    )
    return [table], [size, cost]


_Pick = Callable[[Growth], Sequence[float]]
_CURVES: Mapping[str, _Pick] = {
    "rows": lambda one: one.rows,
    "MiB": lambda one: one.mib,
    "propose": lambda one: one.propose_ns,
    "refresh": lambda one: one.refresh_ns,
}


def _figure(
    name: str,
    title: str,
    label: str,
    picks: Mapping[str, _Pick],
    curves: Sequence[Growth],
    caption: str,
) -> Figure:
    series = []
    for each, pick in picks.items():
        table = np.array([pick(one) for one in curves], np.float64)
        series.append(
            Series(
                name=each,
                x=tuple(float(count) for count in curves[0].requests),
                y=tuple(table.mean(axis=0).tolist()),
                low=tuple(table.min(axis=0).tolist()),
                high=tuple(table.max(axis=0).tolist()),
            )
        )
    return Figure(
        id=name,
        title=title,
        kind="line",
        x_label="Replayed requests",
        y_label=label,
        series=tuple(series),
        caption=caption,
        source="RECAP Figure 5",
    )
