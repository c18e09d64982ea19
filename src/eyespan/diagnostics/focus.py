"""Does the target look elsewhere as it goes on? (FOVEA figure 2 (d), appendix A.)

At every step of a plain answer the 16 visual tokens that the last layer attends to most are noted;
D_t is the Jaccard distance of neighbouring steps' sets (eq. 29). A pair is late when the middle of
its two positions is at 0.6 or later. It says that the set changes, not how far it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eyespan.bench.tables import Cell, Results, Table
from eyespan.diagnostics.questions import Question
from eyespan.diagnostics.readings import LATE, mean, position_of, read
from eyespan.target import HuggingFaceTarget
from eyespan.types import Floats, Needs

TOP = 16
"""Visual tokens of a focus."""


@dataclass(frozen=True, slots=True)
class Movement:
    """Of one answer.

    Attributes:
        benchmark, sample: which one.
        early, late: mean Jaccard distance in each interval; None without pairs there.
    """

    benchmark: str
    sample: str
    early: float | None
    late: float | None


def distances(attention: Floats) -> list[float]:
    """Jaccard distances of neighbouring steps.

    Args:
        attention: [steps, m] on each visual token; of equals the earlier token counts as higher.
    """
    order = np.argsort(-attention, axis=1, kind="stable")[:, :TOP]
    sets = [set(row.tolist()) for row in order]
    return [1 - len(a & b) / len(a | b) for a, b in pairwise(sets)]


def movement(benchmark: str, sample: str, attention: Floats) -> Movement:
    """Means of an answer's early and late pairs; see `distances`."""
    moved, steps = distances(attention), len(attention)
    middles = [(position_of(t, steps) + position_of(t + 1, steps)) / 2 for t in range(len(moved))]
    parts: list[float | None] = []
    for late in (False, True):
        parts.append(
            mean([d for d, at in zip(moved, middles, strict=True) if (at >= LATE) is late])
        )
    return Movement(benchmark, sample, *parts)


def measure(
    target: HuggingFaceTarget,
    every: Sequence[Question],
    *,
    tell: Callable[[str], None],
    max_new_tokens: int,
) -> list[Movement]:
    """Read all answers.

    Args:
        target: the model.
        every: the questions.
        tell: told what is under way.
        max_new_tokens: longest answer.

    Raises:
        UnsupportedTarget: its attention cannot be seen.
    """
    found = []
    for number, query in enumerate(every, 1):
        tell(f"{query.benchmark}: {query.name} ({number} of {len(every)})")
        one = read(target, query, Needs(), max_new_tokens=max_new_tokens)
        if one is not None:
            # the step that chooses a token has the token before it as its query
            steps = one.attention[one.prompt - 1 : len(one.ids) - 1]
            found.append(movement(query.benchmark, query.name, steps))
    return found


def results(found: Sequence[Movement], model: str) -> Results:
    """The table, set by set."""
    rows: list[tuple[Cell, ...]] = []
    names = list(dict.fromkeys(one.benchmark for one in found))
    for name in [*names, "all"]:
        some = [one for one in found if name in ("all", one.benchmark)]
        both = [(one.early, one.late) for one in some
                if one.early is not None and one.late is not None]  # fmt: skip
        higher = sum(late > early for early, late in both)
        rows.append(
            (
                name,
                len(both),
                mean([early for early, _ in both]),
                mean([late for _, late in both]),
                higher,
                100 * higher / len(both) if both else None,
            )
        )
    table = Table(
        id="focus_movement",
        title="How the most attended visual tokens change from step to step",
        columns=("Set", "Answers", "early distance", "late distance", "late higher",
                 "late higher %"),
        rows=tuple(rows),
        caption=f"Jaccard distance of the {TOP} most attended visual tokens of neighbouring steps, "
        f"last layer of {model}; late is from {LATE} on. Answers with pairs in both intervals.",
        source="FOVEA Figure 2 (d), Appendix A",
    )  # fmt: skip
    return Results((table,))
