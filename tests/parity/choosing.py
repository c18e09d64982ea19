"""Engines, prompts and stock answers that the tests of choosing tokens share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import SEEING, OracleDrafter, RandomDrafter, tiny_images, tiny_target

PROMPT = "abc abc, what is this? abc abc"
TOKENS = 24
DRAFTERS = ("none", "recap", "random", "oracle")


@cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


def pictures(family: str) -> list[Any]:
    return tiny_images(1) if family in SEEING else []


@cache
def inputs_of(family: str) -> Prompt:
    return target_of(family).prepare(PROMPT, pictures(family))


@cache
def engine_of(family: str, drafter: str) -> Engine:
    target = target_of(family)
    made: Any = {
        "random": lambda: RandomDrafter(target.info.vocab_size),
        "oracle": lambda: OracleDrafter(target, [inputs_of(family)]),
    }.get(drafter, lambda: drafter)()
    return Engine(target, made, budget=0 if drafter == "none" else "fixed")


def ask(family: str, drafter: str, **options: Any) -> Any:
    """Our answer."""
    options = {"max_new_tokens": TOKENS, **options}
    return engine_of(family, drafter).generate(PROMPT, pictures(family), **options)


def stock(family: str, seed: int = 0, **options: Any) -> tuple[int, ...]:
    """What `model.generate()` answers."""
    prompt = inputs_of(family)
    torch.manual_seed(seed)
    out = target_of(family).model.generate(
        input_ids=prompt.input_ids,
        attention_mask=torch.ones_like(prompt.input_ids),
        **prompt.media,
        **{"max_new_tokens": TOKENS, "do_sample": False, "top_k": None, **options},
    )
    return tuple(out[0, len(prompt) :].tolist())
