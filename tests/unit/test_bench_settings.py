"""Run files: typed, whole, refused in one sentence; those that ship are all valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyespan.bench.builders import BUILDERS, kind_of
from eyespan.bench.settings import Method, Settings, load_settings, usable_methods
from eyespan.drafters import TRAINED, make_drafter
from eyespan.errors import ConfigError, InputError
from eyespan.train.config import load_config
from eyespan.train.settings import TrainConfig

FOLDER = Path(__file__).parents[2] / "runs"
RUNS = sorted(file for file in FOLDER.glob("*.toml") if "\ntables = " in file.read_text())
LEARNT = {*TRAINED, "hybrid"}


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.stem)
@pytest.mark.parametrize("preset", [None, "paper"])
def test_every_run_that_ships_is_valid(file: Path, preset: str | None) -> None:
    if preset and "presets" not in file.read_text() and "base" not in file.read_text():
        pytest.skip("needs no model")
    settings = load_settings(file, [f"preset={preset}"] if preset else [])
    assert settings.tables
    assert set(settings.tables) <= set(BUILDERS)
    assert file.stem in settings.tables or not file.stem.startswith(("recap", "fovea"))
    kind_of(settings.tables)
    for method in settings.methods:
        assert method.drafter in LEARNT or not method.optional
        # A mistake in an optional method's options would leave it out without a word of this test.
        options = {key: value for key, value in method.options.items() if key != "checkpoint"}
        make_drafter(method.drafter, vocab_size=64, **options)


def test_trained_drafters_run_where_their_training_files_put_them() -> None:
    """A comparison finds the heads that runs/train_*_demo.toml make, without a word more."""
    made = {
        config.drafter.method: str(config.run.out)
        for config in (load_config(TrainConfig, file) for file in FOLDER.glob("train_*_demo.toml"))
    }
    made["fovea"] = made["hybrid"] = "demo"  # comes along
    for name in ("recap_table3", "fovea_table1", "overview"):
        learnt = [m for m in load_settings(FOLDER / f"{name}.toml").methods if m.optional]
        assert {one.drafter for one in learnt} >= set(TRAINED), name
        for one in learnt:
            assert one.options["checkpoint"] == made[one.drafter], (name, one.label)


def test_every_builder_has_a_run() -> None:
    assert {table for file in RUNS for table in load_settings(file).tables} == set(BUILDERS)


def test_methods_of_a_run_differ() -> None:
    for file in RUNS:
        made = [
            (one.drafter, repr(sorted(one.options.items())), one.budget)
            for one in load_settings(file).methods
        ]
        assert len(set(made)) == len(made), file.name


RUN = """
tables = ["recap_table1"]
datasets = ["demo"]
[presets.big]
model = "some/model"
max_inputs = 99
[[methods]]
label = "A"
drafter = "recap"
options = { orders = "U" }
[[methods]]
label = "B"
drafter = "none"
budget = 0
[[compare]]
label = "A on B"
method = "A"
over = "B"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


def test_a_file_becomes_settings(file: Path) -> None:
    settings = load_settings(file)
    assert settings.methods[0] == Method(label="A", drafter="recap", options={"orders": "U"})
    assert settings.methods[1].budget == 0
    assert settings.model == "demo"
    assert settings.compare[0].over == "B"


def test_settings_on_the_command_line_come_last(file: Path) -> None:
    settings = load_settings(
        file, ["max_inputs=3", "preset=big", "datasets=chartqa,demo:scene", "stock=false",
               "seeds=[1, 2]", "device=cpu"],
    )  # fmt: skip
    assert (settings.model, settings.max_inputs) == ("some/model", 3)
    assert settings.datasets == ("chartqa", "demo:scene")
    assert settings.seeds == (1, 2)
    assert settings.stock is False
    assert settings.device == "cpu"


def test_some_of_the_methods(file: Path) -> None:
    settings = load_settings(file, ["methods=B"])
    assert [one.label for one in settings.methods] == ["B"]
    assert settings.compare == ()
    assert [one.label for one in load_settings(file, ["methods=B,A"]).methods] == ["B", "A"]


def test_weights_are_named_once_for_all_methods(file: Path) -> None:
    text = RUN.replace('drafter = "recap"\noptions = { orders = "U" }', 'drafter = "fovea"')
    file.write_text(
        text
        + '[[methods]]\nlabel = "C"\ndrafter = "fovea"\noptions = { checkpoint = "own" }\n'
        + '[checkpoints]\nfovea = "here"\n[presets.big.checkpoints]\nfovea = "there"\n'
    )

    def found(settings: Settings) -> list[object]:
        return [one.options.get("checkpoint") for one in settings.methods]

    assert found(load_settings(file)) == ["here", None, "own"]
    assert found(load_settings(file, ["preset=big"])) == ["there", None, "own"]
    assert found(load_settings(file, ['checkpoints={fovea = "x"}'])) == ["x", None, "own"]
    with pytest.raises(ConfigError, match="fovaa"):
        load_settings(file, ['checkpoints={fovaa = "x"}'])
    with pytest.raises(ConfigError, match=r"checkpoints\.fovea"):
        load_settings(file, ["checkpoints={fovea = 1}"])


def test_a_base_gives_what_is_not_said(file: Path) -> None:
    top = file.parent / "top.toml"
    top.write_text('base = "run.toml"\nmax_inputs = 5\n[presets.big]\nmax_inputs = 7\n')
    assert load_settings(top).max_inputs == 5
    assert load_settings(top).methods == load_settings(file).methods
    assert load_settings(top, ["preset=big"]).max_inputs == 7
    assert load_settings(top, ["preset=big"]).model == "some/model"
    top.write_text('base = "top.toml"\n')
    with pytest.raises(ConfigError, match="base"):
        load_settings(top)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("tables", "tabels"), "did you mean 'tables'"),
        (('label = "A"', 'lable = "A"'), "lable"),
        (('drafter = "none"', 'drafter = "none"\nspeed = 1'), "speed"),
        (('["demo"]', '["dmeo"]'), "did you mean 'demo'"),
        (('["demo"]', '["demo", "demo"]'), "different"),
        (('["demo"]', "[3]"), "datasets"),
        (('over = "B"', 'over = "C"'), "C"),
        (('label = "A"', 'label = "plain"'), "plain"),
        (('label = "A"', 'label = "A,B"'), "commas"),
        (('label = "B"', 'label = "A"'), "name of its own"),
        (("budget = 0", 'budget = "much"'), "budget"),
        (('options = { orders = "U" }', 'options = "U"'), "options.*must be a table"),
        (('label = "A"', "label = 3"), "label.*must be text"),
        (('tables = ["recap_table1"]', "max_inputs = 0"), "max_inputs"),
        (('tables = ["recap_table1"]', "max_inputs = true"), "max_inputs"),
        (('tables = ["recap_table1"]', 'pairing = "never"'), "pairing"),
        (('tables = ["recap_table1"]', 'schedules = ["sorted"]'), "sorted"),
        (('tables = ["recap_table1"]', 'schedules = ["alternating"]'), "boundary"),
        (('tables = ["recap_table1"]', "stock = 1"), "stock"),
        (('tables = ["recap_table1"]', "model = 3"), "model"),
        (('tables = ["recap_table1"]', "seeds = []"), "seeds"),
        (('["demo"]', "[]"), "datasets.*something in it"),
        (('tables = ["recap_table1"]', "occupancies = [0]"), "occupancies.*from 1"),
        (('tables = ["recap_table1"]', "occupancies = []"), "occupancies"),
    ],
)
def test_mistakes_are_refused(file: Path, change: tuple[str, str], said: str) -> None:
    file.write_text(RUN.replace(*change))
    with pytest.raises(ConfigError, match=f"(?i){said}"):
        load_settings(file)


@pytest.mark.parametrize("pair", ["max_inputs", "=3", "speed=1", "preset=huge", "methods=C",
                                  "tables=recap_table2"])  # fmt: skip
def test_bad_pairs_are_refused(file: Path, pair: str) -> None:
    with pytest.raises(ConfigError):
        load_settings(file, [pair])


def test_methods_must_be_tables(file: Path) -> None:
    file.write_text("methods = 3")
    with pytest.raises(ConfigError, match="methods"):
        load_settings(file)


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("tables = [")
    for name in ("run.toml", "missing.toml"):
        with pytest.raises(InputError):
            load_settings(tmp_path / name)


def test_optional_methods_are_left_out_with_a_reason_and_others_are_refused() -> None:
    trained = Method(label="T", drafter="not_there", optional=True)
    broken = Method(label="O", drafter="recap", options={"width": 99}, optional=True)
    fine = Method(label="R", drafter="recap")
    usable, skipped = usable_methods(Settings(methods=(trained, broken, fine)))
    assert usable == (fine,)
    assert set(skipped) == {"T", "O"}
    assert "no such name" in skipped["T"]
    with pytest.raises(ConfigError, match="not_there"):
        usable_methods(Settings(methods=(Method(label="T", drafter="not_there"),)))


def test_tables_of_different_runs_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="different runs"):
        kind_of(("recap_table1", "recap_table11"))
    with pytest.raises(ConfigError, match="recap_tabel1"):
        kind_of(("recap_tabel1",))
