"""Failures with pictures that users of other tools have reported, each as a test under its number
(see `test_field_log.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eyespan.drafters import DRAFTERS, TRAINED, make_drafter
from eyespan.errors import InputError, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.target.features import READY
from eyespan.testing import (
    EVERY_SEEING,
    SEEING,
    RandomDrafter,
    plain_answer,
    random_checkpoint,
    tiny_images,
    tiny_prompt,
)
from eyespan.types import Ints, Prefill, Request
from tests.drafting import request_of
from tests.parity.steps import MANY, answer, target_of

TOKENS = 8
PAGE = Path(__file__).parents[2] / "docs" / "families.md"
QUICK = (
    "llava",
    "blip2",
    "qwen2_5_vl",
    "qwen3_5",
    "idefics3",
    "mllama",
    "phi4_multimodal",
    "molmo2",
)
SAMPLED = [
    pytest.param(family, marks=[] if family in QUICK else [pytest.mark.slow])
    for family in EVERY_SEEING
]
BRINGS = ("pixel", "image", "mm_encoder_outputs", "aspect_ratio", "grid")
"""Beginnings and parts of the names of forward arguments that bring pictures."""


@contextmanager
def heard(model: Any) -> Iterator[list[dict[str, Any]]]:
    """The keyword arguments of every forward inside."""
    calls: list[dict[str, Any]] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(dict(kwargs)), with_kwargs=True
    )
    try:
        yield calls
    finally:
        hook.remove()


def with_pictures(calls: list[dict[str, Any]]) -> list[int]:
    """Numbers of the calls that brought pictures. What always wants some is told of a picture
    without anything in it where none are run.
    """

    def brings(name: str, value: Any) -> bool:
        if name == READY:
            return any(bool(each.pooler_output.any()) for each in value.values())
        return value is not None and any(part in name for part in BRINGS)

    return [at for at, call in enumerate(calls) if any(brings(*item) for item in call.items())]


@cache
def prompt_of(family: str) -> Prompt:
    return tiny_prompt(target_of(family), family, 2, text=MANY)


@cache
def plain_of(family: str) -> list[int]:
    tokens: list[int] = plain_answer(target_of(family), prompt_of(family), TOKENS).tolist()
    return tokens


def drafted(target: HuggingFaceTarget, name: str, prompt: Prompt, said: int, told: bool) -> Ints:
    """What a method guesses after a prompt and its answer's first token.

    Args:
        target: reads the prompt.
        name: of the method.
        prompt: with pictures.
        said: the token.
        told: whether the method is told which ids are media.
    """
    options = {"variant": "transformers"} if name == "prompt_lookup" else {}
    drafter = make_drafter(name, vocab_size=target.info.vocab_size, **options)
    media = target.info.media_ids if told else frozenset[int]()
    request = request_of(prompt.ids.tolist(), media=media)
    _, prefill = target.prefill(prompt, drafter.needs)
    session = drafter.begin(request, prefill)
    return session.propose(np.append(prompt.ids, np.int32(said)), drafter.fixed_budget).tokens


@pytest.mark.parametrize("family", EVERY_SEEING)
def test_A01_a_text_that_also_stands_before_a_picture(family: str) -> None:
    """Whoever continues it as there drafts placeholders, which the next forward counts."""
    target = target_of(family)
    (said,) = target.tokenizer("z")["input_ids"]
    if family in SEEING:  # its template ends with "assistant:"
        parts = [{"type": "text", "text": "a:z"}, {"type": "image"}, {"type": "text", "text": "b"}]
        prompt = target.prepare([{"role": "user", "content": parts}], tiny_images(1))
    else:
        prompt = tiny_prompt(target, family, 2, text=":z :")
        if prompt.ids[0] == prompt.ids[1]:  # both pictures are one span at the beginning
            prompt = target.prompt_from_ids([prompt.ids[-1], said, *prompt.ids], **prompt.media)
    media = target.info.media_ids
    assert set(drafted(target, "prompt_lookup", prompt, said, told=False).tolist()) & media, (
        "not hot"
    )
    for name in ("prompt_lookup", "recap", "sam", "suffix", "lookahead", "stand"):
        assert not set(drafted(target, name, prompt, said, told=True).tolist()) & media


@pytest.mark.parametrize("family", SAMPLED)
def test_A02_a_target_gets_its_pictures_once(family: str) -> None:
    target, prompt = target_of(family), prompt_of(family)
    engine = Engine(target, RandomDrafter(target.info.vocab_size), budget="fixed")
    with heard(target.model) as calls:
        running = answer(engine, prompt, TOKENS)
    assert running.output_ids.tolist() == plain_of(family)
    assert with_pictures(calls) == [0]
    assert len(calls) >= 4 or len(running.output_ids) < 4


@pytest.mark.parametrize("family", SAMPLED)
def test_A05_a_draft_model_of_text_serves_every_family(family: str) -> None:
    engine = Engine(
        target_of(family), "draft_model", budget="fixed", draft_model=target_of("llama"), depth=2
    )
    running = answer(engine, prompt_of(family), TOKENS)
    assert running.output_ids.tolist() == plain_of(family)
    assert running.counters.drafted > 0
    assert not running.counters.plain_steps.get("drafter fault")


@pytest.mark.parametrize("name", ["recap", "prompt_lookup"])
@pytest.mark.parametrize("family", SAMPLED)
def test_A12_a_prompt_is_read_as_plain_decoding_reads_it(family: str, name: str) -> None:
    """Grids, masks and token kinds go with the pixels, whoever drafts."""
    target, prompts = target_of(family), []
    for engine in (Engine(target, "none"), Engine(target, name, budget="fixed")):
        with heard(target.model) as calls:
            answer(engine, prompt_of(family), 2)
        prompts.append({k: v for k, v in calls[0].items() if k not in ("cache", "logits_to_keep")})
    plain, ours = prompts
    assert with_pictures([plain]) == [0]
    assert ours.keys() == plain.keys()
    for key, value in plain.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(ours[key], value), key
        else:
            assert type(ours[key]) is type(value), key


@pytest.mark.parametrize("family", SEEING)
def test_A39_a_picture_of_any_shape_is_read_or_refused(family: str) -> None:
    target = target_of(family)
    engine = Engine(target, "recap", budget="fixed")
    for size in ((1, 1), (1, 40), (40, 1), (2, 700), (3, 3)):
        with suppress(InputError):
            assert engine.generate("What?", [Image.new("RGB", size)], max_new_tokens=2).token_ids
    assert engine.generate("What?", tiny_images(1), max_new_tokens=2).token_ids


class Blind(RandomDrafter):
    """Cannot begin where there is a picture."""

    def begin(self, request: Request, prefill: Prefill) -> Any:
        if np.isin(request.prompt_ids, list(request.media_ids)).any():
            raise ValueError("positions are not consecutive")
        return super().begin(request, prefill)


@pytest.mark.parametrize("family", SEEING)
def test_A06_a_drafter_that_fails_at_a_picture_is_off_for_that_request(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(family)
    engine = Engine(target, Blind(target.info.vocab_size), budget="fixed")
    for pictures in (tiny_images(1), [], tiny_images(2), []):
        plain = Engine(target, "none").generate(MANY, pictures, max_new_tokens=TOKENS)
        made = engine.generate(MANY, pictures, max_new_tokens=TOKENS)
        assert made.token_ids == plain.token_ids
        assert made.plain_steps.get("drafter fault", 0) == bool(pictures)
        assert (made.drafted == 0) == bool(pictures)
    assert caplog.text.count("goes on without drafts") == 2


def engine_of(name: str, target: HuggingFaceTarget, folder: Path) -> Engine:
    """A method by name, with what it needs; trained ones have random weights."""
    options: dict[str, Any] = {}
    if name == "draft_model":
        options["draft_model"] = target_of("llama")
    if name in TRAINED or name == "hybrid":
        head = "fovea" if name == "hybrid" else name
        random_checkpoint(head, target.weights(), folder, nodes=6, width=2, depth=2)
        options["checkpoint"] = str(folder)
    return Engine(target, name, budget="fixed", **options)


@cache
def not_for(family: str) -> frozenset[str]:
    """Drafters that the page of families says are refused."""
    kind = target_of(family).model.config.model_type
    (row,) = (line for line in PAGE.read_text().splitlines() if f"| `{kind}` |" in line)
    cell = row.split("|")[6 if family in EVERY_SEEING else 5]
    names = [name.strip() for name in cell.split(",")]
    more = {"trained drafters": (*TRAINED, "hybrid"), "fovea": ("fovea", "hybrid"), "-": ()}
    return frozenset(one for name in names for one in more.get(name, (name,)))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma2", "mllama", "phi4_multimodal", "mamba2"])
def test_A07_the_page_of_families_says_what_loading_refuses(
    family: str, name: str, tmp_path: Path
) -> None:
    target = target_of(family)
    if name in not_for(family):
        with pytest.raises(UnsupportedTarget):
            engine_of(name, target, tmp_path)
        return
    pictures = family in EVERY_SEEING
    prompt = prompt_of(family) if pictures else target.prompt_from_ids(list(range(40, 60)) * 2)
    running = answer(engine_of(name, target, tmp_path), prompt, TOKENS)
    assert running.output_ids.tolist() == plain_answer(target, prompt, TOKENS).tolist()
    assert not running.counters.plain_steps.get("drafter fault")
