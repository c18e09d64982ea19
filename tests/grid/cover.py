"""Draws cases so that every pair of values that may stand together does stand together somewhere.

Greedy: each case begins with a pair that no case has yet and takes, axis by axis, the value that
adds most new pairs. So the first cases are the most different ones, and any beginning of the list
is a good sample of the whole.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

from tests.grid.axes import AXES, RULES, Case

Point = tuple[str, str]
"""(axis, value)."""

BY_AXIS = {axis: [rule for rule in RULES if axis in rule.when] for axis in AXES}


def allowed(values: dict[str, str], axis: str) -> bool:
    """Whether the value just given to an axis may stand beside the others."""
    return not any(rule.forbids(values) for rule in BY_AXIS[axis])


def pairs() -> set[tuple[Point, Point]]:
    """All pairs of values that no rule excludes."""
    return {
        ((one, a), (other, b))
        for one, other in combinations(AXES, 2)
        for a in AXES[one]
        for b in AXES[other]
        if all(allowed({one: a, other: b}, axis) for axis in (one, other))
    }


def pairs_of(case: Case) -> set[tuple[Point, Point]]:
    """The pairs that one case covers."""
    return set(combinations([(axis, getattr(case, axis)) for axis in AXES], 2))


def covering(seed: int) -> Iterator[Case]:
    """Cases until every pair has been seen."""
    rng = random.Random(seed)
    missing: dict[Point, set[Point]] = {}
    for one, other in pairs():
        missing.setdefault(one, set()).add(other)
        missing.setdefault(other, set()).add(one)
    unseen = set(missing)
    while left := sorted(point for point, others in missing.items() if others):
        # every value first of all, then those with most pairs left
        left = sorted(unseen) or left
        most = max(len(missing[point]) for point in left)
        first = rng.choice([point for point in left if len(missing[point]) == most])
        values = dict([first, rng.choice(sorted(missing[first]))])
        order = [axis for axis in AXES if axis not in values]
        rng.shuffle(order)
        for axis in order:
            values[axis] = _best(axis, values, missing, rng)
        for one, other in combinations(values.items(), 2):
            missing[one].discard(other)
            missing[other].discard(one)
        unseen -= set(values.items())
        yield Case(**values)


def _best(
    axis: str, values: dict[str, str], missing: dict[Point, set[Point]], rng: random.Random
) -> str:
    """The value with most new pairs; the first of a shuffled row, so that ties are even."""
    chosen = set(values.items())
    row = list(AXES[axis])
    rng.shuffle(row)
    fits = [value for value in row if allowed({**values, axis: value}, axis)]
    return max(fits, key=lambda value: len(missing.get((axis, value), set()) & chosen))
