"""Sampling and logits processors: with the same options and seed, every drafter says what stock
`generate()` says.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig

from eyespan.draw import by_position
from eyespan.generation import Engine
from eyespan.sampling import Sampling
from tests.parity.choosing import (
    DRAFTERS,
    PROMPT,
    TOKENS,
    ask,
    engine_of,
    inputs_of,
    stock,
    target_of,
)

CUTS: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.9, "temperature": 1.2},
    "min_p": {"min_p": 0.1},
    "top_h": {"top_h": 0.5},
    "typical_p": {"typical_p": 0.8},
    "epsilon": {"epsilon_cutoff": 0.02},
    "eta": {"eta_cutoff": 0.02},
    "synthid": {
        "temperature": 1.0,
        "watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=3),
    },
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "ngram": {"no_repeat_ngram_size": 2},
    "prompt penalty": {"encoder_repetition_penalty": 1.4},
    "prompt ngram": {"encoder_no_repeat_ngram_size": 2},
    "min length": {"min_length": 50},
    "min new tokens": {"min_new_tokens": 20},
    "bad words": {"bad_words_ids": [[65], [66, 67]]},
    "sequence bias": {"sequence_bias": {(100,): 5.0, (100, 101): -3.0}},
    "suppressed": {"suppress_tokens": [72, 73]},
    "suppressed first": {"begin_suppress_tokens": [72, 139]},
    "forced end": {"forced_eos_token_id": 2},
    "decay": {"exponential_decay_length_penalty": (5, 1.2)},
    "invalid values": {"remove_invalid_values": True},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=3.0)},
    "allowed": {"prefix_allowed_tokens_fn": lambda _row, ids: [int(ids[-1]) % 50 + 40, 90]},
    "normalised": {"renormalize_logits": True, "repetition_penalty": 1.1},
}
FAMILIES = ("llama", "qwen2_5_vl")


def cases(names: Any, with_pictures: str) -> list[Any]:
    """Every name on text; with a picture one of them in a quick run."""
    return [
        pytest.param(
            family,
            name,
            marks=[] if family == "llama" or name == with_pictures else [pytest.mark.slow],
        )
        for family in FAMILIES
        for name in names
    ]


@pytest.mark.parametrize(("family", "name"), cases(CUTS, "top_p"))
def test_A25_a_seed_repeats_stocks_sample(family: str, name: str) -> None:
    expected = stock(family, seed=7, do_sample=True, **CUTS[name])
    for drafter in DRAFTERS:
        assert ask(family, drafter, seed=7, **CUTS[name]).token_ids == expected, drafter


@pytest.mark.parametrize(("family", "name"), cases(PROCESSORS, "ngram"))
def test_A26_processors_see_the_committed_text(family: str, name: str) -> None:
    expected = stock(family, **PROCESSORS[name])
    for drafter in DRAFTERS:
        assert ask(family, drafter, **PROCESSORS[name]).token_ids == expected, drafter


class Counting:
    """Keeps state and writes in place: it bans a token that depends on how often it was called."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.lengths.append(input_ids.shape[1])
        best = scores.topk(3).indices[0]
        scores[0, best[len(self.lengths) % 3]] = -float("inf")
        return scores


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_A26_a_stateful_processor_is_called_once_a_token(drafter: str) -> None:
    theirs, mine = Counting(), Counting()
    expected = stock("llama", logits_processor=[theirs])
    assert ask("llama", drafter, logits_processors=[mine]).token_ids == expected
    assert mine.lengths == theirs.lengths


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_A26_presence_and_frequency_count_the_answer_alone(drafter: str) -> None:
    options = {"presence_penalty": 1.5, "frequency_penalty": 0.7, "logit_bias": {100: 6.0, 72: -9}}
    answer = ask("llama", drafter, **options).token_ids
    ids, said = inputs_of("llama").ids.tolist(), []
    for token in answer:
        logits = target_of("llama").model(torch.tensor([ids])).logits[0, -1]
        for seen in set(said):
            logits[seen] -= 1.5 + 0.7 * said.count(seen)
        logits[100] += 6.0
        logits[72] -= 9
        assert token == int(logits.argmax())
        ids.append(token)
        said.append(token)


def test_A25_requests_have_their_own_random_numbers() -> None:
    first = ask("llama", "recap", temperature=1.0).token_ids
    assert first != ask("llama", "recap", temperature=1.0).token_ids, "nobody gave a seed"
    seeded = ask("llama", "recap", temperature=1.0, seed=3).token_ids
    streams = [
        engine_of("llama", "recap").stream(
            PROMPT, max_new_tokens=TOKENS, temperature=1.0, seed=seed
        )
        for seed in (3, None, 3)
    ]
    while [stream for stream in streams if next(stream, None) is not None]:
        torch.rand(1)  # somebody else uses the global generator
    answers = [stream.generation.token_ids for stream in streams]
    assert answers[0] == answers[2] == seeded != answers[1]


@pytest.mark.parametrize("seed", range(4))
def test_numbers_by_position_depend_on_nothing_before(seed: int) -> None:
    options = {"temperature": 1.0, "seed": seed, "rng": "position"}
    answers = {ask("llama", drafter, **options).token_ids for drafter in DRAFTERS}
    assert len(answers) == 1
    assert answers != {ask("llama", "none", **{**options, "seed": seed + 100}).token_ids}
    pick, row = by_position(seed), torch.zeros(1, 1000)
    numbers = [pick(row, position) for position in range(5)]
    assert [by_position(seed)(row, position) for position in (4, 2)] == [numbers[4], numbers[2]]
    assert len(set(numbers)) == 5


def test_a_generator_of_the_callers_own_goes_on() -> None:
    generator = torch.Generator().manual_seed(7)
    first = ask("llama", "recap", temperature=1.0, generator=generator).token_ids
    assert first == ask("llama", "none", temperature=1.0, seed=7).token_ids
    assert first != ask("llama", "recap", temperature=1.0, generator=generator).token_ids


def test_an_engine_has_a_sampling_of_its_own() -> None:
    engine = Engine(
        target_of("llama"), "recap", budget="fixed", sampling=Sampling(seed=5, top_p=0.9)
    )
    expected = ask("llama", "none", seed=5, top_p=0.9).token_ids
    assert engine.generate(PROMPT, max_new_tokens=TOKENS).token_ids == expected
    greedy = engine.generate(PROMPT, max_new_tokens=TOKENS, temperature=0).token_ids
    assert greedy == ask("llama", "none").token_ids


class StopAfter:
    """A stopping criterion that counts its calls."""

    def __init__(self, length: int) -> None:
        self.length, self.calls = length, 0

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.calls += 1
        return torch.tensor([input_ids.shape[1] >= self.length])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_A30_criteria_end_the_answer_in_mid_block(drafter: str) -> None:
    stop = StopAfter(len(inputs_of("llama")) + 7)
    answer = ask("llama", drafter, stopping_criteria=[stop], repetition_penalty=1.2)
    assert (stop.calls, answer.finish) == (7, "stop")
    assert answer.token_ids == stock("llama", repetition_penalty=1.2)[:7]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.3, "seed": 2, "top_k": 30}], ids=str)
def test_A37_logprobs_are_plain_decodings(family: str, options: dict[str, Any]) -> None:
    plain = ask(family, "none", logprobs=5, **options)
    ids = inputs_of(family).ids.tolist()
    if family == "llama":  # the truth, without a cache
        with torch.no_grad():
            rows = target_of(family).model(torch.tensor([[*ids, *plain.token_ids]])).logits[0]
        truth = rows.log_softmax(-1)[len(ids) - 1 : -1]
        for at, (entry, row) in enumerate(zip(plain.logprobs, truth, strict=True)):
            assert entry.token_id == plain.token_ids[at]
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            assert [token for token, _ in entry.top] == row.topk(5).indices.tolist()
    for drafter in DRAFTERS[1:]:
        answer = ask(family, drafter, logprobs=5, **options)
        assert answer.token_ids == plain.token_ids
        for mine, theirs in zip(answer.logprobs, plain.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def test_A37_logprobs_come_with_their_tokens() -> None:
    for granularity in ("token", "block"):
        stream = engine_of("llama", "recap").stream(
            PROMPT, max_new_tokens=TOKENS, logprobs=0, stop="\ue000", granularity=granularity
        )
        chunks = list(stream)
        for chunk in chunks:
            assert tuple(entry.token_id for entry in chunk.logprobs) == chunk.token_ids
        together = tuple(entry for chunk in chunks for entry in chunk.logprobs)
        assert together == stream.generation.logprobs
        assert all(entry.top == () and entry.logprob < 0 for entry in together)
