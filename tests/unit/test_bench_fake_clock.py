"""A target with known delays and one to five tokens a pass gives exactly known figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyespan.bench import metrics
from eyespan.bench.datasets import load_selection, open_source
from eyespan.bench.records import NOISE, PLAIN, Run, Store
from eyespan.bench.runner import Runner
from eyespan.bench.settings import Method, Settings
from eyespan.bench.sides import Sides, contestants_of
from tests.fake_bench import NODE, PASS, READ_TOKEN, FakeClock, FakeTarget

QUESTIONS = ("ab" * 8, "cd" * 16, "ef" * 24)
TOKENS = 21
STEPS = 6
"""One token from the prefill; 5, 4, 3, 2, 1 and 5 from six passes."""
NODES = 4 + 3 + 2 + 1 + 0 + 4


def measured(
    tmp_path: Path, patch: pytest.MonkeyPatch, *methods: Method, folder: str = "run", **options: Any
) -> list[Run]:
    """A run over the three questions."""
    clock = FakeClock()
    clock.install(patch)
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": one}) + "\n" for one in QUESTIONS))
    name = f"folder:{file}"
    settings = Settings(
        datasets=(name,), methods=methods, max_new_tokens=TOKENS, warm_up=1, **options
    )
    source = open_source(name)
    selection = load_selection(
        tmp_path / "inputs.json", source, inputs=settings.max_inputs, warm_up=1, seed=17
    )
    with Store(tmp_path / folder) as store:
        target = FakeTarget(clock=clock)
        ready, _ = contestants_of(target, methods, settings.repeats)
        sides = Sides(settings, target, ready)
        Runner(settings, sides, {name: source}, {name: selection}, store).run()
        return store.runs


def seconds(question: str, passes: int, nodes: int) -> float:
    return len(question) * READ_TOKEN + passes * PASS + nodes * NODE


SCRIPTED = Method(label="scripted", drafter="scripted")


@pytest.mark.parametrize("pairing", ["each", "round"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_A54_every_figure_is_the_one_worked_out_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairing: Any, repeats: int
) -> None:
    runs = measured(tmp_path, monkeypatch, SCRIPTED, pairing=pairing, repeats=repeats)
    own = [run for run in runs if run.method == "scripted"]
    assert len(own) == repeats * len(QUESTIONS)
    assert {run.status for run in runs} == {"equal"}
    fast = [seconds(one, STEPS, NODES) for one in QUESTIONS]
    slow = [seconds(one, TOKENS - 1, 0) for one in QUESTIONS]
    ratios = sorted(b / a for a, b in zip(fast, slow, strict=True))

    assert metrics.speedup(own) == pytest.approx(sum(ratios) / 3)
    assert metrics.acceptance_length(own) == 1 + NODES / STEPS
    assert metrics.tokens_per_forward(own) == TOKENS / (STEPS + 1)
    assert metrics.ratio_of_sums(own) == pytest.approx(sum(slow) / sum(fast))
    assert metrics.decode_speedup(own) == pytest.approx(20 * PASS / (6 * PASS + NODES * NODE))
    spread = metrics.spread([metrics.throughput_ratio(run) for run in own])
    if repeats == 1:
        assert spread.p50 == pytest.approx(ratios[1])
        assert spread.p10 == pytest.approx(ratios[0] + 0.2 * (ratios[1] - ratios[0]))
        assert spread.p90 == pytest.approx(ratios[1] + 0.8 * (ratios[2] - ratios[1]))
    assert spread.above_one == 1.0
    assert sorted(metrics.input_latencies(own)) == pytest.approx(sorted(fast))
    plain = [run for run in runs if run.method == PLAIN]
    assert sorted(metrics.input_latencies(plain)) == pytest.approx(sorted(slow))
    assert metrics.speedup([run for run in runs if run.method == NOISE]) == 1.0
    assert metrics.acceptance_by_depth(own) == [1.0] * 4
    times = metrics.stage_ms(own)
    assert times["forward"] == pytest.approx(1e3 * (6 * PASS + NODES * NODE) / STEPS)
    assert times["other"] == pytest.approx(0.0)
    busy = metrics.stage_cpu_ms(own)  # the fake processor never waits
    assert busy == pytest.approx({stage: ms for stage, ms in times.items() if stage != "other"})
    prefill = [run.seconds["prefill"] for run in own]
    assert sorted(set(prefill)) == sorted(len(one) * READ_TOKEN for one in QUESTIONS)


def test_A53_sides_take_turns_in_an_order_of_their_own_and_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [Method(label=f"m{at}", drafter="scripted") for at in range(4)]
    first = measured(tmp_path, monkeypatch, *methods, folder="a")
    again = measured(tmp_path, monkeypatch, *methods, folder="b")
    assert first == again
    orders = [
        [run.method for run in first if run.input == name and run.method != PLAIN]
        for name in ("1", "2", "3")
    ]
    assert len({tuple(order) for order in orders}) > 1


def test_a_drafter_that_fails_on_one_input_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = 2 + ord("c") % 30
    broken = Method(label="broken", drafter="scripted", options={"fails": fails})
    runs = measured(tmp_path, monkeypatch, SCRIPTED, broken)
    bad = [run for run in runs if run.status == "error"]
    assert [(run.method, run.input) for run in bad] == [("broken", "2")]
    assert bad[0].error == "RuntimeError: a drafter that fails on purpose"
    assert sum(run.method == "broken" for run in runs) == 3
    assert sum(run.method == "scripted" and run.status == "equal" for run in runs) == 3


def test_A53_every_repeat_has_a_memory_of_its_own_that_lives_for_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Method(label="m", drafter="scripted", options={"remembers": True})
    runs = measured(tmp_path, monkeypatch, method, repeats=2)
    for repeat in (0, 1):
        held = [run.state_bytes for run in runs if run.method == "m" and run.repeat == repeat]
        assert held == [100, 200, 300], "the warm-up is forgotten, inputs are not"
