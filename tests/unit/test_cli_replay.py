"""`eyespan replay` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyespan.bench.tables import Results
from eyespan.diagnostics.questions import questions
from eyespan.diagnostics.record import record
from eyespan.diagnostics.recorded import read_recordings
from eyespan.testing import tiny_target
from tests.cli import Shell
from tests.unit.test_recorded import LINES, changed, write


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two samples of the demo's set, answered by a model that has learned nothing."""
    folder = tmp_path_factory.mktemp("traces")
    every = questions(["demo"], 12)
    return record(tiny_target("llava"), every, folder, tell=lambda _: None, max_new_tokens=12)


def test_recorded_traces_have_what_replay_needs(traces: list[Path]) -> None:
    recordings = read_recordings(traces)
    assert {one.name for one in recordings} == {
        "receipt", "table", "chart", "text", "scene", "dialog",
    }  # fmt: skip
    for one in (request for recording in recordings for request in recording.requests):
        text = [i for i in one.request.prompt_ids.tolist() if i not in one.request.media_ids]
        assert len(one.seeds) == len(text)
        assert one.swapped is not None
        assert one.swapped.at.tolist() == list(range(len(one.output)))
        assert (one.rows.ids[: one.states, 0] == one.output[1:]).all()
    dialogs = [one.group for one in recordings[-1].requests]
    assert len(set(dialogs)) == 2 < len(dialogs)


def test_tables_and_figures(shell: Shell, traces: list[Path], tmp_path: Path) -> None:
    done = shell(
        "replay", *traces, "--out", tmp_path / "out", "--growth", 30,
        "-d", "recap", "-d", "recap,orders=U,eta=0.5,0.4", "-d", "none",
    )  # fmt: skip
    assert done.code == 0, done
    assert done.out == ""
    made = Results.read(tmp_path / "out")
    assert [table.id for table in made.tables] == [
        "replay_tau", "replay_drafters", "recap_table5", "recap_specificity", "recap_table6",
        "recap_table7", "recap_table14", "recap_table16", "recap_table17", "recap_swapped",
        "recap_growth",
    ]  # fmt: skip
    assert {"replay_depth", "recap_figure3", "recap_figure5"} <= {one.id for one in made.figures}
    tau = {row[0]: row[-2] for row in made.tables[0].rows}
    assert tau["none"] == 1.0
    assert isinstance(tau["recap"], float)
    assert tau["recap"] > 1.0
    for table in made.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.id
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [one["states"] for one in manifest["traces"]] == [
        one.states for one in read_recordings(traces)
    ]


def test_a_trace_without_rows_is_drafted_from_tokens(shell: Shell, tmp_path: Path) -> None:
    bare = [{k: v for k, v in line.items() if not k.startswith("row_")} for line in LINES]
    file = write(tmp_path, *bare)
    done = shell("replay", file, "--out", tmp_path / "out", "-d", "none")
    assert done.code == 0
    assert "only drafters are replayed" in done.err
    assert len(Results.read(tmp_path / "out").tables) == 2
    assert "--budget fixed" in shell.refused("replay", file, "--out", tmp_path / "out")


def test_bad_input(shell: Shell, tmp_path: Path) -> None:
    file, out = write(tmp_path, *LINES), tmp_path / "out"
    assert "neither" in shell.refused("replay", "--out", out)
    assert "one of them" in shell.refused("replay", file, "--record", "demo", "--out", out)
    assert "Did you mean 'recap'" in shell.refused("replay", file, "-d", "recapp", "--out", out)
    assert "orders" in shell.refused("replay", file, "-d", "recap,orders=X", "--out", out)
    for drafter in ("draft_model,draft_model=demo", "sam,fallback=draft_model"):
        assert "a live model is needed" in shell.refused(
            "replay", file, "-d", drafter, "--out", out
        )
    old = write(tmp_path, *changed(0, version=0), name="old.jsonl")
    assert "format 0" in shell.refused("replay", old, "--out", out)
    assert "no request" in shell.refused("replay", write(tmp_path, name="e.jsonl"), "--out", out)
    assert "No such file" in shell.refused("replay", tmp_path / "none.jsonl", "--out", out)
    assert "result folder" in shell.refused("replay", file, "--out", file)


def test_pictures_of_your_own_are_recorded(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    lines = [
        {"images": [f"{at}.png"], "question": "abcabc what is this? abcabc", "category": "words"}
        for at in range(3)
    ]
    (pictures / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out"
    done = shell(
        "replay", "--record", tiny_folder, "--dataset", f"folder:{pictures}", "--max-inputs", 3,
        "-n", 30, "--growth", 0, "--out", out,
    )  # fmt: skip
    assert done.code == 0, done
    (file,) = (out / "traces").iterdir()
    (recording,) = read_recordings([file])
    assert len({one.group for one in recording.requests}) == 3
    assert all(one.swapped is not None for one in recording.requests)
    none = shell.refused("replay", "--record", "demo", "--dataset", "chartq", "--out", out)
    assert "chartqa" in none
    twice = ("--dataset", "demo", "--dataset", "demo")
    assert "twice" in shell.refused("replay", "--record", "demo", *twice, "--out", out)
