"""Whole runs: orders, boundaries, a run that was killed, and real models with pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eyespan.bench.between import between
from eyespan.bench.builders import main
from eyespan.bench.compare import NEAR_TIE
from eyespan.bench.datasets import Chosen, Selection
from eyespan.bench.execute import execute
from eyespan.bench.live import Board
from eyespan.bench.records import COMPILED, NOISE, PLAIN, STOCK, Done, Run, Store, read_runs
from eyespan.bench.schedule import segments
from eyespan.bench.settings import Comparison, Method, Settings
from eyespan.bench.sides import contestants_of
from eyespan.bench.tables import Results, Table
from eyespan.drafters.base import parameters_of
from eyespan.errors import ConfigError, InputError
from eyespan.testing import tiny_images, tiny_target
from tests.fake_bench import FakeClock, FakeTarget

TABLES = (
    "overview", "recap_figure3", "recap_table1", "recap_table2", "recap_table3", "recap_table4",
    "recap_table7", "recap_table8", "recap_table9", "recap_table10", "recap_table12",
    "recap_table13", "recap_table15", "recap_table18",
)  # fmt: skip


def questions(folder: Path, *lines: Any) -> str:
    """A user's folder as the name of a set."""
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(tiny_images(2)):
        picture.save(folder / f"{number}.png")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "questions.jsonl").write_text(text)
    return f"folder:{folder}"


def board() -> Board:
    return Board(Console(file=open("/dev/null", "w")), "test")


def tables_of(folder: Path) -> dict[str, Table]:
    return {table.id: table for table in Results.read(folder).tables}


def selection(name: str, count: int) -> Selection:
    chosen = tuple(Chosen(row, f"{name}{row}") for row in range(count))
    return Selection(name, 17, chosen, ())


SETS = {"a": selection("a", 3), "b": selection("b", 2)}


def ids(items: Sequence[Any]) -> list[str]:
    return [item.chosen.id for item in items]


def test_memories_end_with_a_set_or_only_a_task_does() -> None:
    settings = Settings(datasets=("demo",), seeds=(1, 2))
    found = list(segments(settings, SETS))
    assert [{item.dataset for item in one} for one in found] == [{"a"}, {"b"}, {"a"}, {"b"}]
    assert sorted(ids(found[0])) == sorted(ids(found[2])) == ["a0", "a1", "a2"]
    assert not any(item.new_task for one in found for item in one)
    found = list(segments(replace(settings, boundary="task"), SETS))
    assert [[item.dataset for item in one] for one in found] == [list("aaabb")] * 2
    assert [item.new_task for item in found[0]] == [False, False, False, True, False]


def test_alternating_streams_switch_tasks_at_every_input_and_keep_each_sets_order() -> None:
    both = Settings(seeds=(5,), schedules=("blocked", "alternating"), boundary="task")
    blocked, mixed = segments(both, SETS)
    assert [item.dataset for item in mixed] == list("ababa")
    assert [item.new_task for item in mixed] == [False, True, True, True, True]
    for name in "ab":
        order = [item.chosen.id for item in blocked if item.dataset == name]
        assert [item.chosen.id for item in mixed if item.dataset == name] == order
    assert {item.stream for item in blocked} == {"blocked/5"}


def test_orders_depend_on_the_seed() -> None:
    sets = {"a": selection("a", 9)}
    orders = [ids(next(iter(segments(Settings(seeds=(seed,)), sets)))) for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]


def fake_settings(tmp_path: Path, **more: Any) -> Settings:
    """Two sets of text, one with a conversation; a method that remembers."""
    one = questions(tmp_path / "one", *({"question": "q" * (at + 3)} for at in range(3)))
    two = questions(tmp_path / "two", {"turns": ["hello", "and then"]}, {"question": "again"})
    methods = (
        Method(label="m", drafter="scripted", options={"remembers": True}),
        Method(label="n", drafter="scripted", options={"steps": [1]}),
    )
    compare = (Comparison(label="m on n", method="m", over="n", section="parts"),)
    options = {
        "datasets": (one, two), "methods": methods, "compare": compare, "tables": TABLES,
        "max_new_tokens": 15, "repeats": 2, "seeds": (3, 4), "boundary": "task", "warm_up": 1,
        "resamples": 50, **more,
    }  # fmt: skip
    return Settings(**options)


def run_fake(settings: Settings, folder: Path) -> int:
    return execute(settings, folder, lambda said: FakeTarget(clock=clock), board())


clock = FakeClock()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    clock.now = 0.0
    clock.install(monkeypatch)


@pytest.mark.usefixtures("fake")
def test_A53_repeated_inputs_are_said_wherever_the_numbers_are(tmp_path: Path) -> None:
    """What recalls an earlier answer is fast on a set that asks the same thing again."""
    for name, asked, said in (
        ("again", ("abc", "cab", "abc", "abc"), "2 of 4 inputs repeat an earlier one"),
        ("new", ("abc", "cab", "bca", "aaa"), None),
    ):
        one = questions(tmp_path / name, *({"question": each} for each in asked))
        shown = io.StringIO()
        execute(
            fake_settings(tmp_path, datasets=(one,)),
            tmp_path / f"run {name}",
            lambda said: FakeTarget(clock=clock),
            Board(Console(file=shown, width=200), "test"),
        )
        tables = (tmp_path / f"run {name}" / "tables.md").read_text()
        assert ("repeat an earlier" in shown.getvalue()) == ("repeat an earlier" in tables)
        assert said is None or said in tables
        assert ("repeat an earlier" in tables) == bool(said)


class Killed(BaseException):
    """As sudden as kill -9 for everything that runs here."""


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("boundary", ["task", "reset"])
def test_a_run_killed_anywhere_ends_in_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: Any
) -> None:
    settings = fake_settings(tmp_path, boundary=boundary, repeats=1)
    assert run_fake(settings, tmp_path / "whole") == 0
    whole = {
        name: (tmp_path / "whole" / name).read_bytes() for name in ("tables.json", "figures.json")
    }
    made = {one.id.removesuffix("_online") for one in Results.read(tmp_path / "whole").tables}
    assert made >= set(TABLES)
    records = (tmp_path / "whole" / "records.jsonl").read_bytes()

    append, written = Store.append, 0

    def killed(store: Store, runs: Sequence[Run], done: Done) -> None:
        """Write an input and half of the next one, then die."""
        nonlocal written
        append(store, runs, done)
        written += 1
        if written % 3:
            store._out.write(b'{"type":"run","stre')
            store._out.flush()
            raise Killed

    monkeypatch.setattr(Store, "append", killed)
    deaths = 0
    while True:
        try:
            assert run_fake(settings, tmp_path / "cut") == 0
            break
        except Killed:
            deaths += 1
    assert deaths >= 5
    for name, content in whole.items():
        assert (tmp_path / "cut" / name).read_bytes() == content
    assert (tmp_path / "cut" / "records.jsonl").read_bytes() == records


@pytest.mark.usefixtures("fake")
def test_a_finished_run_is_shown_again_without_a_model(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path)
    run_fake(settings, tmp_path / "run")
    first = (tmp_path / "run" / "tables.json").read_bytes()

    def never(said: Settings) -> Any:
        raise AssertionError("a model is loaded")

    assert execute(settings, tmp_path / "run", never, board()) == 0
    assert (tmp_path / "run" / "tables.json").read_bytes() == first
    other = replace(settings, tables=("recap_table1",), title="other")
    assert execute(other, tmp_path / "run", never, board()) == 0, "only what was measured counts"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["max_new_tokens"] == 15
    assert manifest["seeds"] == [3, 4]
    assert manifest["earlier"] == []
    with pytest.raises(ConfigError, match="another max_new_tokens"):
        execute(replace(settings, max_new_tokens=9), tmp_path / "run", never, board())


@pytest.mark.usefixtures("fake")
def test_tables_hold_what_the_records_say(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, seeds=(3,))
    run_fake(settings, tmp_path / "run")
    tables = tables_of(tmp_path / "run")
    runs = read_runs(tmp_path / "run")
    for table in tables.values():
        assert all(len(row) == len(table.columns) for row in table.rows), table.id
        assert table.caption
    summary = {row[0]: dict(zip(tables["summary"].columns, row, strict=True))
               for row in tables["summary"].rows}  # fmt: skip
    assert list(summary) == ["m", "n", NOISE]
    assert summary["n"]["tau"] == 2.0
    assert summary["n"]["outputs"] == "equal"
    assert summary[NOISE]["S"] == 1.0
    assert summary["m"]["S"] > summary["n"]["S"] > 1.0
    assert tables["recap_table1"].caption.startswith("Highest S: m (")
    assert main.leaders([("a", 1.0, 3.0), ("b", 2.0, None)], ["x"], 0) == "Highest S: b (x)."
    assert main.leaders([("a", 1.0, 3.0), ("b", 2.0, None)], ["x"], 1) == "Highest tau: a (x)."
    assert main.leaders([("a", None, None)], ["x"], 0) == ""
    (gain,) = tables["recap_table4"].rows
    assert gain[:2] == ("parts", "m on n")
    assert gain[2] > 0
    assert gain[7] == 5, "inputs, not turns"
    by_set = tables["recap_figure3"].rows
    assert [row[5] for row in by_set] == [3, 2], "the same inputs, set by set"
    assert all(row[3] <= row[2] <= row[4] for row in by_set)
    by_set = tables["recap_table7_online"].rows
    assert [(row[0], row[7]) for row in by_set] == [("m on n", 3), ("m on n", 2)]
    assert all(row[6] > row[5] == 2.0 for row in by_set), "tau over and with"
    counts = {row[0]: row[1] for row in tables["lossless"].rows}
    assert counts == {"m": 12, "n": 12, NOISE: 12, PLAIN: 12}, "six turns, two repeats"
    assert len([run for run in runs if run.method == "m"]) == 12


@pytest.mark.usefixtures("fake")
def test_plain_and_the_fastest_of_many_methods_are_drawn(tmp_path: Path) -> None:
    methods = tuple(
        Method(label=f"m{at}", drafter="scripted", options={"steps": [at]}) for at in range(8)
    )
    settings = fake_settings(
        tmp_path, seeds=(3,), repeats=1, methods=methods, compare=(), pairing="round",
        tables=("recap_table15",),
    )  # fmt: skip
    assert run_fake(settings, tmp_path / "run") == 0
    found = Results.read(tmp_path / "run")
    rows = [row[0] for row in tables_of(tmp_path / "run")["recap_table15"].rows]
    assert rows == [PLAIN, *(one.label for one in methods)]
    (figure,) = [one for one in found.figures if one.id == "recap_figure6"]
    drawn = [one.name for one in figure.series]
    assert drawn[0] == PLAIN
    assert set(drawn[1:]) == {"m3", "m4", "m5", "m6", "m7"}


@pytest.mark.usefixtures("fake")
def test_later_turns_are_asked_with_the_models_own_answers(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, seeds=(3,))
    run_fake(settings, tmp_path / "run")
    lines = [json.loads(raw) for raw in (tmp_path / "run" / "records.jsonl").open()]
    (talk,) = [line for line in lines if line["type"] == "input" and len(line["answers"]) == 2]
    prompt = FakeTarget(clock=FakeClock()).prepare(
        [{"content": "hello"}, {"content": talk["answers"][0]}, {"content": "and then"}]
    )
    target = FakeTarget(clock=FakeClock())
    assert target.decode(target.plain(prompt.ids.tolist(), 15)) == talk["answers"][1]


@pytest.mark.usefixtures("fake")
def test_failures_are_recorded_the_rest_goes_on_and_the_exit_code_says_so(tmp_path: Path) -> None:
    one = questions(
        tmp_path / "bad", {"question": "fine"}, {"question": "gone", "images": ["x.png"]}
    )
    settings = fake_settings(tmp_path, datasets=(one,), seeds=(3,))
    assert run_fake(settings, tmp_path / "run") == 1
    runs = read_runs(tmp_path / "run")
    (bad,) = [run for run in runs if run.status == "error"]
    assert (bad.input, bad.method) == ("row 1", PLAIN)
    assert bad.error is not None
    assert "x.png" in bad.error
    assert {run.input for run in runs if run.status == "equal"} == {"1"}
    assert "x.png" in str(tables_of(tmp_path / "run")["lossless"].rows)


@pytest.mark.usefixtures("fake")
def test_two_runs_side_by_side(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, seeds=(3,), tables=())
    run_fake(settings, tmp_path / "a")
    better = tuple(replace(one, options={"steps": [3]}) for one in settings.methods)
    run_fake(replace(settings, methods=better), tmp_path / "b")
    rows = {row[0]: row for row in between(tmp_path / "a", tmp_path / "b").rows}
    label, units, before, after, change, low, high, tau_before, tau_after = rows["n"]
    assert (label, units, tau_before) == ("n", 12, 2.0)
    assert change == pytest.approx(after - before)
    assert 0 < low <= change <= high
    assert tau_after > tau_before
    assert rows[NOISE][4] == 0.0
    assert "differ in" not in between(tmp_path / "a", tmp_path / "b").caption
    run_fake(replace(settings, max_new_tokens=9, noise=False), tmp_path / "c")
    caption = between(tmp_path / "a", tmp_path / "c").caption
    assert "differ in max_new_tokens (15 in A, 9 in B), noise (true in A, false in B)." in caption
    (tmp_path / "c" / "run.json").write_text("{")
    assert "not known" in between(tmp_path / "a", tmp_path / "c").caption
    Store(tmp_path / "empty").close()
    with pytest.raises(InputError, match="no method"):
        between(tmp_path / "a", tmp_path / "empty")


@pytest.mark.usefixtures("fake")
def test_other_pictures_under_the_same_names_are_not_compared(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, seeds=(3,), tables=(), repeats=1, resamples=1)
    run_fake(settings, tmp_path / "a")
    with Store(tmp_path / "b") as store:
        for run in read_runs(tmp_path / "a"):
            done = Done(stream=run.stream, dataset=run.dataset, input=run.input, answers=())
            store.append([replace(run, image="another")], done)
    with pytest.raises(InputError, match="no method that both measured"):
        between(tmp_path / "a", tmp_path / "b")


def test_a_real_model_with_pictures_and_stock_beside_it(tmp_path: Path) -> None:
    name = questions(
        tmp_path / "set",
        {"turns": ["What is this?", "And that?"], "images": ["0.png", "1.png"]},
        {"question": "Hi", "images": ["1.png"]},
    )
    settings = Settings(
        datasets=(name,),
        methods=(Method(label="RECAP", drafter="recap"),),
        tables=("recap_table3",),
        max_new_tokens=12,
        warm_up=1,
    )
    target = tiny_target("llava")
    assert execute(settings, tmp_path / "run", lambda said: target, board()) == 0
    runs = read_runs(tmp_path / "run")
    assert {run.method for run in runs} == {"RECAP", PLAIN, NOISE, STOCK}
    assert {run.status for run in runs} == {"equal"}
    assert {(run.input, run.turn) for run in runs} == {("1", 0), ("1", 1), ("2", 0)}
    recap = [run for run in runs if run.method == "RECAP"]
    assert all(run.state_bytes > 10_000 for run in recap)
    assert all(set(run.seconds) == {"encode", "prefill", "decode", "total"} for run in recap)
    assert all(run.plain_seconds["total"] > 0 and run.plain_tokens == run.tokens for run in recap)
    stock = [run for run in runs if run.method == STOCK]
    assert all(set(run.seconds) == {"total"} and run.forwards == 0 for run in stock)
    assert {run.parameters for run in runs} == {0}
    summary = tables_of(tmp_path / "run")["summary"]
    assert summary.rows[0][summary.columns.index("S over stock")] is not None


@pytest.mark.usefixtures("fake")
def test_where_nothing_can_be_compiled_the_column_is_left_out_and_it_is_said(
    tmp_path: Path,
) -> None:
    settings = fake_settings(tmp_path, seeds=(3,), repeats=1, compiled=True, tables=("overview",))
    assert run_fake(settings, tmp_path / "run") == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["skipped"] == {COMPILED: "not a transformers model"}
    assert COMPILED not in {run.method for run in read_runs(tmp_path / "run")}
    table = tables_of(tmp_path / "run")["overview"]
    assert f"{COMPILED} is left out: not a transformers model" in table.caption
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert "S over compiled" not in table.columns
    assert (rows["n"]["tau"], rows["n"]["equal answers"]) == (2.0, "6 of 6")


@pytest.mark.slow
def test_compiled_plain_decoding_is_a_column(tmp_path: Path) -> None:
    name = questions(tmp_path / "set", {"question": "Hi", "images": ["1.png"]})
    settings = Settings(
        datasets=(name,), methods=(Method(label="RECAP", drafter="recap"),), tables=("overview",),
        max_new_tokens=12, warm_up=0, noise=False, compiled=True,
    )  # fmt: skip
    assert execute(settings, tmp_path / "run", lambda said: tiny_target("llava"), board()) == 0
    (run,) = [run for run in read_runs(tmp_path / "run") if run.method == COMPILED]
    assert (run.status, set(run.seconds)) == ("equal", {"total"})
    table = tables_of(tmp_path / "run")["overview"]
    assert table.rows[0][table.columns.index("S over compiled")] is not None


def test_weights_of_a_draft_model_count_for_those_that_use_it() -> None:
    target = tiny_target("llama")
    small = {"draft_model": target.model}
    methods = (
        Method(label="alone", drafter="draft_model", options=small),
        Method(label="gated", drafter="viskip", options={"wrapped": "draft_model", **small}),
        Method(label="none", drafter="sam"),
    )
    ready = {one.label: one for one in contestants_of(target, methods, 1)[0]}
    weights = sum(one.numel() for one in target.model.parameters())
    found = {label: parameters_of(one.watches[0].drafter) for label, one in ready.items()}
    assert found == {"alone": weights, "gated": weights, "none": 0}


def test_the_root_fallback_that_reads_states_runs(tmp_path: Path) -> None:
    name = questions(tmp_path / "set", {"question": "Hi", "images": ["1.png"]})
    options = {"root_fallback": "semantic", "fusion": "fixed_prior"}
    settings = Settings(
        datasets=(name,), methods=(Method(label="s", drafter="recap", options=options),),
        max_new_tokens=8, stock=False, noise=False, warm_up=0,
    )  # fmt: skip
    target = tiny_target("llava")
    assert execute(settings, tmp_path / "run", lambda said: target, board()) == 0


def test_a_stress_run_needs_no_model(tmp_path: Path) -> None:
    settings = Settings(tables=("recap_table11",), occupancies=(1000, 100_000))
    assert execute(settings, tmp_path, lambda said: None, board()) == 0
    rows = tables_of(tmp_path)["recap_table11"].rows
    assert [row[0] for row in rows] == [1000, 100_000]
    assert all(value > 0 for row in rows for value in row if isinstance(value, float))
    counted, grown = rows[1][1:3]
    assert 0.8 * counted < grown < 2.5 * counted  # growing a table holds the old one for a moment
    assert execute(settings, tmp_path, lambda said: None, board()) == 0
    assert tables_of(tmp_path)["recap_table11"].rows == rows, "not measured twice"


class Terminal(io.StringIO):
    """A stream that somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("fake")
def test_a_watched_run_shows_a_bar_and_every_method_and_a_log_only_lines(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, seeds=(3,), repeats=1, tables=())
    for stream, watched in ((Terminal(), True), (io.StringIO(), False)):
        shown = Board(Console(file=stream, width=100, force_terminal=watched), "name")
        folder = tmp_path / f"run{watched}"
        target = FakeTarget(clock=clock)
        execute(settings, folder, lambda said, target=target: target, shown)  # type: ignore[misc]
        text = stream.getvalue()
        assert "5/5" in text
        assert ("\x1b[" in text) is watched
        assert ("2.00" in text) is watched, "tau of the method that is always one token ahead"


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("tie", "status", "code"), [(1e-4, "DIFFERENT", 1), (99.0, "near tie", 0)])
def test_other_answers_are_told_from_near_ties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tie: float, status: str, code: int
) -> None:
    """A target that says something else to trees: no drafter's fault, and no speed."""
    monkeypatch.setitem(NEAR_TIE, "float32", tie)
    settings = fake_settings(tmp_path, seeds=(3,), repeats=1)
    target = FakeTarget(clock=clock, wavers=True)
    assert execute(settings, tmp_path / "run", lambda said: target, board()) == code
    runs = read_runs(tmp_path / "run")
    assert {run.status for run in runs if run.method in ("m", "n")} == {status}
    assert {run.status for run in runs if run.method == NOISE} == {"equal"}
    summary = {row[0]: row for row in tables_of(tmp_path / "run")["summary"].rows}
    assert (summary["m"][1] is None) is (status == "DIFFERENT")
    assert status in str(summary["m"][-1])
    markdown = (tmp_path / "run" / "tables.md").read_text()
    assert "### Is every answer the plain one?" in markdown
    json.loads((tmp_path / "run" / "tables.json").read_text(), parse_constant=pytest.fail)
    json.loads((tmp_path / "run" / "figures.json").read_text(), parse_constant=pytest.fail)


def test_a_run_without_a_method_that_can_run_is_refused(tmp_path: Path) -> None:
    method = Method(label="T", drafter="not_there", optional=True)
    with pytest.raises(ConfigError, match="T: no such name"):
        execute(Settings(methods=(method,)), tmp_path, lambda said: None, board())
