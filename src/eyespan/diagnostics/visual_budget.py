"""How much of a picture does a draft state want? (FOVEA figures 1 and 2, appendix A.)

A *state* is one draft-verify round at a fixed prefix. At every state the drafter drafts with 0, 25,
50, 75 and 100% of the visual tokens: those that the target's last layer attends to most, mean over
heads and over all queries of the current sequence; their order is kept and text is untouched. What
a ratio is worth is the accept length of its tree. The prefixes are those of decoding with 75%.

The target itself always sees the whole picture; only the drafter's inputs are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eyespan.bench.tables import Cell, Figure, Results, Series, Table
from eyespan.diagnostics.matched import matched_length
from eyespan.diagnostics.questions import Question
from eyespan.diagnostics.readings import LATE, Reading, mean, position_of, read
from eyespan.drafters.base import Drafter
from eyespan.target import HuggingFaceTarget
from eyespan.types import Floats, Ints

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)
LOW, DEFAULT = 0.25, 0.75
"""The two that under- and over-supply are told by; decoding goes on with the second."""
BINS = 10


@dataclass(frozen=True, slots=True)
class State:
    """One round.

    Attributes:
        benchmark, sample: of its request.
        position: of the round in its answer, 0 to 1; None for an answer of one round.
        accepted: accept length under each of `RATIOS`, draft tokens alone.
    """

    benchmark: str
    sample: str
    position: float | None
    accepted: tuple[int, ...]

    @property
    def preferred(self) -> float:
        """B_s: the smallest ratio with the longest accepted path (eq. 22)."""
        return RATIOS[self.accepted.index(max(self.accepted))]

    @property
    def spread(self) -> int:
        """G_s: longest minus shortest (eq. 27)."""
        return max(self.accepted) - min(self.accepted)

    @property
    def supply(self) -> str:
        """What 25% are against 75% (eq. 23-25): "under", "over" or "matched"."""
        low, default = (self.accepted[RATIOS.index(ratio)] for ratio in (LOW, DEFAULT))
        return "under" if low < default else "over" if low > default else "matched"

    @property
    def late(self) -> bool | None:
        """Whether it is one of the later rounds."""
        return None if self.position is None else self.position >= LATE


def kept_tokens(importance: Floats, ratio: float) -> Ints:
    """Ascending indices of the visual tokens that a ratio keeps (eq. 21); of equals the earlier."""
    count = len(importance)
    if ratio == 0:
        return np.empty(0, np.int32)
    most = count if ratio == 1 else max(1, int(ratio * count))
    best = np.argsort(-importance, kind="stable")[:most]
    return np.sort(best).astype(np.int32)


def measure(
    target: HuggingFaceTarget,
    drafter: Drafter,
    every: Sequence[Question],
    *,
    tell: Callable[[str], None],
    max_new_tokens: int,
) -> list[State]:
    """The states of all answers.

    Args:
        target: the model.
        drafter: a trained one, bound to it.
        every: the questions.
        tell: told what is under way.
        max_new_tokens: longest answer.

    Raises:
        UnsupportedTarget: its attention cannot be seen.
    """
    found: list[State] = []
    for number, query in enumerate(every, 1):
        tell(f"{query.benchmark}: {query.name} ({number} of {len(every)})")
        one = read(target, query, drafter.needs, max_new_tokens=max_new_tokens)
        if one is not None:
            lengths = states_of(one, drafter)
            count = len(lengths)
            found += [
                State(
                    query.benchmark,
                    query.name,
                    position_of(at, count) if count > 1 else None,
                    accepted,
                )
                for at, accepted in enumerate(lengths)
            ]
    return found


def states_of(one: Reading, drafter: Drafter) -> list[tuple[int, ...]]:
    """Accept lengths under all ratios, round by round."""
    found = []
    end = one.prompt + 1
    while end < len(one.ids):
        importance = one.importance(end)
        ahead = one.ids[end:].tolist()
        accepted = []
        for ratio in RATIOS:
            session, prefix = one.open(drafter, end, kept_tokens(importance, ratio))
            tree = session.propose(prefix, drafter.fixed_budget)
            accepted.append(matched_length(tree, ahead))
        found.append(tuple(accepted))
        end += 1 + accepted[RATIOS.index(DEFAULT)]
    return found


def results(states: Sequence[State], model: str, drafter: str) -> Results:
    """All of figures 1 and 2 (a-c)."""
    answers = len({(one.benchmark, one.sample) for one in states})
    caption = f"{len(states)} states of {answers} answers of {model}, drafted by {drafter}."
    benchmarks = list(dict.fromkeys(one.benchmark for one in states))
    groups = [(name, [one for one in states if one.benchmark == name]) for name in benchmarks]
    groups.append(("all", list(states)))
    preferred: list[tuple[Cell, ...]] = []
    places: list[tuple[Cell, ...]] = []
    for name, some in groups:
        shares = [_share(some, lambda one, r=ratio: one.preferred == r) for ratio in RATIOS]  # type: ignore[misc]
        supply = [
            _share(some, lambda one, w=what: one.supply == w)  # type: ignore[misc]
            for what in ("under", "over", "matched")
        ]
        lengths = [mean([one.accepted[at] for one in some]) for at in range(len(RATIOS))]
        preferred.append((name, len(some), *shares, *supply, *lengths))
        for label, late in (("early", False), ("late", True)):
            chosen = [one for one in some if one.late is late]
            places.append((name, label, len(chosen), *_summary(chosen)))
    tables = [
        Table(
            id="visual_budget",
            title="Which share of the visual tokens a state prefers",
            columns=("Set", "States", *(f"prefers {r:.0%} (%)" for r in RATIOS), "under-supplied %",
                     "over-supplied %", "matched %", *(f"accepted at {r:.0%}" for r in RATIOS)),
            rows=tuple(preferred),
            caption=f"Supply compares {LOW:.0%} with {DEFAULT:.0%}. {caption}",
            source="FOVEA Figures 1 (b), 2 (a, b), Appendix A",
        ),
        Table(
            id="visual_budget_position",
            title="Demand along the answer",
            columns=("Set", "Interval", "States", "preferred share", "range (tokens)",
                     "sensitive %"),
            rows=tuple(places),
            caption=f"Late is from position {LATE} on; means over states. {caption}",
            source="FOVEA Figure 2 (c), Appendix A",
        ),
        _samples(states, caption),
    ]  # fmt: skip
    return Results(tables, [_bins(states, caption)] if any(s.position is not None for s in states)
                   else [])  # fmt: skip


def _summary(some: Sequence[State]) -> tuple[float | None, float | None, float | None]:
    """Means of B, G and S."""
    return (
        mean([one.preferred for one in some]),
        mean([one.spread for one in some]),
        _share(some, lambda one: one.spread > 0),
    )


def _share(some: Sequence[State], holds: Callable[[State], bool]) -> float | None:
    found = mean([holds(one) for one in some])
    return None if found is None else 100 * found


def _samples(states: Sequence[State], caption: str) -> Table:
    """In how many answers the later rounds prefer more."""
    higher = both = 0
    for key in dict.fromkeys((one.benchmark, one.sample) for one in states):
        own = [one for one in states if (one.benchmark, one.sample) == key]
        early, late = (mean([s.preferred for s in own if s.late is late]) for late in (False, True))
        if early is not None and late is not None:
            both += 1
            higher += late > early
    return Table(
        id="visual_budget_samples",
        title="Answers whose later rounds prefer more of the picture",
        columns=("Answers with both", "late higher", "late higher %"),
        rows=((both, higher, 100 * higher / both if both else None),),
        caption=caption,
        source="FOVEA Figure 2 (d), Appendix A",
    )


def _bins(states: Sequence[State], caption: str) -> Figure:
    """Mean preferred share and sensitivity by tenth of the answer (eq. 26)."""
    by_bin: dict[int, list[State]] = {}
    for one in states:
        if one.position is not None:
            by_bin.setdefault(min(BINS - 1, int(BINS * one.position)), []).append(one)
    x = tuple(sorted(by_bin))
    means = [[one.preferred for one in by_bin[at]] for at in x]
    moved = [[float(one.spread > 0) for one in by_bin[at]] for at in x]
    return Figure(
        id="visual_budget_bins",
        title="Visual demand along the answer",
        kind="line",
        x_label="tenth of the answer's rounds",
        y_label="share",
        series=(
            Series(name="preferred", x=x, y=tuple(float(np.mean(one)) for one in means)),
            Series(name="sensitive", x=x, y=tuple(float(np.mean(one)) for one in moved)),
        ),
        caption=caption,
        source="FOVEA Figure 2 (c)",
    )
