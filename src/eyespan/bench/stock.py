"""Stock transformers as a side of the clock: `model.generate()` on the same model object."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from eyespan.bench.clock import Side, Timed
from eyespan.target.adapter import HuggingFaceTarget

if TYPE_CHECKING:
    from eyespan.target.base import Prompt, Target

_PLAIN_GREEDY: dict[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "temperature": None,
    "top_p": None,
    "top_k": None,
}
"""What checkpoints like to set in their generation config and our loop does not do."""


def stock_side(
    target: Target, prompt: Any, images: Any = (), *, max_new_tokens: int
) -> Side | None:
    """Stock greedy `generate()` from the same prepared inputs; None for a target of another kind.

    Raises:
        InputError: see `Target.prepare`.
    """
    if not isinstance(target, HuggingFaceTarget):
        return None
    inputs = target.prepare(prompt, images)

    def side() -> Timed:
        before = perf_counter()
        ids = stock_ids(target, inputs, max_new_tokens)
        return Timed(ids, perf_counter() - before)

    return side


def stock_ids(
    target: HuggingFaceTarget, prompt: Prompt, max_new_tokens: int, **options: Any
) -> tuple[int, ...]:
    """The answer's ids as stock greedy `generate()` writes them, its end included; `options` are
    further ones of it.
    """
    mask = prompt.padding if prompt.padding is not None else torch.ones_like(prompt.input_ids)
    room = target.info.max_context - len(prompt)
    output = target.model.generate(
        input_ids=prompt.input_ids,
        attention_mask=mask,
        max_new_tokens=min(max_new_tokens, room),
        eos_token_id=sorted(target.info.eos_ids),
        **prompt.media,
        **_PLAIN_GREEDY,
        **options,
    )
    return tuple(output[0, len(prompt) :].tolist())
