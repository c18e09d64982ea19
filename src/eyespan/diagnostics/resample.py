"""Bootstrap intervals by groups: requests about one picture are no independent samples.

The paper resamples picture clusters of the fixed evaluation set (appendix B), so an interval says
how much the pictures matter, not what another data set would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Sums: TypeAlias = tuple[float, float]
"""Of one group: the sum of its values, and how many they are."""

SEED = 17


def weights_of(groups: int, resamples: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """[resamples, groups] how often each group was drawn, `groups` draws with replacement."""
    chances = np.full(groups, 1.0 / groups)
    drawn: npt.NDArray[np.int64] = rng.multinomial(groups, chances, size=resamples)
    return drawn


def interval(
    groups: Mapping[str, Sums], *, resamples: int = 2000, seed: int = SEED
) -> tuple[float, float] | None:
    """95% interval of the mean over all values of all groups.

    Args:
        groups: sums and counts by group.
        resamples: how often groups are drawn anew.
        seed: of the draws.

    Returns:
        2.5% and 97.5% percentiles; None when there are fewer than two groups with values.
    """
    table = np.array([sums for sums in groups.values() if sums[1]], np.float64)
    if len(table) < 2:
        return None
    drawn = weights_of(len(table), resamples, np.random.default_rng(seed)) @ table
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return float(low), float(high)


def macro_interval(
    benchmarks: Sequence[Mapping[str, Sums]], *, resamples: int = 10_000, seed: int = SEED
) -> tuple[float, float] | None:
    """95% interval of the mean of benchmark means; groups are drawn within their benchmark.

    Args:
        benchmarks: sums and counts by group, of each benchmark that has values.
        resamples: how often groups are drawn anew.
        seed: of the draws.

    Returns:
        2.5% and 97.5% percentiles; None when no benchmark has two groups with values.
    """
    rng = np.random.default_rng(seed)
    means = []
    varied = False
    for groups in benchmarks:
        table = np.array([sums for sums in groups.values() if sums[1]], np.float64)
        if not len(table):
            continue
        varied |= len(table) > 1
        drawn = weights_of(len(table), resamples, rng) @ table
        means.append(drawn[:, 0] / drawn[:, 1])
    if not varied:
        return None
    low, high = np.percentile(np.mean(means, axis=0), [2.5, 97.5])
    return float(low), float(high)
