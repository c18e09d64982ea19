"""`eyespan bench` as a shell sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyespan.bench.records import Store, read_runs
from eyespan.bench.tables import Results
from tests.cli import Shell
from tests.unit.test_bench_records import room_for

RUN = """
tables = ["recap_table18"]
datasets = ["folder:{questions}"]
model = "{model}"
max_new_tokens = 6
warm_up = 1
noise = false
[presets.short]
max_new_tokens = 2
[[methods]]
label = "RECAP"
drafter = "recap"
[[methods]]
label = "DREAM"
drafter = "not_trained_here"
optional = true
"""


@pytest.fixture
def run(tiny_folder: Path, pictures: Path) -> Path:
    """A run file over two questions about pictures."""
    lines = [{"images": [f"{at}.png"], "question": "What?"} for at in range(2)]
    (pictures / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    file = pictures / "quick.toml"
    file.write_text(RUN.format(questions=pictures, model=tiny_folder))
    return file


def test_ctrl_c_says_that_the_same_command_goes_on(
    shell: Shell, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Store.append

    def interrupted(self: Store, *args: Any, **more: Any) -> Any:
        append(self, *args, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", interrupted)
        done = shell("bench", "run", run, "--out", tmp_path / "out")
    assert done.code == 130
    assert done.err.rstrip().endswith("interrupted; the same command goes on from here")
    assert shell("bench", "run", run, "--out", tmp_path / "out").code == 0
    whole = shell("bench", "run", run, "--out", tmp_path / "whole")
    assert whole.code == 0


def test_a_run_ends_in_tables_and_is_continued_and_compared(
    shell: Shell, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = shell("bench", "run", run, "--out", out)
    assert done.code == 0, done.err
    assert "Paired ratios over inputs" in done.out
    assert "RECAP" in done.out
    assert "DREAM is left out: no such name" in done.out
    assert "2/2 inputs" in done.err
    files = {file.name for file in out.iterdir()}
    assert {"records.jsonl", "tables.json", "figures.json", "manifest.json", "inputs"} <= files
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["skipped"]["DREAM"].startswith("no such name")
    again = shell("bench", "run", run, "--out", out)
    assert (again.code, again.out) == (0, done.out)
    compared = shell("bench", "compare", out, out)
    assert compared.code == 0
    assert "B - A" in compared.out
    assert "another max_new_tokens" in shell.refused(
        "bench", "run", run, "preset=short", "--out", out
    )


def test_several_files_have_a_folder_each(shell: Shell, run: Path, tmp_path: Path) -> None:
    other = run.with_name("other.toml")
    other.write_text('base = "quick.toml"\nmax_inputs = 1\n')
    done = shell("bench", "run", run, other, "preset=short", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    for name in ("quick", "other"):
        assert (tmp_path / "out" / name / "tables.json").exists()
    ids = [table.id for table in Results.read(tmp_path / "out").tables]
    assert len(set(ids)) == len(ids) - 1, "both made Table 18"
    assert {"quick_summary", "other_summary", "quick_lossless"} <= set(ids)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert set(manifest["runs"]) == {"quick", "other"}


def test_mistakes_are_refused_before_a_model_is_loaded(
    shell: Shell, run: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")
    assert "no run file" in shell.refused("bench", "run", "max_inputs=3", *out)
    assert "missing.toml" in shell.refused("bench", "run", tmp_path / "missing.toml", *out)
    assert "speed" in shell.refused("bench", "run", run, "speed=3", *out)
    assert "preset" in shell.refused("bench", "run", run, "preset=huge", *out)
    assert "folder" in shell.refused("bench", "run", run, "datasets=folder:/nowhere", *out)
    assert "Did you mean 'demo'" in shell.refused("bench", "run", run, "datasets=dmeo", *out)
    assert not (tmp_path / "out" / "records.jsonl").stat().st_size
    bad = run.with_name("bad.toml")
    bad.write_text(RUN.replace('"recap"', '"recpa"'))
    assert "Did you mean 'recap'" in shell.refused("bench", "run", run, bad, *out)
    bad.write_text('tables = ["recap_table1"]')
    assert "without methods" in shell.refused("bench", "run", bad, *out)
    bad.write_text('tables = ["recap_tabel1"]')
    assert "recap_table1" in shell.refused("bench", "run", bad, *out)
    with Store(tmp_path / "out"):
        assert "another run is writing" in shell.refused("bench", "run", run, *out)
    assert "results in" in shell.refused("bench", "compare", tmp_path / "a", tmp_path / "b")


def test_damaged_files_of_a_run_are_named_with_what_to_do(
    shell: Shell, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("bench", "run", run, "max_inputs=1", "--out", out)
    assert shell(*command).code == 0
    (inputs,) = (out / "inputs").iterdir()
    for file, said in (
        (out / "manifest.json", "Delete it: results stay"),
        (out / "run.json", "in another folder"),
        (out / "records.jsonl", "is no result"),
        (inputs, "delete the file to draw anew"),
    ):
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 3] + b"\n", b"[]\n"):
            file.write_bytes(damaged)
            refused = shell.refused(*command)
            assert said in refused
            assert file.name in refused
        file.write_bytes(whole)
    assert shell(*command).code == 0
    (out / "manifest.json").unlink()
    assert shell(*command).code == 0


def test_a_full_disk_ends_a_run_in_one_sentence_and_it_goes_on_later(
    shell: Shell, run: Path, tmp_path: Path
) -> None:
    command = ("bench", "run", run, "--out", tmp_path / "out")
    with room_for(2500):
        full = shell(*command)
    assert (full.code, full.out) == (2, "")
    assert full.err.splitlines()[-1].startswith("eyespan: result file")
    assert "File too large" in full.err
    assert "Traceback" not in full.err
    done = shell(*command)
    assert done.code == 0, done.err
    assert {one.input for one in read_runs(tmp_path / "out")} == {"1", "2"}


def test_a_table_is_printed_as_markdown(shell: Shell, run: Path, tmp_path: Path) -> None:
    assert shell("bench", "run", run, "max_inputs=1", "--out", tmp_path).code == 0
    done = shell("bench", "report", tmp_path, "--markdown", "recap_table18")
    assert done.code == 0, done.err
    assert done.out.startswith("### Paired ratios over inputs\n\n| Method | Set |")
    assert not (tmp_path / "report.html").exists()
    error = shell.refused("bench", "report", tmp_path, "--markdown", "recap_table1")
    assert "recap_table18" in error
    (tmp_path / "tables.json").unlink()
    error = shell.refused("bench", "report", tmp_path, "--markdown", "recap_table18")
    assert "there is none yet" in error


def test_a_mistake_does_not_spoil_the_folder(shell: Shell, run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    shell.refused("bench", "run", run, "datasets=folder:/nowhere", *out)
    assert shell("bench", "run", run, "model=./nowhere", *out).code == 2
    assert shell("bench", "run", run, *out).code == 0


def test_help_names_the_exit_codes(shell: Shell) -> None:
    assert "Exit codes" in shell("bench", "run", "--help").out
