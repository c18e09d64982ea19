"""The command line with the demo model: what `make demo` shows, and the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eyespan
from eyespan.bench import recap_table
from eyespan.demo import IMAGES_DIR, facts_right, showcase
from eyespan.verbs import demo
from tests.cli import Shell

FEW = 24
"""Tokens an answer may have where its text does not matter."""


def test_the_demo_answers_and_races(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PAIRS", 1)
    monkeypatch.setattr(demo, "ENOUGH_SECONDS", 0.0)
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", FEW)
    done = shell("demo")
    assert done.code == 0
    for words in ("receipt-0000.png", "drafted and accepted", "tau", "stock generate()", "equal"):
        assert words in done.out


def test_a_question_about_a_receipt_and_its_trace(shell: Shell, tmp_path: Path) -> None:
    first, trace = showcase()[0], tmp_path / "trace.jsonl"
    done = shell("generate", "-i", first.path, "--trace", trace, first.question)
    assert done.code == 0
    assert done.out.startswith("{")
    assert eyespan.read_trace(trace)[0][-1]["text"] == done.out[:-1]
    tree = shell("inspect", trace).out
    assert "accepted" in tree
    assert "#" not in tree.split("prefill")[1], "the demo's tokens are text without --model"


def test_a_folder_of_pictures(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = shell("generate", "--images", f"{IMAGES_DIR}/scene-*.png", "--out", out, "How many?")
    assert done.code == 0
    assert len(out.read_text().splitlines()) == 3


def test_verify_finds_no_difference(shell: Shell) -> None:
    done = shell("verify", "--demo", 2, "--budget", "fixed", "-n", FEW)
    assert done.code == 0
    assert "lossless: 2 of 2 equal" in done.out


def test_the_table_of_recaps_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = dict(list(recap_table.ROWS.items())[:2])
    monkeypatch.setattr(recap_table, "ROWS", rows)
    monkeypatch.setattr(recap_table, "MAX_NEW_TOKENS", FEW)
    recap_table.main(count=2, out=tmp_path / "rows.json")
    assert f"| {next(iter(rows))} |" in capsys.readouterr().out
    made = json.loads((tmp_path / "rows.json").read_text())
    assert set(made["rows"]) == set(rows)
    assert len({row["tokens"] for row in made["rows"].values()}) == 1, "the same answers"
    assert made["manifest"]["versions"]["torch"]


def test_the_model_reads_its_pictures(shell: Shell) -> None:
    """Not a measure of quality: a model that answers from the question alone fails it."""
    right = 0
    receipts = [picture for picture in showcase() if picture.kind == "receipt"]
    for picture in receipts:
        text = shell("generate", "-i", picture.path, picture.question).out
        truth = json.loads(picture.answer)
        right += facts_right((truth["shop"], truth["date"], f"{truth['total']:.2f}"), text)
    assert right >= 1


@pytest.mark.parametrize("drafter", ["fovea", "hybrid"])
def test_the_weights_that_come_along_are_found_by_the_drafters_name(
    shell: Shell, drafter: str
) -> None:
    picture = showcase()[0]
    plain = shell("generate", "-i", picture.path, "-n", 12, "--drafter", "none", picture.question)
    done = shell("generate", "-i", picture.path, "-n", 12, "--drafter", drafter, picture.question)
    assert done.code == 0
    assert done.out == plain.out
