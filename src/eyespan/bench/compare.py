"""Is an answer the plain one? Equal, a near tie, or DIFFERENT.

A pack of many tokens and a pack of one run through different kernels and round differently. Where
the target's best two tokens are closer than that rounding, either may win: a near tie, which plain
decoding on another machine would decide either way too. Any other difference is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from eyespan._core import pack
from eyespan.drafters.base import Ask
from eyespan.types import (
    DraftTree,
    Floats,
    Ints,
    Needs,
    PackedTree,
    Prefill,
    Request,
    Step,
    empty_ints,
)

if TYPE_CHECKING:
    from eyespan.target.base import Prompt, Target

Outcome: TypeAlias = Literal["equal", "near tie", "DIFFERENT"]

NEAR_TIE = {"float32": 1e-4, "float16": 0.07, "bfloat16": 0.5}
"""Largest gap between the target's best two logits that counts as a near tie, by dtype. Logits of a
language model lie below 32, where a number's last place is 2e-6, 0.016 and 0.125; a forward's sum
of roundings is a few such places. float32 gets fifty, and equality is what to expect there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an answer compares with the plain one.

    Attributes:
        outcome: "equal", "near tie" or "DIFFERENT".
        at: index of the first different token; None when equal.
        gap: the target's top-two gap there in the plain run.
    """

    outcome: Outcome
    at: int | None = None
    gap: float | None = None


def judge(plain: Sequence[int], other: Sequence[int], gaps: Sequence[float], dtype: str) -> Verdict:
    """Compare two answers.

    Args:
        plain: ids of the plain answer.
        other: ids of the answer in question.
        gaps: the target's top-two gap at each token of the plain answer.
        dtype: of the target; unknown ones get float32's bound.
    """
    at = first_difference(plain, other)
    if at is None:
        return Verdict("equal")
    if at >= len(gaps):
        return Verdict("DIFFERENT", at)  # the plain answer had ended here
    near = gaps[at] <= NEAR_TIE.get(dtype, NEAR_TIE["float32"])
    return Verdict("near tie" if near else "DIFFERENT", at, gaps[at])


@dataclass(frozen=True, slots=True)
class Audit:
    """Every token of an answer against plain decoding's choice behind the same tokens.

    Attributes:
        tokens: looked at.
        near_ties: tokens that were not the best, by no more than rounding.
        different: tokens that were worse than that.
        worst: largest gap between the best token and the one in the answer.
    """

    tokens: int
    near_ties: int
    different: int
    worst: float


def audit(target: Target, prompt: Prompt, ids: Sequence[int]) -> Audit:
    """Read an answer one token a forward, as plain decoding would, and rate each of its choices.

    A comparison of two answers says nothing behind their first difference; this does.
    """
    bound = NEAR_TIE.get(target.info.dtype, NEAR_TIE["float32"])
    state, prefill = target.prefill(prompt, Needs())
    try:
        logits, gaps = prefill.logits, []
        for at, token in enumerate(ids):
            gaps.append(float(logits.max() - logits[token]))
            if at + 1 < len(ids):
                tree = PackedTree(*pack(empty_ints(), empty_ints(), None, int(token)))
                (out,) = target.forward([state], [tree], Needs())
                target.keep(state, empty_ints())
                logits = out.logits[0]
    finally:
        state.close()
    return Audit(
        tokens=len(gaps),
        near_ties=sum(0 < gap <= bound for gap in gaps),
        different=sum(gap > bound for gap in gaps),
        worst=max(gaps, default=0.0),
    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token in which they differ, the end of the shorter one included."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


class Witness:
    """A drafter that never guesses and notes how sure the target was.

    Attributes:
        gaps: the target's top-two gap at each token of the last request.
    """

    name: ClassVar[str] = "none"
    needs = Needs(rows=True)
    fixed_budget = 0
    extra_nodes = 0

    def __init__(self) -> None:
        self.gaps: list[float] = []

    def begin(self, request: Request, prefill: Prefill) -> Witness:
        """Start over with the gap at the first token."""
        self.gaps = [_gap(prefill.next_row_logits)]
        return self

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """No guess."""
        return DraftTree.empty()

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """No guesses."""
        return [DraftTree.empty() for _ in asks]

    def observe(self, step: Step) -> None:
        """Note the gap at the token that this plain step committed."""
        self.gaps.append(_gap(step.out.row_logits[0]))

    def config_dict(self) -> dict[str, object]:
        """It has no options."""
        return {}

    def is_warm(self, scope: str | None) -> bool:
        """It shares nothing."""
        return False

    def reset(self) -> None:
        """It shares nothing."""


def _gap(logits: Floats) -> float:
    return float(logits[0] - logits[1]) if np.isfinite(logits[1]) else float("inf")
