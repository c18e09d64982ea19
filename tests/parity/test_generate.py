"""Greedy float32 output equals stock `generate()`, token for token: families x pictures x budgets x
fusion variants of RECAP, on tiny random models with real pictures. Other drafters are in the grid.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import (
    SEEING,
    TEXT_ONLY,
    tiny_images,
    tiny_target,
)
from eyespan.trace import read_trace

PROMPT = "abc abc, what is this? abc abc"
TOKENS = 24
FUSIONS = ("entropy", "fixed_prior", "no_prior", "uniform", "gate", "backoff")
CASES = [(family, 0) for family in (*TEXT_ONLY, *SEEING)] + [
    (family, count) for family in SEEING for count in (1, 2)
]


@cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


@cache
def stock(family: str, pictures: int, prompt: str = PROMPT) -> tuple[int, ...]:
    """What `model.generate()` answers."""
    target = target_of(family)
    inputs = target.prepare(prompt, tiny_images(pictures))
    return stock_ids(target, inputs)


def stock_ids(target: HuggingFaceTarget, inputs: Prompt, **options: Any) -> tuple[int, ...]:
    out = target.model.generate(
        input_ids=inputs.input_ids,
        **inputs.media,
        **{"max_new_tokens": TOKENS, "do_sample": False, **options},
    )
    return tuple(out[0, len(inputs) :].tolist())


def grid() -> list[Any]:
    """Every family, picture count, budget and fusion; what a fast run can spare is marked slow."""

    def marks(family: str, pictures: int, fusion: str) -> list[Any]:
        quick = (family, pictures) == ("qwen2_5_vl", 1)
        return [] if quick else [pytest.mark.slow]

    return [
        pytest.param(family, pictures, budget, fusion, marks=marks(family, pictures, fusion))
        for family, pictures in CASES
        for budget in (1, 4, 63)
        for fusion in FUSIONS
    ]


@pytest.mark.parametrize(("family", "pictures", "budget", "fusion"), grid())
def test_recap(family: str, pictures: int, budget: int, fusion: str) -> None:
    target = target_of(family)
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size, nodes=budget, fusion=fusion)
    engine = Engine(target, drafter, budget="fixed")
    for _ in range(2):  # the second answer starts with a warm memory
        answer = engine.generate(PROMPT, tiny_images(pictures), max_new_tokens=TOKENS)
        assert answer.token_ids == stock(family, pictures)
    assert answer.drafted > 0
    assert not answer.plain_steps.get("drafter fault")


@pytest.mark.parametrize("family", SEEING)
def test_A01_a_prompt_that_ends_as_the_text_before_its_picture(family: str, tmp_path: Path) -> None:
    """Prompt lookup of transformers drafts placeholder ids here and dies in the first step."""
    target = target_of(family)
    parts = [
        {"type": "text", "text": "look: "},
        {"type": "image"},
        {"type": "text", "text": " so look: "},
    ]
    chat = [{"role": "user", "content": parts}]
    inputs = target.prepare(chat, tiny_images(1))
    answer = Engine(target, "recap", budget="fixed").generate(
        chat, tiny_images(1), max_new_tokens=TOKENS, trace=tmp_path / "trace.jsonl"
    )
    assert answer.token_ids == stock_ids(target, inputs)
    ((_, _, *steps, _),) = read_trace(tmp_path / "trace.jsonl")
    drafted = {token for step in steps for token in step["tokens"][1:]}
    assert drafted
    assert not drafted & target.info.media_ids


@pytest.mark.parametrize("family", SEEING)
def test_A09_interleaved_requests_keep_their_own_positions(family: str) -> None:
    """A Qwen-VL model remembers the position offset of the last prompt it saw; a request must not
    take another one's.
    """
    target = target_of(family)
    engine = Engine(target, "recap", budget="fixed")
    inputs = [tiny_images(1, seed=1), tiny_images(2, seed=2), []]
    streams = [engine.stream(PROMPT, images, max_new_tokens=TOKENS) for images in inputs]
    while streams_left := [stream for stream in streams if next(stream, None) is not None]:
        assert len(streams_left) <= len(streams)
    for stream, images in zip(streams, inputs, strict=True):
        prompt = target.prepare(PROMPT, images)
        assert stream.generation.token_ids == stock_ids(target, prompt)
