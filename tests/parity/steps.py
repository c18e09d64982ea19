"""Slow and obvious: what the target says one token at a time. The twin of a packed forward."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch

from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt, SequenceState
from eyespan.testing import SEEING, TEXT_ONLY, packed, tiny_images, tiny_target
from eyespan.types import DraftTree, Needs

FAMILIES_AND_IMAGES = [
    *((family, images) for family in SEEING for images in (0, 1, 2)),
    *((family, 0) for family in TEXT_ONLY),
]
WORST = 5e-5
"""Largest difference of float32 logits of about +-8; 6e-6 was seen, a wrong mask gives 1 to 10."""


@lru_cache
def target_of(family: str, attention: str = "sdpa") -> HuggingFaceTarget:
    return tiny_target(family, attention=attention)


def prompt_of(target: HuggingFaceTarget, images: int, text: str = "What is this?") -> Prompt:
    return target.prepare(text, tiny_images(images))


def step(target: HuggingFaceTarget, state: SequenceState, token: int) -> torch.Tensor:
    """[V] logits after one more token, by a plain step."""
    out = target.forward([state], [packed(DraftTree.empty(), token)], Needs())[0]
    target.keep(state, np.empty(0, np.int32))
    return out.logits[0]


def steps_after(
    target: HuggingFaceTarget, prompt: Prompt, tokens: Iterable[int]
) -> list[torch.Tensor]:
    """Logits after each token, by a fresh prefill and plain steps."""
    state, _ = target.prefill(prompt, Needs())
    return [step(target, state, int(token)) for token in tokens]


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
