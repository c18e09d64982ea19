"""`enable` and `custom_generate`: `generate()` works as before and says the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, pipeline
from transformers.generation.streamers import BaseStreamer

import eyespan
from eyespan.dropin import fallbacks
from eyespan.errors import ConfigError, UnsupportedRequest
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import SEEING, tiny_images, tiny_target, tiny_tokenizer

FAMILIES = ("llama", *SEEING)
PROMPT = "abc abc, what is this? abc abc"


class Recorder(BaseStreamer):
    """Everything a streamer is given."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        self.seen.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


class StopAfter(StoppingCriteria):
    """Stops at a length and counts its calls: one a token."""

    def __init__(self, length: int) -> None:
        self.length, self.calls = length, 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@pytest.fixture(params=FAMILIES, scope="module")
def target(request: pytest.FixtureRequest) -> HuggingFaceTarget:
    return tiny_target(request.param)


@pytest.fixture
def inputs(target: HuggingFaceTarget) -> dict[str, Any]:
    prompt = target.prepare(PROMPT, tiny_images(1) if target.info.family != "text" else [])
    return {"input_ids": prompt.input_ids, **prompt.media, "max_new_tokens": 24}


@pytest.fixture
def enabled(target: HuggingFaceTarget) -> Iterator[Any]:
    yield eyespan.enable(target.model, budget="fixed")
    eyespan.disable(target.model)


def both(model: Any, inputs: dict[str, Any], seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """The same call with and without speculation."""
    torch.manual_seed(seed)
    ours = model.generate(**inputs, **options)
    assert fallbacks(model) == {}
    eyespan.disable(model)
    torch.manual_seed(seed)
    stock = model.generate(**inputs, **options)
    return ours, stock


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 20},
        {"bad_words_ids": [[65], [66, 67]]},
        {"do_sample": True, "temperature": 1.5},
        {"do_sample": True, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2},
    ],
    ids=["greedy", "penalty", "ngram", "bad words", "sampling", "warpers"],
)
def test_same_ids(enabled: Any, inputs: dict[str, Any], options: dict[str, Any]) -> None:
    ours, stock = both(enabled, inputs, **options)
    assert torch.equal(ours, stock)


def test_streamers_see_the_same(enabled: Any, inputs: dict[str, Any]) -> None:
    mine, stocks = Recorder(), Recorder()
    enabled.generate(**inputs, streamer=mine)
    eyespan.disable(enabled)
    enabled.generate(**inputs, streamer=stocks)
    assert mine.seen == stocks.seen
    assert mine.ended == stocks.ended == 1


def test_criteria_are_asked_after_every_token(enabled: Any, inputs: dict[str, Any]) -> None:
    length = inputs["input_ids"].shape[1] + 7
    mine, stocks = StopAfter(length), StopAfter(length)
    ours = enabled.generate(**inputs, stopping_criteria=StoppingCriteriaList([mine]))
    eyespan.disable(enabled)
    stock = enabled.generate(**inputs, stopping_criteria=StoppingCriteriaList([stocks]))
    assert torch.equal(ours, stock)
    assert mine.calls == stocks.calls == 7


def test_stop_strings_stop_at_the_same_token(enabled: Any, inputs: dict[str, Any]) -> None:
    tokenizer = tiny_tokenizer()
    answer = enabled.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    stop = next(text for i in range(4, 20) if len(text := tokenizer.decode(answer[i])) == 1)
    ours, stock = both(enabled, inputs, stop_strings=[stop], tokenizer=tokenizer)
    assert torch.equal(ours, stock)


def test_an_end_id_in_mid_block(enabled: Any, inputs: dict[str, Any]) -> None:
    answer = enabled.generate(**inputs)[0, inputs["input_ids"].shape[1] :].tolist()
    ours, stock = both(enabled, inputs, eos_token_id=answer[9])
    assert torch.equal(ours, stock)


def test_what_is_not_honoured_runs_stock_and_is_counted(
    enabled: Any, inputs: dict[str, Any]
) -> None:
    result = enabled.generate(**inputs, return_dict_in_generate=True, output_scores=True)
    assert len(result.scores) == result.sequences.shape[1] - inputs["input_ids"].shape[1]
    assert fallbacks(enabled) == {"a dictionary result": 1}
    enabled.generate(**inputs, num_beams=2)  # beams never reach our loop
    twin = copy.deepcopy(enabled)
    assert torch.equal(twin.generate(**inputs), enabled.generate(**inputs))
    assert fallbacks(enabled)["a copy of the enabled model"] == 1


def test_disable_leaves_the_model_as_it_was(target: HuggingFaceTarget) -> None:
    plain, attributes = type(target.model), set(vars(target.model))
    eyespan.enable(target.model)
    assert type(target.model) is not plain
    assert isinstance(target.model, plain)
    eyespan.enable(target.model, "none")  # again: replaces, does not stack
    eyespan.disable(target.model)
    assert type(target.model) is plain
    assert set(vars(target.model)) == attributes
    eyespan.disable(target.model)


def test_a_refused_enable_changes_nothing(target: HuggingFaceTarget) -> None:
    plain = type(target.model)
    with pytest.raises(ConfigError, match="drafter"):
        eyespan.enable(target.model, "recapp")
    assert type(target.model) is plain


def test_custom_generate_for_one_call(target: HuggingFaceTarget, inputs: dict[str, Any]) -> None:
    stock = target.model.generate(**inputs)
    for _ in range(2):
        ours = target.model.generate(
            **inputs, custom_generate=eyespan.custom_generate, drafter="recap", budget="fixed"
        )
        assert torch.equal(ours, stock)
    with pytest.raises(UnsupportedRequest, match="num_beams"):
        target.model.generate(**inputs, custom_generate=eyespan.custom_generate, num_beams=2)
    copy.deepcopy(target.model)  # the kept engine must not stand in the way
    vars(target.model).pop("_eyespan_calls")


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_pipelines_work_unchanged(family: str) -> None:
    target = tiny_target(family)
    if family == "llama":
        pipe = pipeline("text-generation", model=target.model, tokenizer=target.tokenizer)
        inputs: dict[str, Any] = {"text_inputs": PROMPT}
    else:
        pipe = pipeline("image-text-to-text", model=target.model, processor=target.processor)
        inputs = {"images": tiny_images(1), "text": f"<image>\n{PROMPT}"}
    answers = []
    for _ in range(2):
        torch.manual_seed(1)  # the text pipeline samples by default
        answers.append(pipe(**inputs, max_new_tokens=16))
        eyespan.enable(target.model)
    assert answers[0] == answers[1]
    assert fallbacks(target.model) == {}
