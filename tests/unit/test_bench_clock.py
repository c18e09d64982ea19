"""The paired clock: sides take turns, other answers have no speed, ratios stay within a round."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from eyespan.bench.clock import Side, Timed, engine_side, race
from eyespan.bench.stock import stock_side
from eyespan.generation import Engine
from eyespan.testing import tiny_images, tiny_target


def scripted(log: list[str], name: str, runs: Iterable[tuple[int, float]]) -> Side:
    """A side that writes and takes what it is told, run by run."""
    script = iter(runs)

    def side() -> Timed:
        log.append(name)
        token, seconds = next(script)
        return Timed((token,), seconds)

    return side


def test_sides_take_turns_after_a_warm_up_and_the_warm_up_is_not_timed() -> None:
    log: list[str] = []
    found = race(
        {
            "plain": scripted(log, "plain", [(7, 99), (7, 2.0), (7, 8.0), (7, 3.0)]),
            "fast": scripted(log, "fast", [(7, 99), (7, 1.0), (7, 2.0), (7, 3.0)]),
        },
        rounds=3,
    )
    assert log == ["plain", "fast"] * 4
    assert found.ratios("fast") == (2.0, 4.0, 1.0)
    assert found.speed("fast") == 2.0
    assert found.speed("plain", "fast") == 0.5
    assert found.different == ()


def test_a_side_that_writes_something_else_is_not_timed() -> None:
    log: list[str] = []
    found = race(
        {
            "plain": scripted(log, "plain", [(7, 1.0)] * 3),
            "wrong": scripted(log, "wrong", [(8, 0.1)]),
        },
        rounds=2,
    )
    assert log == ["plain", "wrong", "plain", "plain"]
    assert found.different == ("wrong",)
    assert found.speed("wrong") is None
    assert found.speed("plain", "wrong") is None


def test_a_side_that_wavers_later_loses_its_speed() -> None:
    sides = {
        "plain": scripted([], "plain", [(7, 1.0)] * 4),
        "wavering": scripted([], "wavering", [(7, 1.0), (7, 1.0), (8, 1.0)]),
    }
    assert race(sides, rounds=3).different == ("wavering",)


def test_without_a_warm_up_the_first_timed_answers_are_compared() -> None:
    sides = {
        "plain": scripted([], "plain", [(7, 3.0)]),
        "fast": scripted([], "fast", [(7, 1.0)]),
        "wrong": scripted([], "wrong", [(8, 1.0)]),
    }
    found = race(sides, rounds=1, warm_up=False)
    assert found.speed("fast") == 3.0
    assert found.different == ("wrong",)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_engines_and_stock_write_the_same_answer(family: str) -> None:
    target, pictures = tiny_target(family), tiny_images(2)
    recap = Engine(target, "recap", budget="fixed")
    sides = {
        "plain": engine_side(Engine(target, "none", budget=0), "Hi", pictures, max_new_tokens=20),
        "recap": engine_side(recap, "Hi", pictures, max_new_tokens=20),
    }
    stock = stock_side(target, "Hi", pictures, max_new_tokens=20)
    assert stock is not None
    found = race({**sides, "stock": stock}, rounds=1)
    assert found.different == ()
    assert set(found.seconds) == {"plain", "recap", "stock"}
    assert np.all(np.array(list(found.seconds.values())) > 0)


def test_A53_memories_are_empty_at_every_turn() -> None:
    recap = Engine(tiny_target("llava"), "recap", budget="fixed")
    side = engine_side(recap, "Hi", max_new_tokens=20)
    forwards = {run.generation.forwards for run in (side(), side()) if run.generation}
    assert len(forwards) == 1
    kept = engine_side(recap, "Hi", max_new_tokens=20, fresh=False)()
    assert kept.generation is not None
    assert kept.generation.forwards < min(forwards)


def test_stock_leaves_out_what_a_generation_config_adds() -> None:
    target = tiny_target("llava")
    target.model.generation_config.repetition_penalty = 1.8
    target.model.generation_config.do_sample = True
    plain = engine_side(Engine(target, "none", budget=0), "Hi", max_new_tokens=20)
    stock = stock_side(target, "Hi", max_new_tokens=20)
    assert stock is not None
    assert stock().token_ids == plain().token_ids
