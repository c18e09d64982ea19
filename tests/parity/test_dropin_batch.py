"""`generate()` on a batch of an enabled model: stock's ids, padding and all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextStreamer

import eyespan
from eyespan.dropin import fallbacks
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import EVERY_SEEING, EVERY_TEXT, SEEING, tiny_images, tiny_target
from eyespan.testing.tokens import PAD

QUICK = ("llama", "gpt2", "gemma3_text", *SEEING)
REST = tuple(family for family in (*EVERY_TEXT, *SEEING) if family not in QUICK)
FAMILIES = [*QUICK, *(pytest.param(family, marks=pytest.mark.slow) for family in REST)]
TEXTS = ("abc abc, what is this? abc abc", "hi", "and this one goes on: abc abc ab")
TOKENS = 20


@cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


@cache
def batch_of(family: str) -> dict[str, Any]:
    """Three prompts padded at the left, with 1, 0 and 2 pictures where the family sees."""
    target, sees = target_of(family), family in SEEING
    counts = (1, 0, 2) if sees else (0, 0, 0)
    prompts = [
        target.prepare(text, tiny_images(count)) for text, count in zip(TEXTS, counts, strict=True)
    ]
    longest = max(len(prompt) for prompt in prompts)
    inputs: dict[str, Any] = {}
    ids, masks = [], []
    for prompt in prompts:
        pad = (longest - len(prompt), 0)
        ids.append(torch.nn.functional.pad(prompt.input_ids, pad, value=PAD))
        masks.append(torch.nn.functional.pad(torch.ones_like(prompt.input_ids), pad))
    inputs["input_ids"], inputs["attention_mask"] = torch.cat(ids), torch.cat(masks)
    for name in {name for prompt in prompts for name in prompt.media}:
        values = [prompt.media.get(name) for prompt in prompts]
        if values[0].shape[:2] == prompts[0].input_ids.shape:  # a row per token
            inputs[name] = torch.cat(
                [
                    torch.nn.functional.pad(
                        torch.zeros_like(prompt.input_ids) if value is None else value,
                        (longest - len(prompt), 0),
                    )
                    for prompt, value in zip(prompts, values, strict=True)
                ]
            )
        else:
            inputs[name] = torch.cat([value for value in values if value is not None])
    return inputs


@pytest.fixture
def enabled(family: str) -> Iterator[Any]:
    model = target_of(family).model
    yield eyespan.enable(model, budget="fixed")
    eyespan.disable(model)


def both(model: Any, inputs: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """The same call with and without speculation."""
    options = {"max_new_tokens": TOKENS, **options}
    ours = model.generate(**inputs, **options)
    assert fallbacks(model) == {}
    eyespan.disable(model)
    return ours, model.generate(**inputs, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"min_new_tokens": 9, "bad_words_ids": [[65], [66, 67]]},
    ],
    ids=["greedy", "penalties", "bans"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_A42_the_ids_are_stocks(enabled: Any, family: str, options: dict[str, Any]) -> None:
    inputs = batch_of(family)
    ours, stock = both(enabled, inputs, **options)
    assert torch.equal(ours, stock)


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_finished_rows_are_padded(enabled: Any, family: str) -> None:
    """Every token of the second answer is declared an end in turn."""
    inputs = batch_of(family)
    length = inputs["input_ids"].shape[1]
    said = enabled.generate(**inputs, max_new_tokens=TOKENS)[1, length:].tolist()
    padded = 0
    for end in sorted(set(said[:6])):
        eyespan.enable(enabled, budget="fixed")
        ours, stock = both(enabled, inputs, eos_token_id=end, pad_token_id=7)
        assert torch.equal(ours, stock)
        padded += int((ours[1, length:] == 7).sum())
    assert padded > 10


@pytest.mark.parametrize("family", ["llama"])
def test_stop_strings(enabled: Any, family: str) -> None:
    inputs, tokenizer = batch_of(family), target_of(family).tokenizer
    length = inputs["input_ids"].shape[1]
    said = enabled.generate(**inputs, max_new_tokens=TOKENS)[:, length:]
    stop = next(text for token in said[2, 4:] if len(text := tokenizer.decode(token)) == 1)
    ours, stock = both(enabled, inputs, stop_strings=[stop], tokenizer=tokenizer)
    assert torch.equal(ours, stock)


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_custom_generate(family: str) -> None:
    inputs, model = batch_of(family), target_of(family).model
    stock = model.generate(**inputs, max_new_tokens=TOKENS)
    ours = model.generate(
        **inputs, max_new_tokens=TOKENS, custom_generate=eyespan.custom_generate, budget="fixed"
    )
    assert torch.equal(ours, stock)
    vars(model).pop("_eyespan_calls")


class Never(StoppingCriteria):
    """A criterion of the caller's own."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("family", ["llama"])
def test_what_rows_cannot_have_runs_stock_and_is_counted(enabled: Any, family: str) -> None:
    inputs = batch_of(family)
    holes = inputs["attention_mask"].clone()
    holes[0, -3] = 0
    cases: list[tuple[str, dict[str, Any]]] = [
        ("sampling", {"do_sample": True}),
        ("sampling", {"do_sample": True, "num_return_sequences": 2}),
        ("scores or a cache", {"return_dict_in_generate": True}),
        ("processors or criteria", {"stopping_criteria": StoppingCriteriaList([Never()])}),
        ("processors or criteria", {"prefix_allowed_tokens_fn": lambda row, ids: [70 + row, 90]}),
        ("padding that is not", {"attention_mask": holes}),
    ]
    before = 0
    for reason, options in cases:
        torch.manual_seed(0)
        ours = enabled.generate(**{**inputs, "max_new_tokens": 6, **options})
        counted = fallbacks(enabled)
        assert sum(counted.values()) == (before := before + 1)
        assert any(reason in text for text in counted)
        eyespan.disable(enabled)
        torch.manual_seed(0)
        stock = enabled.generate(**{**inputs, "max_new_tokens": 6, **options})
        same = (ours, stock) if torch.is_tensor(ours) else (ours.sequences, stock.sequences)
        assert torch.equal(*same)
        eyespan.enable(enabled, budget="fixed")
        before = 0
    with pytest.raises(ValueError, match="batch size 1"):
        enabled.generate(**inputs, streamer=TextStreamer(target_of(family).tokenizer))


def test_prompts_of_a_batch_have_their_own_pictures() -> None:
    """Two rows with one picture each, swapped: answers are swapped too."""
    target = target_of("qwen2_5_vl")
    first, second = (target.prepare("what?", tiny_images(1, seed=seed)) for seed in (1, 2))
    eyespan.enable(target.model, budget="fixed")
    try:
        answers = [
            target.model.generate(
                input_ids=torch.cat([one.input_ids, two.input_ids]),
                max_new_tokens=TOKENS,
                **{name: torch.cat([one.media[name], two.media[name]]) for name in first.media},
            )
            for one, two in ((first, second), (second, first))
        ]
        assert fallbacks(target.model) == {}
    finally:
        eyespan.disable(target.model)
    assert torch.equal(answers[0], answers[1].flip(0))
    assert not torch.equal(answers[0][0], answers[0][1])


def test_every_seeing_family_is_tried() -> None:
    assert set(SEEING) <= set(EVERY_SEEING)
