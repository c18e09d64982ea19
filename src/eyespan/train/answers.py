"""Conversations as token ids: every turn answered by the target itself, or read from the data set.

Drafters learn best from what the target would say (FOVEA appendix B regenerates all answers), and
an answer's ids are taken as they were decoded, never by encoding its text again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from eyespan.errors import InputError
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.target.images import open_pictures
from eyespan.train.conversations import Conversation, messages_of
from eyespan.train.teacher import Answered
from eyespan.types import Ints

Answer: TypeAlias = Callable[[list[dict[str, Any]], list[Any], str | None], tuple[str, Ints]]
"""From chat messages, pictures and the data set's answer to a text and its ids."""


def regenerated(engine: Engine, max_new_tokens: int) -> Answer:
    """The target's own greedy answers."""

    def answer(
        messages: list[dict[str, Any]], images: list[Any], _: str | None
    ) -> tuple[str, Ints]:
        made = engine.generate(messages, images, max_new_tokens=max_new_tokens)
        return made.text, np.array(made.token_ids, np.int32)

    return answer


def reread(target: HuggingFaceTarget) -> Answer:
    """The data set's answers, ended as the target ends its own."""
    end = sorted(target.info.eos_ids)[:1]

    def answer(
        messages: list[dict[str, Any]], images: list[Any], known: str | None
    ) -> tuple[str, Ints]:
        if known is None:
            raise InputError(
                "re-reading a data set",
                found="a question without an answer",
                needed="an answer to every question is needed",
                todo="Set answers.regenerate = true, so that the target answers.",
            )
        ids = target.tokenizer(known, add_special_tokens=False)["input_ids"]
        return known, np.array([*ids, *end], np.int32)

    return answer


def answered(target: HuggingFaceTarget, conversation: Conversation, answer: Answer) -> Answered:
    """One conversation with all its answers.

    An earlier answer counts only where the next prompt repeats its ids one for one: a template may
    drop or rewrite what was said.

    Raises:
        InputError: pictures or questions that the target refuses, or nothing was answered.
    """
    images = open_pictures(list(conversation.images))
    said: list[str] = []
    spans: list[tuple[int, int]] = []
    before = np.empty(0, np.int32)
    for turn, asked in enumerate(conversation.turns):
        messages = messages_of(conversation, said, turn)
        prompt = target.prepare(messages, images)
        if not np.array_equal(prompt.ids[: len(before)], before):
            spans = [span for span in spans if _same(prompt.ids, before, span)]
        text, ids = answer(messages, images, asked.answer)
        _refuse_media(target, conversation, ids)
        said.append(text)
        spans.append((len(prompt), len(prompt) + len(ids)))
        before = np.concatenate([prompt.ids, ids])
    return Answered(prompt=prompt, answer=ids, spans=tuple(spans))


def _refuse_media(target: HuggingFaceTarget, conversation: Conversation, ids: Ints) -> None:
    """An answer is text: read again, an id that stands for a picture would ask for its pixels."""
    if not len(ids) or np.isin(ids, list(target.info.media_ids)).any():
        raise InputError(
            f"conversation '{conversation.id}'",
            found="an answer with an id that stands for media" if len(ids) else "an empty answer",
            needed="at least one token, and text only, is needed",
            todo="The conversation is left out.",
        )


def _same(ids: Ints, before: Ints, span: tuple[int, int]) -> bool:
    """Whether everything up to the end of a span is as it was."""
    return np.array_equal(ids[: span[1]], before[: span[1]])
