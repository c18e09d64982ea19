"""The adapter beside stock: same prompts, same plain tokens, and stock itself unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from eyespan.target import mask_hook, self_test
from eyespan.testing import SEEING, plain_answer, tiny_images, tiny_model
from eyespan.types import Needs
from tests.parity.steps import FAMILIES_AND_IMAGES, WORST, gap, prompt_of, step, target_of

GREEDY = {"max_new_tokens": 12, "do_sample": False}


def stock_answer(target, text: str, images: int) -> list[int]:
    """Stock's own way from a chat to tokens."""
    pictures = [{"type": "image", "image": picture} for picture in tiny_images(images)]
    content = [*pictures, {"type": "text", "text": text}]
    chat = [{"role": "user", "content": content if pictures else text}]
    inputs = target.processor.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    ids = target.model.generate(**inputs, **GREEDY)
    return ids[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize(("family", "images"), FAMILIES_AND_IMAGES)
def test_plain_steps_are_stocks_greedy_decoding(family: str, images: int) -> None:
    target = target_of(family)
    answer = plain_answer(target, prompt_of(target, images), 12)
    assert answer.tolist() == stock_answer(target, "What is this?", images)


@pytest.mark.parametrize("family", ["llama", "mistral", "llava", "qwen2_5_vl"])
def test_stock_generation_is_unchanged_by_our_use(family: str) -> None:
    images = 1 if family in SEEING else 0
    target = target_of(family)
    before = stock_answer(target, "Say it.", images)
    mask_hook.install()
    self_test(target)
    assert stock_answer(target, "Say it.", images) == before


def test_installing_the_hook_twice_is_harmless() -> None:
    """Wrapped twice, positions would be mapped twice: wrong logits and no error."""
    target = target_of("mistral")
    mask_hook.install()
    first = mask_hook.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    mask_hook.install()
    assert mask_hook.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is first
    self_test(target)
    try:
        for name in mask_hook.HOOKED:  # even around each other they map once
            builder = mask_hook.ALL_MASK_ATTENTION_FUNCTIONS[name]
            mask_hook.ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask_hook._TreeAware(builder))
        self_test(target)
    finally:
        mask_hook.ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", first)


@pytest.mark.parametrize("family", [*SEEING, "llama"])
def test_what_generate_hands_over_gives_the_same_prefill(family: str) -> None:
    """In `generate()` the image features are computed already; positions and cache come along."""
    target = target_of(family)
    images = 2 if family in SEEING else 0
    prompt = prompt_of(target, images)
    seen = {}

    def capture(model, input_ids, logits_processor, stopping_criteria, generation_config, **kw):
        given = target.prompt_from_generate(input_ids, kw)
        assert torch.equal(given.position_ids, prompt.position_ids)
        seen["logits"] = target.prefill(given, Needs())[1].logits
        return input_ids

    media = {key: value for key, value in prompt.media.items() if value is not None}
    target.model.generate(prompt.input_ids, **media, custom_generate=capture, max_new_tokens=3)
    assert gap(seen["logits"], target.prefill(prompt, Needs())[1].logits) < WORST


def test_only_the_training_flag_is_touched_and_comes_back() -> None:
    from eyespan.target import HuggingFaceTarget

    model = tiny_model("llama").train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    target = HuggingFaceTarget(model)
    assert not model.training
    self_test(target)
    target.detach()
    assert model.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2_5_vl"])
def test_a_conversation_continues_from_a_cache_of_stock(family: str) -> None:
    target = target_of(family)
    prompt = prompt_of(target, 1 if family in SEEING else 0)
    media = {k: v for k, v in prompt.media.items() if v is not None}
    first = target.model.generate(prompt.input_ids, **media, **GREEDY, return_dict_in_generate=True)
    ids = torch.cat([first.sequences, torch.tensor([[70, 71, 72]])], dim=1)
    seen = {}

    def capture(model, input_ids, logits_processor, stopping_criteria, generation_config, **kw):
        given = target.prompt_from_generate(input_ids, kw)
        seen["logits"] = target.prefill(given, Needs())[1].logits
        return input_ids

    if "mm_token_type_ids" in media:
        kinds = torch.zeros_like(ids)
        kinds[:, : prompt.input_ids.shape[1]] = media.pop("mm_token_type_ids")
        media = {"mm_token_type_ids": kinds}
    target.model.generate(
        ids, **media, cache=first.cache, custom_generate=capture, max_new_tokens=3
    )
    plain = target.prefill(prompt, Needs())[0]
    for token in ids[0, prompt.input_ids.shape[1] :].tolist():
        expected = step(target, plain, token)
    assert gap(seen["logits"], expected) < WORST


@pytest.mark.parametrize("family", SEEING)
def test_a_turned_picture_is_read_as_stocks_processor_reads_it(family: str, tmp_path: Path) -> None:
    """A photo's EXIF orientation: a file is turned upright, a picture that somebody has opened is
    taken as it is.
    """
    target = target_of(family)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    path = tmp_path / "turned.jpg"
    tiny_images(3)[2].save(path, exif=exif)
    read = []
    for ours, theirs in (
        (path, {"url": str(path)}),
        (Image.open(path), {"image": Image.open(path)}),
    ):
        chat = [{"role": "user", "content": [{"type": "image", **theirs}]}]
        stock = target.processor.apply_chat_template(
            chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        prompt = target.prepare([{"role": "user", "content": [{"type": "image"}]}], [ours])
        assert torch.equal(prompt.input_ids, stock["input_ids"])
        assert torch.equal(prompt.media["pixel_values"], stock["pixel_values"])
        read.append(prompt.media["pixel_values"])
    assert not torch.equal(*read)


@pytest.mark.parametrize("family", SEEING)
def test_pictures_and_words_in_turn_keep_their_order(family: str) -> None:
    """Pictures of different sizes between words and turns, as stock's own template places them."""
    target = target_of(family)
    one, two, three = tiny_images(3)
    parts = [{"type": "image"}, {"type": "text", "text": "or"}, {"type": "image"}]
    chat = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "this"}]},
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "image"}]},
    ]
    waiting = iter([one, two, three])
    filled = [
        {
            **turn,
            "content": [
                {**part, "image": next(waiting)} if part["type"] == "image" else part
                for part in turn["content"]
            ],
        }
        for turn in chat
    ]
    stock = target.processor.apply_chat_template(
        filled, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    prompt = target.prepare(chat, [one, two, three])
    assert torch.equal(prompt.input_ids, stock["input_ids"])
    assert torch.equal(prompt.media["pixel_values"], stock["pixel_values"])
    swapped = target.prepare(chat, [three, two, one])
    assert gap(*(target.prefill(each, Needs())[1].logits for each in (prompt, swapped))) > 0.01
