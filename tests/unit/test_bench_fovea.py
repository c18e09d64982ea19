"""FOVEA's tables, from records that say what must come out, and from a head that really drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from eyespan.bench.builders import Report, build, costs, fovea
from eyespan.bench.execute import execute
from eyespan.bench.live import Board
from eyespan.bench.records import Run, read_runs
from eyespan.bench.settings import Settings, load_settings
from eyespan.bench.tables import Results, Table
from eyespan.drafters import make_drafter
from eyespan.target import HuggingFaceTarget
from eyespan.testing import random_checkpoint, tiny_target
from eyespan.train.config import load_config
from eyespan.train.settings import TrainConfig

RUNS = Path(__file__).parents[2] / "runs"


def run_of(method: str, dataset: str, *, speed: float, accepted: int, repeat: int = 0) -> Run:
    """Ten passes after the prefill; plain decoding takes a second."""
    return Run(
        stream="blocked/17", dataset=dataset, input="i", turn=0, method=method, repeat=repeat,
        category="c", image="p", status="equal", tokens=20, forwards=11, accepted=accepted,
        seconds={"decode": 1 / speed, "total": 1 / speed}, stage_ms={"propose": 40.0},
        plain_tokens=20, plain_seconds={"decode": 1.0, "total": 1.0}, state_bytes=3 << 20,
    )  # fmt: skip


def board() -> Board:
    return Board(Console(quiet=True), "test")


def settings_of(name: str, **more: object) -> Settings:
    said = load_settings(RUNS / f"fovea_{name}.toml")
    return replace(said, datasets=("a", "b"), **more)  # type: ignore[arg-type]


def columns(table: Table) -> dict[str, dict[str, object]]:
    return {str(row[0]): dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.fixture(autouse=True)
def any_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyespan.bench.settings.check_name", lambda name: None)


def test_controls_are_compared_repeat_by_repeat() -> None:
    said = settings_of("table7")
    runs = [
        run_of(method, name, speed=speed + repeat / 10, accepted=10, repeat=repeat)
        for name in "ab"
        for repeat in range(3)
        for method, speed in (("Full FOVEA", 2.0), ("State-only Top-16", 1.5))
    ]
    runs += [
        run_of("Dense Retrieval", name, speed=2.0, accepted=20, repeat=repeat)
        for name in "ab"
        for repeat in range(3)
    ]
    rows = columns(fovea.table7(Report(settings=said, runs=runs)).tables[0])
    assert rows["Full FOVEA"]["Macro change of S"] == "+0.000 ± 0.000"
    assert rows["State-only Top-16"]["a change of S"] == "-0.500 ± 0.000"
    assert rows["Dense Retrieval"]["b change of S"] == "-0.100 ± 0.100"
    assert rows["Dense Retrieval"]["Macro of tau"] == "+1.000 ± 0.000"
    assert rows["Random Top-16"]["a of tau"] is None, "no answers, nothing to tell"


def test_changes_of_tau_are_paired_and_have_intervals_over_pictures() -> None:
    """Pictures differ by far more than methods do; pairing sees the methods."""
    runs = []
    for at in range(8):
        for name, method, more in (("a", "FOVEA", 0), ("a", "without KL", -5), ("b", "FOVEA", 0)):
            run = run_of(method, name, speed=1.0, accepted=10 + 10 * at + more * (1 + at % 2))
            runs.append(replace(run, input=str(at), image=str(at)))
    runs.append(run_of("without KL", "b", speed=1.0, accepted=0))  # no such input in the other
    table = fovea.table2(Report(settings=settings_of("table2"), runs=runs)).tables[2]
    assert [row[:3] for row in table.rows] == [
        ("without KL", "a", pytest.approx(-0.75)),
        ("without KL", "all", pytest.approx(-0.75)),
    ]
    *_, low, high, answers = table.rows[0]
    assert answers == 8
    assert -1.0 <= low < -0.75 < high <= -0.5  # type: ignore[operator]


def test_the_k_sweep_is_told_against_dense() -> None:
    said = settings_of("figure4")
    runs = [
        run_of("Dense", "a", speed=2.0, accepted=10),
        run_of("Dense", "b", speed=1.0, accepted=10),
    ]
    runs += [
        run_of("FOVEA", "a", speed=2.2, accepted=15),
        run_of("FOVEA", "b", speed=1.1, accepted=5),
    ]
    made = fovea.figure4(Report(settings=said, runs=runs))
    row = columns(made.tables[0])["FOVEA"]
    assert [row[f"{where} S %"] for where in ("a", "b", "Macro")] == pytest.approx([10.0] * 3)
    assert [row[f"{where} tau %"] for where in "ab"] == pytest.approx([25.0, -25.0])
    assert row["Macro tau %"] == pytest.approx(0.0)
    speed, tau = made.figures
    assert speed.series[0].name == "FOVEA"
    assert tau.series[0].y == pytest.approx((25.0, -25.0))
    assert len(tau.series) == 1, "methods without answers have no bars"


def test_depth_interfaces_and_variants() -> None:
    said = settings_of("figure6")
    runs = [run_of("root alone", name, speed=speed, accepted=10)
            for name, speed in (("a", 2.0), ("b", 0.5))]  # fmt: skip
    made = fovea.figure6(Report(settings=said, runs=runs))
    assert made.tables[0].rows[0] == ("root alone", 2.0, 1.25, 50.0)
    assert [one.series[0].x for one in made.figures] == [(0,), (0,), (0,)]
    said = settings_of("table3")
    runs = [replace(run, method="Correction") for run in runs]
    row = columns(fovea.table3(Report(settings=said, runs=runs)).tables[0])["Correction"]
    assert (row["draft ms"], row["extra MiB"], row["tau"]) == (4.0, 3.0, 2.0)
    assert not any("GPU" in name for name in row), "no GPU, no column"
    seen = [replace(run, peak_bytes=9 << 20, plain_peak_bytes=7 << 20) for run in runs]
    row = columns(fovea.table3(Report(settings=said, runs=seen)).tables[0])["Correction"]
    assert row["GPU peak over plain MiB"] == 2.0
    (budgets,) = costs.table10(Report(settings=said, runs=seen)).tables
    assert columns(budgets)["Correction"]["GPU GiB"] == (9 << 20) / (1 << 30)
    said = settings_of("table2")
    runs = [replace(run, method="FOVEA") for run in runs]
    runs += [run_of("without KL", name, speed=1.0, accepted=5) for name in "ab"]
    values, losses, _ = fovea.table2(Report(settings=said, runs=runs)).tables
    assert columns(values)["FOVEA"]["Average S"] == 1.25
    (row,) = (one for one in losses.rows if one[1] == "without KL")
    assert row == ("Objectives", "without KL", pytest.approx(-20.0), pytest.approx(-25.0))


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table7", "figure4", "figure6"])
def test_a_run_without_answers_is_still_a_table(name: str) -> None:
    made = build(Report(settings=settings_of(name)))
    for table in made.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_every_variant_of_table_2_can_be_trained() -> None:
    said = load_settings(RUNS / "fovea_table2.toml")
    folders = {str(one.options["checkpoint"]) for one in said.methods}
    whole = load_config(TrainConfig, RUNS / "fovea_table2" / "whole.toml")
    trained = set()
    for file in sorted((RUNS / "fovea_table2").glob("*.toml")):
        config = load_config(TrainConfig, file)
        trained.add(str(config.run.out))
        assert len(config.drafter.options) == (file.stem != "whole"), "one change each"
        assert (config.data, config.optimizer, config.schedule) == (
            whole.data, whole.optimizer, whole.schedule,
        )  # fmt: skip
    assert trained == folders


def test_a_head_goes_through_every_setting(tmp_path: Path) -> None:
    """All decoding-time options of all runs, on a real model with a random head."""
    target: HuggingFaceTarget = tiny_target("llava")
    folder = random_checkpoint("fovea", target.weights(), tmp_path / "head")
    methods = {}
    for name in ("table3", "table7", "figure4", "figure6"):
        said = load_settings(RUNS / f"fovea_{name}.toml")
        for one in said.methods:
            methods[one.label] = replace(one, options={**one.options, "checkpoint": folder})
    settings = Settings(
        tables=("fovea_table3",), datasets=("demo:scene",), max_inputs=1, max_new_tokens=8,
        warm_up=0, pairing="round", noise=False, stock=False, methods=tuple(methods.values()),
    )  # fmt: skip
    assert execute(settings, tmp_path / "run", lambda said: target, board()) == 0
    runs = [run for run in read_runs(tmp_path / "run") if run.method in methods]
    assert {run.method for run in runs} == set(methods)
    assert all(run.status == "equal" and run.drafted and run.state_bytes > 0 for run in runs)
    head = make_drafter("fovea", vocab_size=target.info.vocab_size, checkpoint=folder).head
    assert {run.parameters for run in runs} == {sum(one.numel() for one in head.parameters())}
    table = next(one for one in Results.read(tmp_path / "run").tables if one.id == "fovea_table3")
    held = {str(row[0]): float(str(row[2])) for row in table.rows}
    assert held["Correction"] < held["Correction + rebuild"], "inputs are kept there"
