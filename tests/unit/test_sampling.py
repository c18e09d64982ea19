"""Options of a request are checked before anything runs, and mean what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eyespan.draw import Chooser, History, Lots
from eyespan.errors import ConfigError, EyespanError, UnsupportedRequest
from eyespan.sampling import Sampling
from tests.parity.choosing import ask, engine_of

BAD: dict[str, dict[str, Any]] = {
    "negative temperature": {"temperature": -1},
    "temperature that is no number": {"temperature": float("nan")},
    "temperature as text": {"temperature": "hot"},
    "top_p above one": {"top_p": 1.5},
    "temperature that overflows": {"temperature": 1e-30},
    "half a token": {"top_k": 2.5},
    "truth as a number": {"top_k": True},
    "seed below zero": {"seed": -1},
    "seed beyond 63 bits": {"seed": 1 << 63},
    "seed and generator": {"seed": 1, "generator": torch.Generator()},
    "generator of another kind": {"generator": 5, "temperature": 1.0},
    "position and generator": {"rng": "position", "generator": torch.Generator()},
    "unknown rng": {"rng": "global"},
    "too many alternatives": {"logprobs": 21},
    "guidance": {"guidance_scale": 1.5},
    "penalty of zero": {"repetition_penalty": 0},
    "presence beyond its range": {"presence_penalty": 3},
    "foreign id": {"logit_bias": {10**9: 1.0}},
    "negative id": {"suppress_tokens": [-1]},
    "id as text": {"suppress_tokens": ["a"]},
    "a word without ids": {"bad_words_ids": [[]]},
    "a word that is no list": {"bad_words_ids": [5]},
    "a flood of words": {"bad_words_ids": [[1]] * 10_001},
    "a number as a list": {"suppress_tokens": 5},
    "no decay": {"exponential_decay_length_penalty": 3},
    "no watermark": {"watermarking_config": 3},
    "a processor that cannot be called": {"logits_processors": [3]},
    "processors as text": {"logits_processors": "abc"},
    "strict sampling": {"strict": True, "temperature": 1.0},
    "strict with state": {"strict": True, "logits_processors": [lambda ids, scores: scores]},
    "granularity": {"granularity": "word"},
    "form that is no mapping": {"response_format": "json"},
    "form of an unknown kind": {"response_format": {"type": "yaml"}},
    "form without a schema": {"response_format": {"type": "json_schema"}},
    "a broken pattern": {"response_format": {"type": "regex", "regex": "("}},
    "a broken schema": {"response_format": {"type": "json_schema", "schema": {"type": "nope"}}},
    "a broken grammar": {"response_format": {"type": "ebnf", "grammar": "root ::= nope"}},
    "no choices": {"response_format": {"type": "choice", "choices": []}},
    "an endless grammar": {"response_format": {"type": "regex", "regex": "a" * 100_001}},
    "after nothing": {"response_format": {"type": "regex", "regex": "a", "after": ""}},
}


@pytest.mark.parametrize("name", BAD)
def test_A40_bad_options_are_refused_and_the_next_request_is_fine(name: str) -> None:
    with pytest.raises(EyespanError) as caught:
        ask("llama", "recap", **BAD[name])
    assert isinstance(caught.value, ValueError)
    assert "/project/" not in str(caught.value), "places in other people's source help nobody"
    assert len(ask("llama", "recap", max_new_tokens=2).token_ids) == 2


@pytest.mark.parametrize("rng", ["stream", "position"])
def test_where_no_token_may_follow_none_is_drawn(rng: str) -> None:
    """Numbers by position took the last of the vocabulary, torch's own fail deep inside."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 1, "rng": rng, "max_new_tokens": 4}
    everything = list(range(engine_of("llama", "none").target.info.vocab_size))
    for nothing in ({"suppress_tokens": everything}, {"logit_bias": {70: 3.4e38}}):
        with pytest.raises(UnsupportedRequest, match="no token that may follow"):
            ask("llama", "none", **{**options, "temperature": 0.5}, **nothing)
    few = {"suppress_tokens": everything[:70] + everything[71:]}
    assert set(ask("llama", "none", **options, **few).token_ids) == {70}


def test_rejection_has_nothing_to_draw_either() -> None:
    history = History(torch.tensor([[5, 6]]), 9)
    chooser = Chooser(history, lambda ids, scores: scores - float("inf"))
    with pytest.raises(UnsupportedRequest, match="no token that may follow"):
        Lots(chooser, 1.0, None, 0).probs(torch.zeros(8), np.array([5, 6], np.int32))


def test_an_unknown_option_names_the_closest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'temperature'"):
        engine_of("llama", "recap").stream("hi", temperatur=1.0)


@pytest.mark.parametrize(
    ("options", "draws"),
    [
        ({}, False),
        ({"seed": 1}, False),
        ({"temperature": 0, "top_p": 0.5}, False),
        ({"temperature": 0.1}, True),
        ({"top_p": 0.5}, True),
        ({"repetition_penalty": 1.1}, False),
    ],
)
def test_when_tokens_are_drawn(options: dict[str, Any], draws: bool) -> None:
    assert Sampling(**options).draws is draws


@pytest.mark.parametrize(
    "options",
    [{"logprobs": 0}, {"forced_bos_token_id": 0}, {"strict": True}, {"logit_bias": {0: 1}}],
    ids=str,
)
def test_a_plain_choice_has_no_options(options: dict[str, Any]) -> None:
    assert Sampling(seed=4, top_p=0.5, temperature=0.0).is_plain
    assert not Sampling(**options).is_plain
