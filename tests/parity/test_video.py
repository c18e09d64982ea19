"""Videos through the families' own processors: answers are stock `generate()`'s, on every way."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import eyespan
from eyespan.dropin import fallbacks
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import FILMED, RandomDrafter, tiny_images, tiny_target, tiny_video
from tests.parity.steps import MANY

TOKENS = 12
ONE_KIND = ("smolvlm",)


def cases() -> list[Any]:
    """(family, images, videos); the fullest of each family runs in the default suite."""
    found = []
    for family in FILMED:
        kinds = [(0, 1), (0, 2), *([] if family in ONE_KIND else [(1, 1)])]
        for kind in kinds:
            marks = [] if kind == kinds[-1] else [pytest.mark.slow]
            found.append(pytest.param(family, *kind, marks=marks))
    return found


@cache
def target_of(family: str) -> HuggingFaceTarget:
    if family == "smolvlm":
        pytest.importorskip("num2words")
    return tiny_target(family)


def films(count: int, seed: int = 0) -> list[Any]:
    """Videos of four frames; what their seconds are is said, as time stamps are written out."""
    return [eyespan.Video(tiny_video(4, seed + at), rate=2.0) for at in range(count)]


def stock(target: HuggingFaceTarget, prompt: Prompt) -> list[int]:
    out = target.model.generate(
        input_ids=prompt.input_ids, **prompt.media, max_new_tokens=TOKENS, do_sample=False
    )
    ids: list[int] = out[0, len(prompt) :].tolist()
    return ids


@pytest.mark.parametrize(("family", "images", "videos"), cases())
def test_every_way_in_gives_the_answer_of_stock(family: str, images: int, videos: int) -> None:
    target = target_of(family)
    prompt = target.prepare(MANY, tiny_images(images), films(videos))
    expected = stock(target, prompt)
    for drafter in ("recap", RandomDrafter(target.info.vocab_size)):
        engine = Engine(target, drafter, budget=8)
        answer = engine.generate(
            MANY, tiny_images(images), videos=films(videos), max_new_tokens=TOKENS
        )
        assert list(answer.token_ids) == expected
    model = target.model
    eyespan.enable(model, "recap", budget=8)
    try:
        out = model.generate(input_ids=prompt.input_ids, **prompt.media, max_new_tokens=TOKENS)
        assert out[0, len(prompt) :].tolist() == expected
        assert fallbacks(model) == {}
    finally:
        eyespan.disable(model)


@pytest.mark.parametrize("family", FILMED)
def test_the_video_matters(family: str) -> None:
    target = target_of(family)
    logits = []
    for seed in (0, 5):
        state, read = target.prefill(target.prepare(MANY, (), films(1, seed)), eyespan_needs())
        state.close()
        logits.append(read.logits)
    assert float((logits[0] - logits[1]).abs().max()) > 0.01


def eyespan_needs() -> Any:
    from eyespan.types import Needs

    return Needs()


class Tower:
    """Counts the videos that go through a model's tower."""

    def __init__(self, target: HuggingFaceTarget, monkeypatch: pytest.MonkeyPatch) -> None:
        self.videos = 0
        plain = target.model.base_model.get_video_features

        def counted(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(plain).bind(*args, **kwargs).arguments
            self.videos += len(given.get("video_grid_thw", given["pixel_values_videos"]))
            return plain(*args, **kwargs)

        counted.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
        monkeypatch.setattr(target.model.base_model, "get_video_features", counted)
        target._encoder._towers["video"] = counted


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision"])
def test_the_same_video_is_encoded_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(family)
    expected = stock(target, target.prepare(MANY, (), films(1) + films(1)))
    tower = Tower(target, monkeypatch)
    engine = Engine(target, "recap", budget=8)
    answer = engine.generate(MANY, videos=films(1) + films(1), max_new_tokens=TOKENS)
    assert list(answer.token_ids) == expected
    assert tower.videos == 1


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision", "internvl"])
def test_a_conversation_about_videos_is_that_of_single_requests(family: str) -> None:
    target = target_of(family)
    engine, plain = Engine(target, "recap", budget=8), Engine(target, "none", budget=0)
    clip, other = target.open_videos([*films(1), *films(1, 7)])
    options = {"max_new_tokens": 6}
    with engine.chat(**options) as talk:
        first = talk.say("What is it?", tiny_images(1), videos=[clip])
        second = talk.say("And now?")
        assert second.reused > 0
        asked = [
            {"role": "user", "content": [IMAGE, VIDEO, text("What is it?")]},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And now?"},
        ]
        alone = plain.generate(asked, tiny_images(1), videos=[clip], **options)
        assert second.token_ids == alone.token_ids
        talk.rewind(1)
        changed = talk.edit(0, "What is it?", videos=[other])
        asked = [{"role": "user", "content": [IMAGE, VIDEO, text("What is it?")]}]
        alone = plain.generate(asked, tiny_images(1), videos=[other], **options)
        assert changed.token_ids == alone.token_ids


IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_rows_of_a_batch_say_what_they_say_alone() -> None:
    target = target_of("qwen2_5_vl")
    engine = Engine(target, "recap", budget=8)
    videos = [films(1), (), films(2, 3)]
    images = [(), tiny_images(1), ()]
    prompts = ["one", MANY, "and another"]
    rows = engine.generate_many(prompts, images, videos=videos, max_new_tokens=8, max_rows=3)
    for row, prompt, pictures, clips in zip(rows, prompts, images, videos, strict=True):
        alone = engine.generate(prompt, pictures, videos=clips, max_new_tokens=8)
        assert row.token_ids == alone.token_ids


def test_a_batch_of_an_enabled_model_with_videos() -> None:
    target = target_of("llava_onevision")
    model = target.model
    made = [target.prepare("what", (), films(1, seed)) for seed in (0, 4)]
    inputs = {
        "input_ids": torch.cat([prompt.input_ids for prompt in made]),
        "pixel_values_videos": torch.cat([p.media["pixel_values_videos"] for p in made]),
        "max_new_tokens": TOKENS,
    }
    expected = model.generate(**inputs)
    eyespan.enable(model, "recap", budget=8)
    try:
        assert np.array_equal(model.generate(**inputs), expected)
        assert fallbacks(model) == {}
    finally:
        eyespan.disable(model)
