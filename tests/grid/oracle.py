"""What a row must say: plain decoding alone, and stock's `generate()` where it can be asked."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from eyespan.generation import Engine
from eyespan.target.base import Prompt
from eyespan.types import Generation
from tests.grid.rows import Row, options_of, prompt_of, stock_options, target_of

LOGPROBS = 2
"""Alternatives that every plain answer reports, for rows that are compared in them."""


@cache
def plain_engine(family: str, ends: bool) -> Engine:
    """One token a forward."""
    return Engine(target_of(family, ends), "none", budget=0)


@cache
def plain(row: Row) -> Generation:
    """The row's answer, with log-probabilities."""
    return plain_on(row, prompt_of(row))


def plain_on(row: Row, prompt: Prompt) -> Generation:
    """The same on a prompt that is not the row's own."""
    engine = plain_engine(row.family, row.ends)
    options = options_of(row, prompt, stop_on(row, prompt))
    return engine.generate(prompt, logprobs=LOGPROBS, **options)


@cache
def stop_of(row: Row) -> str | None:
    """See `stop_on`."""
    return stop_on(row, prompt_of(row))


def stop_on(row: Row, prompt: Prompt) -> str | None:
    """A character from the midst of the answer, where the row is to stop at a string."""
    if row.stop != "string":
        return None
    engine = plain_engine(row.family, row.ends)
    text = engine.generate(prompt, **options_of(row, prompt, None)).text
    half = text[len(text) // 3 :] + text
    # stock looks for stop strings in the names of special tokens too
    names = "".join(engine.target.tokenizer.all_special_tokens)
    fits = (letter for letter in half if "!" <= letter <= "~" and letter not in names)
    return next(fits, None)


@cache
def stock(row: Row) -> tuple[int, ...]:
    """What `model.generate()` answers."""
    return stock_on(row, prompt_of(row))


def stock_on(row: Row, prompt: Prompt) -> tuple[int, ...]:
    """The same on a prompt that is not the row's own."""
    return said_by_generate(row, prompt, stop_on(row, prompt))


def said_by_generate(row: Row, prompt: Prompt, stop: str | None, **more: Any) -> tuple[int, ...]:
    """One call of the live model's `generate()`, enabled or not."""
    torch.manual_seed(row.seed)
    out = target_of(row.family).model.generate(
        input_ids=prompt.input_ids,
        attention_mask=torch.ones_like(prompt.input_ids),
        **prompt.media,
        **stock_options(row, prompt, stop),
        **more,
    )
    return tuple(out[0, len(prompt) :].tolist())
