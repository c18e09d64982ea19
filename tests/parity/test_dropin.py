"""`enable` and `custom_generate`: `generate()` works as before and says the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList, pipeline
from transformers.generation.streamers import BaseStreamer

import eyespan
from eyespan.dropin import MAX_CALL_ENGINES, fallbacks
from eyespan.errors import ConfigError, UnsupportedRequest
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import (
    SEEING,
    OracleDrafter,
    tiny_images,
    tiny_model,
    tiny_target,
    tiny_tokenizer,
)

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


def test_dictionary_results_are_stocks(enabled: Any, inputs: dict[str, Any]) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    prompt = inputs["input_ids"].shape[1]
    ours, stock = both(enabled, inputs, **options, repetition_penalty=1.3, do_sample=True)
    assert type(ours) is type(stock)
    assert torch.equal(ours.sequences, stock.sequences)
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(stock[name]) == ours.sequences.shape[1] - prompt
        for mine, theirs in zip(ours[name], stock[name], strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
    assert ours.cache.get_seq_length() == stock.cache.get_seq_length()
    assert (ours.attentions, ours.hidden_states) == (None, None)


def test_a_returned_cache_can_be_continued(enabled: Any) -> None:
    ids, answers = torch.tensor([[97, 98, 99] * 8]), []
    for _ in range(2):
        made = enabled.generate(ids, max_new_tokens=12, return_dict_in_generate=True)
        answers.append(enabled.generate(made.sequences, cache=made.cache, max_new_tokens=12))
        eyespan.disable(enabled)
    assert torch.equal(*answers)


def test_prefix_allowed_tokens(enabled: Any, inputs: dict[str, Any]) -> None:
    asked: list[int] = []

    def allowed(_row: int, ids: Any) -> list[int]:
        asked.append(len(ids))
        return [60 + int(ids[-1]) % 7, 90, 91]

    ours, stock = both(enabled, inputs, prefix_allowed_tokens_fn=allowed)
    assert torch.equal(ours, stock)
    assert asked[:24] == asked[24:]


def test_what_is_not_honoured_runs_stock_and_is_counted(
    enabled: Any, inputs: dict[str, Any]
) -> None:
    result = enabled.generate(**inputs, return_dict_in_generate=True, output_hidden_states=True)
    assert len(result.hidden_states) == result.sequences.shape[1] - inputs["input_ids"].shape[1]
    enabled.generate(**inputs, do_sample=True, num_return_sequences=2)
    if inputs.keys() == {"input_ids", "max_new_tokens"}:  # with pictures stock itself fails here
        enabled.generate(**inputs, guidance_scale=1.5)
        assert fallbacks(enabled)["classifier-free guidance"] == 1
    assert fallbacks(enabled)["attentions or hidden states of every token"] == 1
    assert fallbacks(enabled)["sampling of more than one sequence"] == 1
    enabled.generate(**inputs, num_beams=2)  # beams never reach our loop


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
    for budget in (1, 2, 3, 4, 5):
        target.model.generate(
            **inputs, custom_generate=eyespan.custom_generate, drafter="none", budget=budget
        )
    assert len(vars(target.model)["_eyespan_calls"]) == MAX_CALL_ENGINES
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


@pytest.mark.parametrize("ends", [-1, [-1, 2], [5, 10**9]])
def test_end_ids_that_no_text_holds(enabled: Any, inputs: dict[str, Any], ends: Any) -> None:
    ours, stock = both(enabled, inputs, eos_token_id=ends)
    assert torch.equal(ours, stock)


def test_a_length_limit_that_no_answer_reaches(enabled: Any, inputs: dict[str, Any]) -> None:
    ends = enabled.generate(**inputs)[0, -1:].tolist()
    ours, stock = both(enabled, {**inputs, "max_new_tokens": 2**40}, eos_token_id=ends)
    assert torch.equal(ours, stock)


def test_copies_and_pickles_are_plain_models() -> None:
    model, ids = tiny_model("llama"), torch.tensor([[97, 98, 99] * 8])
    plain = type(model)
    expected = eyespan.enable(model, budget="fixed").generate(ids, max_new_tokens=24)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is plain
        assert torch.equal(twin.generate(ids, max_new_tokens=24), expected)


def test_training_flags_come_back() -> None:
    model = tiny_model("llava").train()
    model.model.vision_tower.eval()
    flags = [module.training for module in model.modules()]
    with pytest.raises(ConfigError):
        eyespan.enable(model, "recapp")
    assert [module.training for module in model.modules()] == flags
    eyespan.enable(model)
    eyespan.enable(model, "none")
    assert not any(module.training for module in model.modules())
    eyespan.disable(model)
    assert [module.training for module in model.modules()] == flags


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_changed_after_enable_says_the_same(attention: str) -> None:
    first = "sdpa" if attention == "eager" else "eager"
    model = eyespan.enable(tiny_model("llama", attention=first), budget="fixed")
    model.set_attn_implementation(attention)
    ids = torch.tensor([[97, 98, 99] * 8])
    ours, mask = model.generate(ids, max_new_tokens=24), torch.ones_like(ids)
    assert list(fallbacks(model)) == [
        f"attention {attention} instead of {first}, changed since it was loaded"
    ]
    eyespan.disable(model)
    assert torch.equal(ours, model.generate(ids, attention_mask=mask, max_new_tokens=24))


def test_a_cache_holds_what_stock_leaves_in_it() -> None:
    """However an answer ends: the newest token is not read yet, so that it can be continued."""
    target = tiny_target("llama")
    ids = torch.tensor([[97, 98] * 10])
    oracle = OracleDrafter(target, [target.prompt_from_ids(ids)])
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    answer = target.model.generate(ids, max_new_tokens=24, **options)[0, ids.shape[1] :].tolist()
    for end in range(1, 20):
        found = []
        for drafter in (None, oracle):
            if drafter is not None:
                eyespan.enable(target.model, drafter, budget="fixed")
            cache = DynamicCache(config=target.model.config)
            more = {"past_key_values": cache, "max_new_tokens": 24, "eos_token_id": answer[end]}
            made = target.model.generate(ids, **options, **more)
            found.append((made.shape[1], cache.get_seq_length()))
            eyespan.disable(target.model)
        assert found[0] == found[1]


class Fails(BaseStreamer):
    """Raises after some tokens."""

    def __init__(self, after: int) -> None:
        self.left = after

    def put(self, value: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("on purpose")

    def end(self) -> None:
        pass


def test_a_callback_that_raises_leaves_no_guess_in_the_cache(enabled: Any) -> None:
    ids = torch.tensor([[97, 98] * 10])
    cache = DynamicCache(config=enabled.config)
    with pytest.raises(RuntimeError, match="on purpose"):
        enabled.generate(ids, past_key_values=cache, max_new_tokens=24, streamer=Fails(5))
    assert ids.shape[1] <= cache.get_seq_length() <= ids.shape[1] + 5
