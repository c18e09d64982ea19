"""The trainer on states of the demo model: it learns, resumes, shares work, and refuses."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyespan.errors import ConfigError, InputError, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import load_target
from eyespan.target.weights import weights_of
from eyespan.testing import packed, tiny_target
from eyespan.train.capture import CaptureConfig, capture
from eyespan.train.config import parse_config
from eyespan.train.conversations import DemoSource, messages_of
from eyespan.train.data import Artifacts, Order, split
from eyespan.train.report import Report
from eyespan.train.schedule import share_of_peak
from eyespan.train.settings import TrainConfig
from eyespan.train.shards import Entry
from eyespan.train.simulate import AcceptLength, accept_length, accepted_path
from eyespan.train.strategies import make_strategy
from eyespan.train.trainer import Outcome, Trainee, train
from eyespan.types import DraftTree
from tests import processes
from tests.toy_head import ToyHead, ToyTrained, load_toy, save_toy, toy_config, toy_head

SILENT = Report(silent=True)
COUNT = 14


@pytest.fixture(scope="module")
def target() -> Any:
    return load_target("demo")


def captured(target: Any, out: Path, *, count: int, regenerate: bool) -> Path:
    tree = {
        "store": {"out": str(out), "dtype": "float32", "mid": False, "layers": []},
        "data": {"count": count},
        "answers": {"regenerate": regenerate, "max_new_tokens": 12, "drafter": "none"},
    }
    assert capture(parse_config(CaptureConfig, tree), target, SILENT).sequences == count
    return out


@pytest.fixture(scope="module")
def folder(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations about the demo's pictures with the generator's answers."""
    return captured(target, tmp_path_factory.mktemp("read"), count=COUNT, regenerate=False)


def artifacts_of(folder: Path, target: Any) -> Artifacts:
    return Artifacts(folder, weights_of(target.model, target.info.name))


def config_of(out: Path, folder: Path, **changes: Any) -> TrainConfig:
    tree: dict[str, Any] = {
        "drafter": {"method": "toy"},
        "data": {"artifacts": str(folder), "validation": 2},
        "optimizer": {"lr": 3e-3},
        "schedule": {"epochs": 2, "batch": 4, "warmup": 2},
        "run": {"out": str(out), "micro_batch": 2, "replay": 2, "device": "cpu"},
    }
    for key, value in changes.items():
        table, _, name = key.partition("__")
        tree[table][name] = value
    return parse_config(TrainConfig, tree)


def trainee_of(target: Any, folder: Path, *, seed: int = 0, noise: float = 0.0) -> Trainee:
    weights = weights_of(target.model, target.info.name)
    artifacts = Artifacts(folder, weights)

    def measure(drafter: Path, entries: Sequence[Entry]) -> AcceptLength:
        sequences = [artifacts.sequence(entry) for entry in entries]
        head = load_toy(drafter, weights)
        return accept_length(ToyTrained(head), sequences, media_ids=target.info.media_ids)

    return Trainee(
        head=toy_head(weights, seed, noise),
        twin=ToyHead(toy_config(weights)),
        save=save_toy,
        measure=measure,
        show=lambda entry: f"{entry.length} tokens",
    )


def run(
    target: Any, folder: Path, out: Path, *, noise: float = 0.0, stop_after: int | None = None,
    **changes: Any,
) -> Outcome:  # fmt: skip
    config = config_of(out, folder, **changes)
    return train(
        config,
        trainee_of(target, folder, noise=noise),
        artifacts_of(folder, target),
        make_strategy("single", precision=config.run.precision, device="cpu"),
        SILENT,
        stop_after=stop_after,
    )


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_A50_a_batch_overfits_to_the_targets_tokens(
    target: Any, folder: Path, tmp_path: Path
) -> None:
    """Fewer than 300 updates to more than 95%: a mask or label off by one would never get there."""
    done = run(
        target, folder, tmp_path, schedule__epochs=90, schedule__batch=4, schedule__warmup=5,
        data__validation=10, optimizer__clip=10.0, optimizer__lr=1e-2, run__evaluate_every=90,
    )  # fmt: skip
    last = [record for record in records(tmp_path) if "loss" in record][-1]
    assert done.updates == 90
    assert last["accuracy"][0] > 0.95
    assert last["loss"] < 0.2 * records(tmp_path)[0]["loss"]


def test_resume_equals_a_straight_run_bit_for_bit(
    target: Any, folder: Path, tmp_path: Path
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run(target, folder, straight, noise=0.1)
    run(target, folder, broken, noise=0.1, stop_after=2)
    with (broken / "log.jsonl").open("a") as log:  # killed later than its last checkpoint
        log.write('{"update": 3, "loss": 1.0}\n{"upda')
    torch.manual_seed(123)  # what happened in between must not matter
    run(target, folder, broken, noise=0.1)
    assert records(broken) == records(straight)
    assert len({record["loss"] for record in records(straight) if "loss" in record}) == 6
    for name in ("state", "last", "best"):
        manifests = [
            json.loads((out / name / "manifest.json").read_text()) for out in (straight, broken)
        ]
        assert manifests[0]["sha256"] == manifests[1]["sha256"]
    again = run(target, folder, broken, noise=0.1)  # a finished run stays finished
    assert again.updates == 6
    assert records(broken) == records(straight)
    with pytest.raises(InputError, match="optimizer is"):
        run(target, folder, broken, optimizer__lr=1e-4)


def test_accumulation_and_padding_change_nothing(target: Any, folder: Path, tmp_path: Path) -> None:
    whole = run(target, folder, tmp_path / "4", run__micro_batch=4)
    parts = run(target, folder, tmp_path / "1", run__micro_batch=1)
    assert whole.loss == pytest.approx(parts.loss, abs=1e-5)
    assert whole.accept_length == parts.accept_length


def test_bfloat16_learns_too(target: Any, folder: Path, tmp_path: Path) -> None:
    exact = run(target, folder, tmp_path / "32")
    coarse = run(target, folder, tmp_path / "16", run__precision="bfloat16")
    assert coarse.loss != exact.loss
    assert coarse.loss == pytest.approx(exact.loss, rel=0.05)


def test_A48_the_replayed_accept_length_is_that_of_decoding(
    target: Any, folder: Path, tmp_path: Path
) -> None:
    own = captured(target, tmp_path / "own", count=3, regenerate=True)
    run(
        target, own, tmp_path / "run", schedule__epochs=60, schedule__batch=3, data__validation=0,
        optimizer__lr=1e-2, optimizer__clip=10.0, run__evaluate_every=60,
    )  # fmt: skip
    artifacts = artifacts_of(own, target)
    drafter = ToyTrained(load_toy(tmp_path / "run" / "best", weights_of(target.model, "demo")))
    engine = Engine(target, drafter, budget="fixed")
    tokens = forwards = 0
    source = DemoSource(seed=4711, count=3)
    for asked in (source[index] for index in range(3)):
        said: list[str] = []
        for turn in range(len(asked.turns)):
            made = engine.generate(
                messages_of(asked, said, turn), list(asked.images), max_new_tokens=12
            )
            said.append(made.text)
            tokens += len(made.token_ids)
            forwards += made.forwards
    replayed = [artifacts.sequence(entry) for entry in artifacts.entries]
    simulated = accept_length(drafter, replayed, media_ids=target.info.media_ids)
    assert simulated.tau > 1.5
    assert (simulated.tokens, simulated.forwards) == (tokens, forwards)
    assert sum(simulated.accepted) >= tokens - forwards  # a guess may also end an answer


def test_accepted_path_follows_the_answer() -> None:
    draft = DraftTree(np.array([5, 6, 7, 8], np.int32), np.array([-1, -1, 1, 1], np.int32))
    tree = packed(draft, root=1)
    tokens = [int(tree.tokens[node]) for node in accepted_path(tree, np.array([6, 8, 9], np.int32))]
    assert tokens == [6, 8]
    assert accepted_path(tree, np.array([9], np.int32)).size == 0
    assert accepted_path(tree, np.array([], np.int32)).size == 0


def test_every_epoch_takes_every_sequence_once() -> None:
    entries = [
        Entry(id=str(i), length=i % 7, supervised=1, visual=i % 2, shard=0, place=i)
        for i in range(20)
    ]
    order = Order(entries, batch=4, seed=1)
    first = [entry.place for number in range(5) for entry in order.update(number)]
    second = [entry.place for number in range(5, 10) for entry in order.update(number)]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    fresh = Order(entries, batch=4, seed=1)
    assert [entry.place for entry in fresh.update(7)] == second[8:12]
    mixed = order.mixed(3, 0.25)
    assert [bool(entry.visual) for entry in mixed].count(True) == 1
    kept, apart = split(entries, 5)
    assert [entry.place for entry in apart] == [0, 4, 8, 12, 16]
    assert len(kept) == 15


def test_rates_of_both_warm_ups() -> None:
    for shape in ("linear", "logarithmic"):
        rates = [share_of_peak(i, warmup=9, total=29, shape=shape) for i in range(30)]
        assert rates[9] == max(rates) == 1.0
        assert rates[29] == 0.0
        assert all(a < b for a, b in pairwise(rates[:10]))
        np.testing.assert_allclose(rates[9:], np.linspace(1, 0, 21))
    assert share_of_peak(4, warmup=9, total=29, shape="linear") == pytest.approx(0.5)
    assert share_of_peak(8, warmup=98, total=99, shape="logarithmic") == pytest.approx(0.5)
    assert share_of_peak(0, warmup=0, total=4, shape="linear") == 1.0


def test_A50_what_cannot_learn_is_refused(target: Any, folder: Path, tmp_path: Path) -> None:
    for match, changes in (
        ("warm-up that ends", {"schedule__warmup": 6}),
        ("at least one batch", {"schedule__batch": 13}),
        ("at least 1", {"schedule__epochs": 0}),
        ("more than 0", {"optimizer__lr": 0.0}),
        ("Did you mean 'float32'", {"run__precision": "float3"}),
    ):
        with pytest.raises(ConfigError, match=match):
            run(target, folder, tmp_path, **changes)
    with pytest.raises(InputError, match="no sequence"):
        run(target, folder, tmp_path, data__validation=COUNT)
    assert not list(tmp_path.iterdir())


def test_A49_a_loss_that_is_not_finite_stops_and_names_its_sequences(
    target: Any, folder: Path, tmp_path: Path
) -> None:
    trainee = trainee_of(target, folder)
    with torch.no_grad():
        trainee.head.fc.bias.fill_(math.nan)  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"train-4711-\d+.*finite"):
        train(
            config_of(tmp_path, folder),
            trainee,
            artifacts_of(folder, target),
            make_strategy("single", precision="float32", device="cpu"),
            SILENT,
        )


def test_another_targets_artifacts_are_refused(target: Any, folder: Path) -> None:
    with pytest.raises(UnsupportedTarget, match="hidden_size is 64; 256 of 'demo'"):
        artifacts_of(folder, tiny_target("llava"))
    weights = weights_of(target.model, "demo")
    with pytest.raises(UnsupportedTarget, match="a weight of its head"):
        Artifacts(folder, replace(weights, lm_head=weights.lm_head + 0.1))


def test_A50_start_up_says_what_is_trained(
    target: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, folder)
    train(
        config,
        trainee_of(target, folder),
        artifacts_of(folder, target),
        make_strategy("auto", precision="float32", device="cpu"),
        Report(),
    )
    said = capsys.readouterr().err
    assert "12 sequences" in said
    assert "tokens taught (" in said
    assert "6 updates (2 epochs of 3), of which 2 warm up" in said
    assert "train-4711-" in said
    assert "(replayed)" in said


def test_processes_that_would_each_train_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="train alone"):
        make_strategy("single", precision="float32", device="cpu")


@pytest.mark.parametrize(
    "name",
    [
        "fsdp2",
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param(
            "deepspeed",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(find_spec("deepspeed") is None, reason="is not installed"),
            ],
        ),
    ],
)
def test_two_processes_give_the_loss_of_one(
    name: str, target: Any, folder: Path, tmp_path: Path
) -> None:
    """Two updates alone, two in two processes, two alone again: as six alone."""
    alone = run(target, folder, tmp_path / "alone", noise=0.1)
    shared = tmp_path / "shared"
    run(target, folder, shared, noise=0.1, stop_after=2)
    # By address: a machine need not be able to look up its own name.
    here = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", *here]
    processes.finished(
        [*command, "-m", "tests.train_worker", name, str(folder), str(shared)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "DS_ACCELERATOR": "cpu",
            **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
        },
        cwd=Path(__file__).parents[2],
    )
    losses = [record["loss"] for record in records(shared) if "loss" in record]
    wanted = [record["loss"] for record in records(tmp_path / "alone") if "loss" in record]
    assert len(losses) == 4
    np.testing.assert_allclose(losses, wanted[:4], atol=1e-5)
    resumed = run(target, folder, shared, noise=0.1)
    assert resumed.updates == 6
    assert resumed.loss == pytest.approx(alone.loss, abs=1e-5)
    assert isinstance(resumed.accept_length, float)
    assert resumed.accept_length == alone.accept_length
