"""What a model is told besides ids: at a step no more than stock's own step tells it, and where an
answer is read behind its prompt what its steps would have told.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eyespan.testing import SEEING, tiny_images, tiny_prompt
from eyespan.train.teacher import extended
from eyespan.types import Needs
from tests.parity.steps import WORST, gap, step, steps_after, target_of

NO = Needs()
PROCESSING = [*SEEING, "qwen3_vl", "llava_next_video", "video_llava", "internvl"]
SAID = [99, 100, 101]
TOLD = ("gemma3", "gemma4", "paligemma", "molmo2", "qwen2_5_vl", "glm4v")
READ = [*TOLD, "mllama", "phi4_multimodal"]


def named(kwargs: dict[str, Any]) -> set[str]:
    """What is not left at its default."""
    return {name for name, value in kwargs.items() if value is not None}


@pytest.mark.parametrize("family", TOLD)
def test_a_step_is_told_no_more_than_stocks(family: str) -> None:
    """Gemma 3 and 4 build the masks of pictures, slowly, whenever they are told kinds of tokens."""
    target = target_of(family)
    prompt, calls = tiny_prompt(target, family, 1), list[set[str]]()
    hook = target.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(named(kwargs)), with_kwargs=True
    )
    try:
        target.model.generate(
            input_ids=prompt.input_ids,
            attention_mask=torch.ones_like(prompt.input_ids),
            **prompt.media,
            max_new_tokens=2,
            min_new_tokens=2,
        )
        state, _ = target.prefill(prompt, NO)
        step(target, state, SAID[0])
    finally:
        hook.remove()
    assert len(calls) == 4
    assert calls[3] <= calls[1]


@pytest.mark.parametrize("family", PROCESSING)
def test_what_a_processor_brings_stands_in_the_familys_row(family: str) -> None:
    """What does not would be given to prompts whose pictures are cached, too."""
    target = target_of(family)
    row = target.family
    brought = target.prepare("What is this?", tiny_images(1)).media
    assert set(brought) <= {*row.media_inputs, *row.step_inputs, row.token_kinds}


@pytest.mark.parametrize("family", READ)
def test_an_answer_read_behind_its_prompt(family: str) -> None:
    """PaliGemma's prompt sees itself both ways, and its answer does not."""
    target = target_of(family)
    prompt = tiny_prompt(target, family, 1)
    state, read = target.prefill(extended(target, prompt, np.array(SAID, np.int32)), NO)
    state.close()
    assert gap(read.logits, steps_after(target, prompt, SAID)[-1]) < WORST
