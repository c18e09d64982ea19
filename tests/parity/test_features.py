"""Pictures are encoded once, and only what was not encoded before; the answer stays the same."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

from eyespan.target import FeatureMemory, HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.target.cache import drop
from eyespan.testing import EVERY_SEEING, tiny_images, tiny_prompt, tiny_target
from eyespan.types import Needs
from tests.parity.steps import MANY, WORST, gap, target_of

NO = Needs()
UNENCODED = ("mllama", "phi4_multimodal")
"""Families whose forward takes pixels only."""

ONE_BY_ONE = (
    "llava",
    "pixtral",
    "gemma3",
    "gemma4",
    "qwen2_5_vl",
    "qwen3_vl",
    "lfm2_vl",
    "kimi_k25",
)


class Tower:
    """Counts the pictures that go through a model's vision tower."""

    def __init__(self, target: HuggingFaceTarget, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pictures = self.calls = 0
        plain = target.model.base_model.get_image_features

        def counted(*args, **kwargs):
            self.calls += 1
            given = inspect.signature(plain).bind(*args, **kwargs).arguments
            self.pictures += len(given.get("image_grid_thw", given["pixel_values"]))
            return plain(*args, **kwargs)

        counted.__signature__ = inspect.signature(plain)
        monkeypatch.setattr(target.model.base_model, "get_image_features", counted)
        target._encoder._towers["image"] = counted


def prefill(target: HuggingFaceTarget, prompt: Prompt) -> torch.Tensor:
    state, read = target.prefill(prompt, NO)
    state.close()
    return read.logits


def twice(prompt: Prompt, target: HuggingFaceTarget) -> Prompt:
    """The same pictures again, behind the text."""
    media = {k: torch.cat([v, v]) for k, v in prompt.media.items() if k != "mm_token_type_ids"}
    kinds = prompt.media.get(target.family.token_kinds or "")
    if kinds is not None:
        media.pop(target.family.token_kinds, None)
        media[target.family.token_kinds] = torch.cat([kinds, kinds], 1)
    return target.prompt_from_ids([*prompt.ids, *prompt.ids], **media)


@pytest.mark.parametrize("family", [f for f in EVERY_SEEING if f not in UNENCODED])
def test_remembered_pictures_say_the_same_and_are_not_encoded_again(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(family)
    prompt = tiny_prompt(target, family, 2, text=MANY)
    expected = prefill(target, prompt)
    tower, memory = Tower(target, monkeypatch), FeatureMemory()
    for _ in range(2):
        assert gap(prefill(target, replace(prompt, features=memory)), expected) < WORST
        assert tower.calls == 1
    assert memory.hits == len(memory) > 0


@pytest.mark.parametrize("family", ONE_BY_ONE)
def test_the_same_picture_twice_in_one_prompt_is_encoded_once(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(family)
    prompt = twice(tiny_prompt(target, family, 2, text=MANY), target)
    with torch.no_grad():
        inputs = {target.family.token_kinds: None, **prompt.media}
        inputs.pop(None, None)
        stock = target.model(
            input_ids=prompt.input_ids,
            position_ids=prompt.position_ids,
            **{k: v for k, v in inputs.items() if v is not None},
        ).logits[0, -1]
    tower = Tower(target, monkeypatch)
    assert gap(prefill(target, prompt), stock) < WORST
    assert tower.pictures == 2


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "lfm2_vl"])
def test_only_the_new_picture_of_the_next_turn_is_encoded(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(family)
    first, second = (tiny_prompt(target, family, count, text=MANY) for count in (1, 2))
    expected = prefill(target, second)
    tower, memory = Tower(target, monkeypatch), FeatureMemory()
    prefill(target, replace(first, features=memory))
    assert gap(prefill(target, replace(second, features=memory)), expected) < WORST
    assert tower.pictures == 2


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl", "internvl", "mllama"])
def test_a_cache_may_end_anywhere_in_front_of_pictures_or_behind_them(family: str) -> None:
    """A conversation's next turn: the cache holds some pictures already, at any place."""
    target = target_of(family)
    prompt = tiny_prompt(target, family, 2, text=MANY)
    expected = prefill(target, prompt)
    last = max(at for at, token in enumerate(prompt.ids) if token in target.info.media_ids)
    cuts = range(1, len(prompt) - 1, 3) if family != "mllama" else range(last + 1, len(prompt) - 1)
    for past in cuts:
        state, _ = target.prefill(prompt, NO)
        cache = target.release(state)
        drop(cache, len(prompt) - past, skip={1} if family == "mllama" else ())
        assert gap(prefill(target, replace(prompt, cache=cache)), expected) < WORST


def test_a_digest_is_of_everything_that_the_tower_reads() -> None:
    """Names, shapes, dtypes and bytes: pictures that share all bytes but not their shape have been
    taken for each other elsewhere, and one user was answered about another's.
    """
    from eyespan.target.features import _digest

    pixels = torch.arange(48.0).view(1, 3, 4, 4)
    base = {"pixel_values": pixels, "image_sizes": torch.tensor([[4, 4]])}
    one = pixels.clone()
    one[0, 0, 0, 0] += 1e-3
    others = [
        {**base, "pixel_values": pixels.view(1, 3, 2, 8)},
        {**base, "pixel_values": pixels.view(torch.int32)},
        {**base, "pixel_values": one},
        {**base, "image_sizes": torch.tensor([[4, 2]])},
        {"pixel_values": pixels},
    ]
    keys = [_digest("image", each, b"") for each in (base, *others)]
    keys += [_digest("video", base, b""), _digest("image", base, b"other weights")]
    assert len(set(keys)) == len(keys)
    assert _digest("image", dict(reversed(base.items())), b"") == keys[0]


def test_other_weights_are_another_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("llava")
    prompt = replace(tiny_prompt(target, "llava", 1), features=FeatureMemory())
    before = prefill(target, prompt)
    with torch.no_grad():
        for parameter in target.model.model.vision_tower.parameters():
            parameter.mul_(1.5)
    after = prefill(target, prompt)
    assert gap(before, after) > 0.01
    assert gap(after, prefill(target, replace(prompt, features=None))) < WORST


def test_a_memory_is_bounded_and_forgets_the_least_used() -> None:
    target = target_of("llava")
    prompts = [target.prepare(MANY, tiny_images(1, seed)) for seed in range(4)]
    size = 4 * 64 * 4
    memory = FeatureMemory(most_bytes=2 * size)
    for prompt in (*prompts[:2], prompts[0], prompts[2]):
        prefill(target, replace(prompt, features=memory))
        assert memory.held_bytes <= 2 * size
    assert (memory.hits, memory.misses, len(memory)) == (1, 3, 2)
    prefill(target, replace(prompts[0], features=memory))
    assert memory.hits == 2
    tiny = FeatureMemory(most_bytes=size - 1)
    prefill(target, replace(prompts[0], features=tiny))
    assert len(tiny) == 0
    memory.clear()
    assert memory.held_bytes == len(memory) == 0
