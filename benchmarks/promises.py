"""What the budget rule promises and what comes true, and where a round's time goes:
`python -m benchmarks.promises [DRAFTER] [--budget B] [--pictures N] [--compiled]`.

Held-out pictures on the demo model, plain decoding and the drafter taking turns picture by picture.
Three comparisons, each of which says why a drafter that should pay may not: tokens promised and
committed a round, the cost curve's milliseconds and those of the passes in the loop, and every
stage of a round against the same stage of a plain one.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import eyespan
from eyespan.budget import Budget, CostCurve, check_budget
from eyespan.cost import cost_curve
from eyespan.demo import held_out
from eyespan.engine import Decoder
from eyespan.generation import Engine
from eyespan.policy import Policy, Weighed
from eyespan.sequence import STAGES, Running
from eyespan.types import Nodes

SIZES = (0, 1, 3, 7, 15, 31, 63, 127)
HEADS = "{:>7} {:>7} {:>9} {:>10} {:>8} {:>8}"
LINE = "{:>7} {:>7} {:9.2f} {:10.2f} {:8.2f} {:8.2f}"


class Round(NamedTuple):
    """What one round did."""

    sent: int
    """Draft nodes that the target checked."""
    promised: float
    """Tokens that the budget rule expected, the target's own included."""
    committed: int
    ms: dict[str, float]
    """Milliseconds of each stage."""


class Promises(Policy):
    """A policy that remembers what it promised last."""

    promised = 0.0

    def cut(self, proposals: Sequence[Weighed], batch: Sequence[Running]) -> list[Nodes]:
        """As the rule does."""
        cuts = super().cut(proposals, batch)
        self.promised = 1.0 + float(proposals[0].chances[cuts[0]].sum())
        return cuts


class Watched(Decoder):
    """A decoder that notes its rounds; one request at a time."""

    policy: Promises

    def note(self) -> list[Round]:
        """Begin a new list of rounds, which grows with every step."""
        self._rounds: list[Round] = []
        return self._rounds

    def step(self, batch: Sequence[Running]) -> None:
        """As the loop does."""
        (running,) = batch
        counters, length = running.counters, len(running.ids)
        before, sent = dict(counters.stage_ms), counters.drafted
        super().step(batch)
        self._rounds.append(
            Round(
                counters.drafted - sent,
                self.policy.promised,
                len(running.ids) - length,
                {stage: counters.stage_ms[stage] - before[stage] for stage in STAGES},
            )
        )


class Side:
    """An engine under watch."""

    def __init__(self, target: Any, drafter: str, budget: Budget, **options: Any) -> None:
        self.engine = engine = Engine(target, drafter, budget=budget, **options)
        if budget != 0:
            self.curve = cost_curve(target, engine.drafter.needs)
            info = target.info
            engine.policy = Promises(
                budget,
                engine.drafter,
                self.curve,
                one_pass=info.one_pass,
                chains=info.drafts == "chains",
            )
        else:
            engine.policy = Promises(0, engine.drafter)
        engine.decoder = decoder = Watched(target, engine.drafter, engine.policy)
        self.rounds = decoder.note()
        self.seconds: list[float] = []

    def answer(self, question: str, picture: Any) -> list[int]:
        """The answer's ids."""
        began = perf_counter()
        answer = self.engine.generate(question, [picture], max_new_tokens=256)
        self.seconds.append(perf_counter() - began)
        return list(answer.token_ids)


def print_promises(rounds: Sequence[Round], curve: CostCurve, plain_ms: float) -> None:
    """A line for each size of pass, in plain steps."""
    print(HEADS.format("nodes", "rounds", "promised", "committed", "curve", "in loop"))
    by_size: dict[int, list[Round]] = defaultdict(list)
    for each in rounds:
        by_size[min((size for size in SIZES if size >= each.sent), default=SIZES[-1])].append(each)
    for size, group in sorted(by_size.items()):
        sizes = np.array([1 + each.sent for each in group])
        told = float((curve.of(sizes) / curve.of(np.array([1]))).mean())
        took = median(each.ms["forward"] for each in group) / plain_ms
        line = mean(each.promised for each in group), mean(each.committed for each in group)
        print(LINE.format(size, len(group), *line, told, took))
    total = mean(each.promised for each in rounds), mean(each.committed for each in rounds)
    print(LINE.format("all", len(rounds), *total, float("nan"), float("nan")))


def print_stages(sides: dict[str, Sequence[Round]]) -> None:
    """Mean milliseconds of each stage of a round."""
    print(("{:>10}" * (1 + len(sides))).format("ms", *sides))
    for stage in STAGES:
        spent = [mean(each.ms[stage] for each in rounds) for rounds in sides.values()]
        print(f"{stage:>10}" + "".join(f"{ms:10.2f}" for ms in spent))


def main() -> None:
    """Run both sides and print what is said above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafter", nargs="?", default="recap")
    parser.add_argument("--budget", default="auto")
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    budget = int(args.budget) if args.budget.isdigit() else args.budget
    target = eyespan.load("demo", "none", budget=0, compiled=args.compiled).target
    plain, ours = Side(target, "none", 0), Side(target, args.drafter, check_budget(budget))
    same = 0
    for sample in held_out(args.pictures + 1):
        question, sides = sample.turns[0].question, (plain, ours)
        answers = [side.answer(question, sample.image) for side in sides]
        same += answers[0] == answers[1]
    plain_ms = median(each.ms["forward"] for each in plain.rounds)
    pairs = list(zip(plain.seconds, ours.seconds, strict=True))[1:]  # the first one warms up
    gains = [a / b for a, b in pairs]
    print(f"{same} of {len(plain.seconds)} answers equal; S {mean(gains):.2f}")
    print_promises(ours.rounds, ours.curve, plain_ms)
    print_stages({"plain": plain.rounds, args.drafter: ours.rounds})


if __name__ == "__main__":
    main()
