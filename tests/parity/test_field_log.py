"""Failures that users of other tools have reported, each as a test under its number in the list of
known failures of speculative decoding: what the text says must not depend on the number of tokens
committed at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import eyespan
from eyespan.drafters.base import Ask
from eyespan.dropin import fallbacks
from eyespan.errors import ContextError
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import (
    CHAINS,
    EVERY_SEEING,
    OracleDrafter,
    RandomDrafter,
    tiny_images,
    tiny_prompt,
    tiny_target,
)
from eyespan.types import DraftTree, Needs
from tests.parity import steps
from tests.parity.choosing import DRAFTERS, PROMPT, ask, engine_of, inputs_of, target_of

TOKENS = 24
RECURRENT = ("qwen3_next", "qwen3_5", "lfm2_vl", "olmo_hybrid", *CHAINS)
CACHELESS = (
    "llava",
    "qwen2_5_vl",
    "qwen3_vl",
    "idefics3",
    "gemma3",
    "mllama",
    "lfm2_vl",
    "mistral",
)


@contextmanager
def enabled(model: Any, drafter: Any = "recap") -> Iterator[Any]:
    try:
        yield eyespan.enable(model, drafter, budget="fixed")
    finally:
        eyespan.disable(model)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_A09_sampled_requests_keep_their_own_positions(family: str) -> None:
    """The position offset of the last prompt that a Qwen-VL model saw is another request's."""
    engine = engine_of(family, "recap")
    pictures = [tiny_images(1, seed=1), tiny_images(2, seed=2), []]

    def begin(number: int) -> Any:
        options = {"temperature": 1.0, "seed": number, "max_new_tokens": TOKENS}
        return engine.stream(PROMPT, pictures[number], **options)

    together = [begin(number) for number in range(3)]
    while [stream for stream in together if next(stream, None) is not None]:
        pass
    for number, stream in enumerate(together):
        assert stream.generation.token_ids == begin(number).finish().token_ids


@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_A29_an_end_anywhere_in_a_block_ends_the_answer(drafter: str) -> None:
    prompt, model = inputs_of("llama"), target_of("llama").model
    options: dict[str, Any] = {"attention_mask": torch.ones_like(prompt.input_ids)}
    plain = model.generate(prompt.input_ids, max_new_tokens=TOKENS, **options)[0, len(prompt) :]
    with enabled(model, engine_of("llama", drafter).drafter):
        for end in plain.tolist():
            ours = model.generate(
                prompt.input_ids, max_new_tokens=TOKENS, eos_token_id=end, **options
            )
            kept = plain.tolist().index(end) + 1
            assert ours[0, len(prompt) :].tolist() == plain.tolist()[:kept]
        assert fallbacks(model) == {}


@cache
def plain_with_stop(stop: str) -> tuple[Any, str]:
    stream = engine_of("llama", "none").stream(PROMPT, max_new_tokens=TOKENS, stop=stop, logprobs=1)
    deltas = "".join(chunk.text for chunk in stream)
    return stream.generation, deltas


@pytest.mark.parametrize("granularity", ["token", "block"])
@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_A30_a_stop_string_at_every_offset(drafter: str, granularity: str) -> None:
    text = ask("llama", "none").text
    stops = [text[at : at + size] for size in (1, 3) for at in range(0, len(text) - size, 2)]
    for stop in stops:
        plain, deltas = plain_with_stop(stop)
        stream = engine_of("llama", drafter).stream(
            PROMPT, max_new_tokens=TOKENS, stop=stop, logprobs=1, granularity=granularity
        )
        assert "".join(chunk.text for chunk in stream) == deltas
        mine = stream.generation
        assert (mine.text, mine.token_ids, mine.finish) == (
            plain.text, plain.token_ids, plain.finish
        )  # fmt: skip
        assert plain.finish == "stop"
        assert stop not in mine.text
        assert len(mine.logprobs) == len(plain.logprobs)
        for one, other in zip(mine.logprobs, plain.logprobs, strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def text_of(length: int) -> str:
    """A prompt of exactly so many tokens (bytes are tokens)."""
    frame = len(target_of("gpt2").prepare("a"))
    return ("abc " * length)[: length - frame + 1]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("left", [1, 2, 5, 8])
def test_A32_drafts_end_where_the_context_does(family: str, left: int) -> None:
    """gpt2 has a table of positions: one more than it holds is an error."""
    target = target_of(family)
    text = text_of(target.info.max_context - left)
    plain = Engine(target, "none", budget=0).generate(text)
    assert len(plain.token_ids) == left or plain.finish == "eos"
    for drafter in ("recap", RandomDrafter(target.info.vocab_size)):
        answer = Engine(target, drafter, budget="fixed").generate(text)
        assert (answer.token_ids, answer.finish) == (plain.token_ids, plain.finish)
        assert not answer.plain_steps.get("drafter fault")


def test_A32_a_full_context_is_refused() -> None:
    text, engine = text_of(target_of("gpt2").info.max_context), engine_of("gpt2", "none")
    with pytest.raises(ContextError, match="512"):
        engine.generate(text)


def test_A32_generate_with_a_limit_beyond_the_context() -> None:
    """An end id comes before the table of positions ends; drafts must not reach beyond it."""
    target = tiny_target("gpt2")
    ids = target.prepare(text_of(target.info.max_context - 6)).input_ids
    options = {"attention_mask": torch.ones_like(ids)}
    plain = target.model.generate(ids, max_new_tokens=6, **options)[0, ids.shape[1] :].tolist()
    end = plain[-1]
    with enabled(target.model, RandomDrafter(target.info.vocab_size)) as model:
        ours = model.generate(ids, max_new_tokens=100, eos_token_id=end, **options)
        assert fallbacks(model) == {}
    kept = plain.index(end) + 1
    assert ours[0, ids.shape[1] :].tolist() == plain[:kept]


@pytest.mark.parametrize(
    "options",
    [{}, {"repetition_penalty": 1.3}, {"do_sample": True, "top_k": 20}],
    ids=["greedy", "penalty", "drawn"],
)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_A22_left_padding_changes_nothing(family: str, options: dict[str, Any]) -> None:
    """Rows that are masked as a whole must not turn into NaN."""
    model = target_of(family).model
    ids = torch.tensor([[0] * 5 + [97, 98, 99] * 6])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "max_new_tokens": TOKENS}
    answers = []
    for on in (False, True):
        torch.manual_seed(3)
        if on:
            with enabled(model):
                answers.append(model.generate(**inputs, **options))
                assert fallbacks(model) == {}
        else:
            answers.append(model.generate(**inputs, **options))
    assert torch.equal(*answers)


def check_counted(options: dict[str, Any], reason: str) -> None:
    """What this loop does not honour runs stock's, says what stock says, and is counted."""
    model, ids = target_of("llama").model, torch.tensor([[97, 98, 99] * 6])
    torch.manual_seed(0)
    stock = model.generate(ids, max_new_tokens=8, **options)
    with enabled(model):
        torch.manual_seed(0)
        assert torch.equal(model.generate(ids, max_new_tokens=8, **options), stock)
        assert fallbacks(model) == {reason: 1}


def test_A14_generate_without_a_cache_is_counted_and_right() -> None:
    check_counted({"use_cache": False}, "decoding without a cache")


@pytest.mark.parametrize("family", CACHELESS)
def test_A14_a_cache_says_what_reading_everything_anew_says(family: str) -> None:
    """The reference that keeps no cache must not lose the pictures after its first step."""
    target = steps.target_of(family)
    text = steps.MANY + " Say it."  # to which none of the random models answers with its end
    prompt = tiny_prompt(target, family, 2 if family in EVERY_SEEING else 0, text=text)
    said: list[int] = []
    for _ in range(6):
        state, prefill = target.prefill(longer(target, prompt, said), Needs())
        state.close()
        said.append(int(prefill.next_row_ids[0]))
        if said[-1] in target.info.eos_ids | target.info.media_ids:  # as no text would
            break
    engine = Engine(target, RandomDrafter(target.info.vocab_size), budget="fixed")
    assert steps.answer(engine, prompt, len(said)).output_ids.tolist() == said
    assert len(said) > 2


def longer(target: HuggingFaceTarget, prompt: Prompt, said: list[int]) -> Prompt:
    """The prompt with tokens behind it, and all its pictures again."""
    media = dict(prompt.media)
    if kinds := target.family.token_kinds:
        more = torch.full((1, len(said)), target.family.text_kind)
        media[kinds] = torch.cat([media[kinds], more], 1)
    for name in target.family.step_inputs:
        if name in media:
            media[name] = torch.cat([media[name], *[media[name][:, -1:]] * len(said)], 1)
    return target.prompt_from_ids([*prompt.ids.tolist(), *said], **media)


def test_A16_generate_with_a_static_cache_is_counted_and_right() -> None:
    check_counted({"cache_implementation": "static"}, "a static cache")


class NowAndThen(OracleDrafter):
    """Two right guesses and two wrong ones behind them in one round, none in the next: what a state
    took in of the wrong ones has to be gone where no further guess sets it back.
    """

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        trees = super().propose_many(asks)
        return [
            half_wrong(tree) if len(ask.prefix) % 4 == 0 else DraftTree.empty()
            for tree, ask in zip(trees, asks, strict=True)
        ]


def half_wrong(tree: DraftTree) -> DraftTree:
    """The first two guesses of a chain, then two that the target does not make."""
    tokens = tree.tokens[:4].copy()
    tokens[2:] = np.where(tokens[2:] == 40, 41, 40)
    return DraftTree(tokens, tree.parents[:4])


@pytest.mark.parametrize("family", RECURRENT)
def test_A17_states_stay_right_between_hits_and_empty_drafts(family: str) -> None:
    """A random model may say the same words in a wrong state: its log-probabilities tell."""
    target = steps.target_of(family)
    prompt = tiny_prompt(target, family, 2 if family in EVERY_SEEING else 0, text=steps.MANY)
    engine = Engine(target, NowAndThen(target, [prompt], TOKENS, decoys=0), budget="fixed")
    mine = engine.generate(prompt, max_new_tokens=TOKENS, logprobs=0)
    plain = Engine(target, "none", budget=0).generate(prompt, max_new_tokens=TOKENS, logprobs=0)
    assert mine.token_ids == plain.token_ids
    for ours, theirs in zip(mine.logprobs, plain.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    assert 2 < mine.accepted < mine.drafted
    assert mine.plain_steps["empty"] > 2


def test_A42_several_sampled_answers_are_counted_and_right() -> None:
    check_counted(
        {"do_sample": True, "num_return_sequences": 2}, "sampling of more than one sequence"
    )


def test_A42_a_batch_is_answered_in_this_loop_and_equals_stocks() -> None:
    model, ids = target_of("llama").model, torch.tensor([[97, 98, 99] * 6] * 2)
    stock = model.generate(ids, max_new_tokens=8)
    with enabled(model):
        assert torch.equal(model.generate(ids, max_new_tokens=8), stock)
        assert fallbacks(model) == {}
