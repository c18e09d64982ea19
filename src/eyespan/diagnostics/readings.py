"""One reading of a question and its answer: everything that a trained drafter would have seen at
any point of the answer, and what the target attended to meanwhile.

With a frozen answer nothing has to be verified again: a draft's accepted length is that of its
longest path that the answer goes on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eyespan.diagnostics.questions import Question
from eyespan.drafters.base import Drafter, Session
from eyespan.errors import UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.train.teacher import extended
from eyespan.types import Floats, Ints, Needs, Prefill, Request, empty_ints


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A question with its answer, read whole.

    Attributes:
        ids: [L] prompt and answer.
        prompt: tokens of the prompt.
        pictures: [m] positions of visual tokens.
        attention: [L, m] the last layer's, of every token on each visual token, mean over heads.
        hidden: [L, R, D] states that the drafter reads.
        visual: [m, D] projected visual tokens, or None where the drafter reads none.
        media_ids, eos_ids: of the target.
        media: the prompt's own tensors.
    """

    ids: Ints
    prompt: int
    pictures: Ints
    attention: Floats
    hidden: Floats | None
    visual: Floats | None
    media_ids: frozenset[int]
    eos_ids: frozenset[int]
    media: dict[str, Any]

    def importance(self, end: int) -> Floats:
        """[m] attention on each visual token, mean over the queries of `ids[:end]`."""
        mean: Floats = self.attention[:end].mean(0)
        return mean

    def open(self, drafter: Drafter, end: int, kept: Ints | None = None) -> tuple[Session, Ints]:
        """A session that stands where `ids[end - 1]` is the root, with some visual tokens alone.

        Args:
            drafter: a trained one.
            end: tokens of the prefix, the root included; beyond the prompt.
            kept: ascending indices among the visual tokens; None keeps all.

        Returns:
            The session and the prefix that it drafts after; dropped visual tokens are in neither.
        """
        stays = np.ones(end, np.bool_)
        visual = self.visual
        if kept is not None:
            stays[self.pictures] = False
            stays[self.pictures[kept]] = True
            visual = None if visual is None else visual[kept]
        prefix = np.ascontiguousarray(self.ids[:end][stays])
        request = Request(
            id="diagnostic",
            prompt_ids=prefix[:-1],
            media_ids=self.media_ids,
            eos_ids=self.eos_ids,
            max_new_tokens=len(self.ids),
        )
        extras: dict[str, Any] = {"visual_tokens": visual}
        if self.hidden is not None:
            extras["hidden"] = self.hidden[: end - 1][stays[: end - 1]]
        nothing = np.empty((0, 0))
        prefill = Prefill(
            next_row_ids=empty_ints(),
            next_row_logits=empty_ints().astype(np.float32),
            logits=None,
            positions=empty_ints(),
            row_ids=nothing.astype(np.int32),
            row_logits=nothing.astype(np.float32),
            extras=extras,
        )
        return drafter.begin(request, prefill), prefix


def read(
    target: HuggingFaceTarget, query: Question, needs: Needs, *, max_new_tokens: int
) -> Reading | None:
    """Answer a question plainly, then read question and answer once.

    Args:
        target: the model.
        query: with pictures.
        needs: of the drafter, if any.
        max_new_tokens: longest answer.

    Returns:
        The reading; None for an answer of a single token, which has no state.

    Raises:
        UnsupportedTarget: attention cannot be seen, or visual tokens do not stand in the sequence.
    """
    prompt = target.prepare(query.messages, query.pictures)
    plain = Engine(target, "none", budget=0)
    answer = plain.generate(prompt, max_new_tokens=max_new_tokens).token_ids
    if len(answer) < 2:
        return None
    whole = extended(target, prompt, np.array(answer, np.int32))
    wanted = Needs(hidden_layers=needs.hidden_layers, visual_tokens=True)
    prefill, pictures, attention = target.read_attention(whole, wanted)
    visual = prefill.extras.get("visual_tokens")
    if not len(pictures) or visual is None or len(visual) != len(pictures):
        raise UnsupportedTarget(
            f"visual tokens of '{target.info.name}'",
            found=f"{len(pictures)} places for {0 if visual is None else len(visual)} of them",
            needed="one place in the sequence for each is needed",
            todo="Use a model that reads pictures as tokens of its prompt.",
        )
    return Reading(
        ids=whole.ids,
        prompt=len(prompt),
        pictures=pictures,
        attention=attention,
        hidden=prefill.extras.get("hidden"),
        visual=visual,
        media_ids=target.info.media_ids,
        eos_ids=target.info.eos_ids,
        media=dict(prompt.media),
    )


def position_of(at: int, count: int) -> float:
    """Place of item `at` among `count` > 1 on a scale from 0 to 1 (FOVEA eq. 26)."""
    return at / (count - 1)


LATE = 0.6
"""Positions from here on are late."""


def mean(values: Sequence[float] | npt.NDArray[np.float64]) -> float | None:
    """None of nothing."""
    return float(np.mean(values)) if len(values) else None
