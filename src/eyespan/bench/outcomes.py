"""What everyone did with one question, judged and written down as the lines that are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eyespan.bench.clock import Timed
from eyespan.bench.compare import judge
from eyespan.bench.datasets import Record
from eyespan.bench.records import PLAIN, Run, Status
from eyespan.bench.schedule import Item


@dataclass(slots=True)
class Outcome:
    """One turn of one side: an answer or an error.

    Attributes:
        label: of the method.
        repeat: number of the repetition.
        timed: the answer.
        error: why there is none, or what failed on the way.
        beside: the plain turn that it is paired with.
        state_bytes: what the drafter held afterwards.
        parameters: weights that the drafter brings.
    """

    label: str
    repeat: int
    timed: Timed | None
    error: str | None = None
    beside: Outcome | None = None
    state_bytes: int = -1
    parameters: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """One turn of one input.

    Attributes:
        item: the input.
        record: what it holds.
        turn: number of the turn.
    """

    item: Item
    record: Record
    turn: int

    def where(self) -> dict[str, Any]:
        """Fields of a line that say what was asked."""
        return where(self.item, self.record.category, self.turn)


def judged(
    asked: Question,
    outcomes: Sequence[Outcome],
    dtype: str,
    gaps: Callable[[], Sequence[float]],
) -> tuple[list[Run], str | None]:
    """Compare everyone's ids with the first plain answer, then write down times.

    Args:
        asked: the question.
        outcomes: of everyone.
        dtype: the target's, which says how close two choices may be to be a tie.
        gaps: asked for once answers differ: how sure the target was at each plain token.

    Returns:
        The lines, and the plain answer; None where plain decoding failed, which is then the only
        line.
    """
    plains = [one for one in outcomes if one.label == PLAIN]
    plain = next((one.timed for one in plains if one.timed), None)
    if plain is None or plain.generation is None:
        return [failed(asked.where(), plains[0].error or "no plain answer")], None
    answers = {one.timed.token_ids for one in outcomes if one.timed}
    sure = gaps() if len(answers) > 1 else []
    runs: list[Run] = []
    seen: set[int] = set()
    for one in outcomes:
        if one.label == PLAIN:  # every repeat keeps one; the others stand beside their methods
            if one.repeat in seen:
                continue
            seen.add(one.repeat)
        runs.append(_run(asked, one, plain.token_ids, sure, dtype))
    return runs, plain.generation.text


def failed(place: dict[str, Any], error: str) -> Run:
    """An input that plain decoding itself could not answer, or that could not be read."""
    return Run(**place, method=PLAIN, repeat=0, status="error", error=error)


def where(item: Item, category: str, turn: int) -> dict[str, Any]:
    """Fields of a line that say what was asked."""
    return {
        "stream": item.stream,
        "dataset": item.dataset,
        "input": item.chosen.id,
        "turn": turn,
        "category": category,
        "image": item.chosen.cluster,
    }


def _run(
    asked: Question, one: Outcome, plain: tuple[int, ...], gaps: Sequence[float], dtype: str
) -> Run:
    status: Status = "error"
    error, timed, beside = one.error, one.timed, one.beside
    if beside is not None and beside.timed is None:
        error = error or f"the plain run beside it failed ({beside.error})"
    if timed is not None and error is None:
        status = judge(plain, timed.token_ids, gaps, dtype).outcome
    made = timed.generation if timed else None
    paired = beside.timed if beside else None
    return Run(
        **asked.where(),
        method=one.label,
        repeat=one.repeat,
        status=status,
        error=error,
        tokens=len(timed.token_ids) if timed else 0,
        forwards=made.forwards if made else 0,
        drafted=made.drafted if made else 0,
        accepted=made.accepted if made else 0,
        drafted_by_depth=made.drafted_by_depth if made else (),
        accepted_by_depth=made.accepted_by_depth if made else (),
        seconds=_seconds(timed),
        stage_ms=dict(made.stage_ms) if made else {},
        stage_cpu_ms=dict(made.stage_cpu_ms) if made else {},
        plain_tokens=len(paired.token_ids) if paired else 0,
        plain_seconds=_seconds(paired),
        state_bytes=one.state_bytes,
        parameters=one.parameters,
        peak_bytes=timed.peak_bytes if timed else -1,
        plain_peak_bytes=paired.peak_bytes if paired else -1,
    )


def _seconds(timed: Timed | None) -> dict[str, float]:
    if timed is None:
        return {}
    stages = dict(timed.generation.seconds) if timed.generation else {}
    return {**stages, "total": timed.seconds}
