"""Whole numbers come from numpy as often as from Python; bools and floats are none."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from eyespan import Sampling, Video
from eyespan.batching import Scheduler
from eyespan.budget import check_budget
from eyespan.checks import check_max_new_tokens
from eyespan.counts import real, whole
from eyespan.drafters import make_drafter
from eyespan.errors import ConfigError
from eyespan.generation import Engine
from eyespan.testing import tiny_target


@lru_cache(maxsize=1)
def engine() -> Engine:
    return Engine(tiny_target("llama"), "none", budget=0)


@pytest.mark.parametrize("value", [3, np.int64(3), np.int32(3), np.uint8(3)], ids=repr)
def test_what_is_whole(value: Any) -> None:
    assert whole(value) == 3
    assert type(whole(value)) is int
    assert real(value) == 3.0


@pytest.mark.parametrize("value", [True, np.bool_(True), 3.0, np.float64(3), "3", None], ids=repr)
def test_what_is_not(value: Any) -> None:
    assert whole(value) is None


@pytest.mark.parametrize("value", [True, np.bool_(True), float("nan"), np.inf, 1j, "3"], ids=repr)
def test_what_is_no_number(value: Any) -> None:
    assert real(value) is None


TAKERS: dict[str, Callable[[Any], object]] = {
    "budget": check_budget,
    "max_new_tokens": check_max_new_tokens,
    "top_k": lambda value: Sampling(top_k=value).top_k,
    "seed": lambda value: Sampling(seed=value).seed,
    "min_new_tokens": lambda value: Sampling(min_new_tokens=value).min_new_tokens,
    "logprobs": lambda value: Sampling(logprobs=value).logprobs,
    "nodes": lambda value: make_drafter("recap", vocab_size=9, nodes=value).fixed_budget,
    "frames": lambda value: Video("a.gif", frames=value).frames,
    "max_rows": lambda value: Scheduler(engine(), max_rows=value)._max_rows,
}


@pytest.mark.parametrize("name", TAKERS)
def test_every_whole_option_takes_numpys_and_no_bool(name: str) -> None:
    taken = TAKERS[name](np.int64(3))
    assert taken == 3
    assert type(taken) is int
    for wrong in (True, 3.5, "3", float("nan")):
        with pytest.raises(ConfigError):
            TAKERS[name](wrong)


def test_numpys_numbers_say_what_pythons_say() -> None:
    def said(whole: Callable[[int], Any], real: Callable[[float], Any]) -> list[str]:
        answers = engine().generate_many(
            ["hi, what is this?"],
            n=whole(2),
            max_new_tokens=whole(6),
            temperature=real(0.5),
            top_k=whole(20),
            seed=whole(7),
            rng="position",
            logit_bias={whole(70): real(2.0)},
            bad_words_ids=[[whole(71)]],
            forced_eos_token_id=whole(2),
        )
        return [answer.text for answer in answers]

    assert said(np.int64, np.float32) == said(int, float)
    assert len(set(said(int, float))) == 2


def test_a_turn_of_a_chat_is_a_whole_number() -> None:
    with engine().chat(max_new_tokens=3) as chat:
        chat.say("abc")
        assert chat.turn_pictures(np.int64(0)) == []  # type: ignore[arg-type]
        for wrong in (True, 0.0, torch.tensor(0)):
            with pytest.raises(ConfigError, match="turn"):
                chat.turn_pictures(wrong)  # type: ignore[arg-type]
