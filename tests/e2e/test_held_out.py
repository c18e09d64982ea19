"""The demo model on its held-out set: every setting says what stock `generate()` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyespan.bench.held_out import MAX_NEW_TOKENS, Ask, asks
from eyespan.bench.stock import stock_ids
from eyespan.demo import KINDS
from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.loading import load_target
from eyespan.trace import Trace, read_trace
from tests.parity.recap_switches import SWITCHES
from tests.parity.test_recap_trace import assert_same_rounds

WHOLE = 240
FEW = 6
_stock: dict[str, tuple[int, ...]] = {}


@pytest.fixture(scope="module")
def target() -> HuggingFaceTarget:
    return load_target("demo")


def stock(target: HuggingFaceTarget, ask: Ask) -> tuple[int, ...]:
    """Stock's answer, computed once for all tests."""
    if ask.name not in _stock:
        prompt = target.prepare(ask.messages, [ask.image])
        _stock[ask.name] = stock_ids(target, prompt, MAX_NEW_TOKENS)
    return _stock[ask.name]


def different(target: HuggingFaceTarget, engine: Engine, samples: int) -> list[str]:
    """Names of the requests that the engine answers otherwise than stock."""
    return [
        ask.name
        for ask in asks(samples)
        if engine.generate(ask.messages, [ask.image], max_new_tokens=MAX_NEW_TOKENS).token_ids
        != stock(target, ask)
    ]


@pytest.mark.parametrize("budget", ["auto", "fixed", 0])
def test_a_few_of_every_kind(target: HuggingFaceTarget, budget: Any) -> None:
    assert {ask.kind for ask in asks(FEW)} == set(KINDS)
    assert different(target, Engine(target, "recap", budget=budget), FEW) == []


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["auto", "fixed", 0])
def test_the_whole_set(target: HuggingFaceTarget, budget: Any) -> None:
    assert different(target, Engine(target, "recap", budget=budget), WHOLE) == []


def recorded(
    target: HuggingFaceTarget, options: dict[str, Any], samples: int, file: Path
) -> list[Any]:
    """The trace of a run over the set, with the paper's tree sizes."""
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size, **options)
    engine = Engine(target, drafter, budget="fixed")
    with Trace(file) as trace:
        for ask in asks(samples):
            engine.generate(ask.messages, [ask.image], max_new_tokens=MAX_NEW_TOKENS, trace=trace)
    return read_trace(file)


@pytest.mark.parametrize("name", ["default", "U", "contexts seeded"])
def test_its_trace_is_the_twins(target: HuggingFaceTarget, name: str, tmp_path: Path) -> None:
    options = SWITCHES[name]
    requests = recorded(target, options, 2, tmp_path / "trace.jsonl")
    assert assert_same_rounds(requests, whole_trees=True) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_its_trace_is_the_twins_for_every_switch(
    target: HuggingFaceTarget, name: str, tmp_path: Path
) -> None:
    requests = recorded(target, SWITCHES[name], 2 * FEW, tmp_path / "trace.jsonl")
    assert assert_same_rounds(requests, whole_trees=True) > 100
