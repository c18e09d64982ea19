"""What runs are judged by, as pure functions over their records.

Equations are RECAP's. A *unit* is one generation: one turn of one input (its N). Only runs whose
answer is the plain one take part in anything that involves time (`comparable`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from eyespan.bench.records import TIMED, Run

Statistic = Callable[[Sequence[float]], float]
Key = TypeVar("Key", bound=Hashable)


def comparable(runs: Iterable[Run]) -> list[Run]:
    """Those that wrote the plain answer, near ties included: only they have a speed."""
    return [run for run in runs if run.status in TIMED]


def throughput_ratio(run: Run) -> float:
    """r_i of eq. 9: tokens per second over those of the plain run beside it, prefill included.

    Raises:
        ValueError: the run has no plain partner.
    """
    return _rate(run.tokens, run.seconds["total"]) / _plain_rate(run, "total")


def decode_ratio(run: Run) -> float:
    """The same without the prefill: tokens after the first one, over decoding time alone.

    1.0 for an answer of one token, which is never decoded.
    """
    if min(run.tokens, run.plain_tokens) < 2:
        return 1.0
    plain = run.plain_seconds["decode"]
    return _rate(run.tokens - 1, run.seconds["decode"]) / _rate(run.plain_tokens - 1, plain)


def speedup(runs: Sequence[Run]) -> float:
    """S, eq. 9: the mean of paired throughput ratios."""
    return mean([throughput_ratio(run) for run in runs])


def decode_speedup(runs: Sequence[Run]) -> float:
    """The mean of paired ratios of decoding alone."""
    return mean([decode_ratio(run) for run in runs])


def ratio_of_sums(runs: Sequence[Run]) -> float:
    """All tokens over all seconds, against the same of the plain runs: what a queue would feel."""
    own = _rate(sum(run.tokens for run in runs), sum(run.seconds["total"] for run in runs))
    plain = _rate(
        sum(run.plain_tokens for run in runs), sum(run.plain_seconds["total"] for run in runs)
    )
    return own / plain


def acceptance_length(runs: Sequence[Run]) -> float:
    """tau, eq. 10: one plus the mean over units of draft tokens accepted per verify pass.

    The prefill is no verify pass. A unit of one token has none and is left out.
    """
    return 1.0 + mean([run.accepted / (run.forwards - 1) for run in runs if run.forwards > 1])


def tokens_per_forward(runs: Sequence[Run]) -> float:
    """All committed tokens over all target forwards, the prefill counted."""
    return sum(run.tokens for run in runs) / sum(run.forwards for run in runs)


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Mean over units of tokens per second, prefill included."""
    return mean([_rate(run.tokens, run.seconds["total"]) for run in runs])


def against(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """Throughput of runs over that of another method's on the same unit and repeat, where both
    are there.
    """
    rates = {_unit(run): _rate(run.tokens, run.seconds["total"]) for run in others}
    return [
        _rate(run.tokens, run.seconds["total"]) / rates[_unit(run)]
        for run in runs
        if _unit(run) in rates
    ]


def length_changes(
    runs: Sequence[Run], others: Sequence[Run]
) -> dict[tuple[str, str, str, int, int], float]:
    """Change of tau on every unit and repeat that both methods verified something on.

    Returns:
        {(stream, dataset, input, turn, repeat): tau of the run less that of the other}.
    """
    mine, theirs = (
        {_unit(run): acceptance_length([run]) for run in some if run.forwards > 1}
        for some in (runs, others)
    )
    return {unit: mine[unit] - theirs[unit] for unit in mine if unit in theirs}


def pooled_ratios(runs: Sequence[Run], others: Sequence[Run]) -> dict[tuple[str, str, str], float]:
    """R_j of eq. 11: throughput of an input with its turns pooled, over another method's.

    Units and repeats that only one of them has are left out of both.

    Returns:
        {(stream, dataset, input): ratio}.
    """
    both = {_unit(run) for run in runs} & {_unit(run) for run in others}
    mine = group([run for run in runs if _unit(run) in both], _input)
    theirs = group([run for run in others if _unit(run) in both], _input)
    return {key: _pooled(mine[key]) / _pooled(theirs[key]) for key in mine}


def gain(ratios: Iterable[float]) -> float:
    """Mean change in percent, 100 (mean R - 1) (appendix B)."""
    return 100.0 * (mean(list(ratios)) - 1.0)


class Spread(NamedTuple):
    """How ratios are distributed over units (table 18)."""

    p10: float
    p50: float
    p90: float
    above_one: float
    """Share strictly above 1."""


def spread(ratios: Sequence[float]) -> Spread:
    """P10, median, P90 and the share above 1; percentiles interpolate linearly."""
    low, middle, high = percentiles(ratios, (10, 50, 90))
    return Spread(low, middle, high, sum(ratio > 1.0 for ratio in ratios) / len(ratios))


def input_latencies(runs: Iterable[Run]) -> list[float]:
    """T_i of appendix J: seconds of an input, its turns summed (repeats averaged)."""
    by_input = group(runs, _input)
    return [
        sum(run.seconds["total"] for run in turns) / len({run.repeat for run in turns})
        for turns in by_input.values()
    ]


def percentiles(values: Sequence[float], wanted: Sequence[float]) -> tuple[float, ...]:
    """Percentiles (0 to 100), interpolated linearly; NaN without values."""
    if not len(values):
        return tuple(float("nan") for _ in wanted)
    return tuple(float(value) for value in np.percentile(np.asarray(values, np.float64), wanted))


def cumulative(values: Iterable[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """F(t): values ascending, and the share of values up to each."""
    ordered = tuple(sorted(values))
    return ordered, tuple((at + 1) / len(ordered) for at in range(len(ordered)))


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean of values and its 95 % interval over resampled clusters (appendix B: by picture).

    Args:
        values: [n] one per unit.
        clusters: [n] names; values of one cluster are drawn together.
        resamples: how many.
        seed: fixes them.
    """
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values and {len(clusters)} clusters")
    if not values:
        return Interval(float("nan"), float("nan"), float("nan"))
    names = {name: at for at, name in enumerate(dict.fromkeys(clusters))}
    sums, sizes = np.zeros(len(names)), np.zeros(len(names))
    for value, name in zip(values, clusters, strict=True):
        sums[names[name]] += value
        sizes[names[name]] += 1
    drawn = np.random.default_rng(seed).integers(0, len(names), (resamples, len(names)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(mean(values), float(low), float(high))


def acceptance_by_depth(runs: Iterable[Run]) -> list[float]:
    """Share of verify passes offering a node at depth 1, 2, ... whose path reached that depth."""
    offered: list[int] = []
    reached: list[int] = []
    for run in runs:
        _add(offered, run.drafted_by_depth)
        _add(reached, run.accepted_by_depth)
    reached += [0] * (len(offered) - len(reached))
    return [took / gave for took, gave in zip(reached, offered, strict=True) if gave]


def stage_ms(runs: Sequence[Run]) -> dict[str, float]:
    """Milliseconds of a verify pass by stage, pooled over passes (table 9); "other" is decoding
    time that no stage holds.
    """
    passes = sum(run.forwards - 1 for run in runs)
    if not passes:
        return {}
    totals: dict[str, float] = defaultdict(float)
    for run in runs:
        for stage, spent in run.stage_ms.items():
            totals[stage] += spent
    decode = 1e3 * sum(run.seconds["decode"] for run in runs)
    totals["other"] = decode - sum(totals.values())
    return {stage: spent / passes for stage, spent in totals.items()}


def stage_cpu_ms(runs: Sequence[Run]) -> dict[str, float]:
    """Processor milliseconds of a verify pass by stage, of the runs that recorded them."""
    known = [run for run in runs if run.stage_cpu_ms]
    passes = sum(run.forwards - 1 for run in known)
    totals: dict[str, float] = defaultdict(float)
    for run in known:
        for stage, spent in run.stage_cpu_ms.items():
            totals[stage] += spent
    return {stage: spent / passes for stage, spent in totals.items()} if passes else {}


def group(runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    """Runs by key, in order of first appearance."""
    groups: dict[Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def mean(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def sample_sd(values: Sequence[float]) -> float:
    """Standard deviation of a sample; NaN below two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def by_category(
    runs: Iterable[Run], statistic: Callable[[Sequence[Run]], float]
) -> Mapping[str, float]:
    """A statistic within each category (table 2)."""
    return {name: statistic(some) for name, some in group(runs, lambda r: r.category).items()}


def _unit(run: Run) -> tuple[str, str, str, int, int]:
    return (run.stream, run.dataset, run.input, run.turn, run.repeat)


def _input(run: Run) -> tuple[str, str, str]:
    return (run.stream, run.dataset, run.input)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds


def _plain_rate(run: Run, stage: str) -> float:
    if not run.plain_seconds:
        raise ValueError(f"run of '{run.method}' on {run.input} has no plain run beside it")
    return _rate(run.plain_tokens, run.plain_seconds[stage])


def _pooled(runs: Sequence[Run]) -> float:
    return _rate(sum(run.tokens for run in runs), sum(run.seconds["total"] for run in runs))


def _add(into: list[int], counts: Sequence[int]) -> None:
    into += [0] * (len(counts) - len(into))
    for at, count in enumerate(counts):
        into[at] += count
