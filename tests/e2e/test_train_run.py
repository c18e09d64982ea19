"""From pictures to a drafter that an engine loads, for every trained method."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from eyespan.demo import held_out
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget, load_target
from eyespan.train.capture import CaptureConfig, capture
from eyespan.train.config import load_config
from eyespan.train.report import Report
from eyespan.train.settings import TrainConfig
from tests.cli import Shell

RUNS = Path(__file__).parents[2] / "runs"
SMALL = ("schedule.epochs=1", "schedule.batch=3", "schedule.warmup=0", "data.validation=2",
         "run.micro_batch=3", "run.replay=2")  # fmt: skip


@pytest.fixture(scope="module")
def demo() -> HuggingFaceTarget:
    return load_target("demo")


@pytest.fixture(scope="module")
def artifacts(demo: HuggingFaceTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's capture as `runs/` has it, but for eight conversations with the known answers."""
    out = tmp_path_factory.mktemp("artifacts")
    config = load_config(
        CaptureConfig,
        RUNS / "capture_demo.toml",
        [f"store.out={out}", "data.count=8", "answers.regenerate=false"],
    )
    assert capture(config, demo, Report(silent=True)).sequences == 8
    return out


@pytest.mark.parametrize("method", ["fovea", "eagle3", "msd", "dream", "vispec"])
def test_a_method_is_trained_saved_and_served(
    method: str, demo: HuggingFaceTarget, artifacts: Path, tmp_path: Path, shell: Shell
) -> None:
    out = tmp_path / "out"
    done = shell(
        "train", "run", RUNS / f"train_{method}_demo.toml",
        f"data.artifacts={artifacts}", f"run.out={out}", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "2 updates" in done.out
    assert "tokens taught" in done.err
    last = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
    assert 1.0 <= last["accept_length"] <= 7.0
    card = (out / "best" / "README.md").read_text()
    assert card.startswith(f"# {method} for demo\n")
    assert "demo, 12 layers of 256" in card
    assert "demo, answered by the data set: 6 sequences to learn from, 2 kept apart" in card
    assert card.endswith(f" | {last['accept_length']:.2f} |\n")
    engine = Engine(demo, method, budget="fixed", checkpoint=str(out))  # its best head is meant
    plain = Engine(demo, "none", budget=0)
    sample = next(held_out(1))
    ask = (sample.turns[0].question, [sample.image])
    made = engine.generate(*ask, max_new_tokens=12)
    assert made.token_ids == plain.generate(*ask, max_new_tokens=12).token_ids
    assert made.drafted > 0


def test_what_a_method_needs_and_a_capture_lacks_is_refused(
    artifacts: Path, demo: HuggingFaceTarget, tmp_path: Path, shell: Shell
) -> None:
    bare = load_config(
        CaptureConfig,
        RUNS / "capture_demo.toml",
        [f"store.out={tmp_path / 'bare'}", "data.count=6", "answers.regenerate=false",
         "store.layers=[]", "store.mid=false"],
    )  # fmt: skip
    capture(bare, demo, Report(silent=True))
    for method, match in (("eagle3", "layers [2, 6, 9]"), ("fovea", "intermediate states")):
        said = shell(
            "train", "run", RUNS / f"train_{method}_demo.toml",
            f"data.artifacts={tmp_path / 'bare'}", f"run.out={tmp_path / method}", *SMALL,
        )  # fmt: skip
        assert said.code == 2
        assert match in said.err
    for bad, match in (
        ("drafter.method=recap", "no such name"),
        ("drafter.options.blocks=2", "no such name"),
        ("run.outt=x", "Did you mean 'run.out'"),
    ):
        assert match in shell.refused("train", "run", RUNS / "train_fovea_demo.toml",
                                      f"data.artifacts={artifacts}", *SMALL, bad)  # fmt: skip


def test_the_runs_for_the_demo_are_valid() -> None:
    for method in ("fovea", "eagle3", "msd", "dream", "vispec"):
        config = load_config(TrainConfig, RUNS / f"train_{method}_demo.toml")
        assert config.drafter.method == method
        assert config.run.out == Path(f"drafters/{method}-demo")
        assert (
            config.data.artifacts
            == load_config(CaptureConfig, RUNS / "capture_demo.toml").store.out
        )


@pytest.mark.parametrize("kind", [CaptureConfig, TrainConfig])
def test_every_key_is_explained(kind: type) -> None:
    text = (RUNS.parent / "docs" / "train.md").read_text()
    for table, hint in get_type_hints(kind).items():
        for each in fields(hint):
            assert f"{table}.{each.name}`" in text or f"`{each.name}`" in text, (table, each.name)
