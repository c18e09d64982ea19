"""A trace becomes a readable tree, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Shell

REQUEST = {
    "type": "request", "version": 1, "id": "r0", "drafter": "recap", "config": {}, "budget": "auto",
    "prompt_ids": [9, 3, 3, 9], "media_ids": [3], "eos_ids": [2], "max_new_tokens": 20,
    "memory": "fresh", "scope": None, "model": "somewhere", "greedy": True,
}  # fmt: skip
PREFILL = {"type": "prefill", "id": "r0", "rows": [[0, [1] * 8, [0.0] * 8]], "next": 40}
MS = dict.fromkeys(("propose", "pack", "forward", "verify", "commit", "refresh"), 1.0)
STEP = {
    "type": "step", "id": "r0", "i": 0, "tokens": [40, 41, 42, 43, 44, 45, 46],
    "parents": [-1, 0, 1, 0, 0, 0, 0], "scores": [1.0, 0.5, 0.25, 0.125, 0.1, 0.05, 0.01],
    "origin": ["root", "recap", "suffix", "recap", "recap", "recap", "recap"], "budget_used": 5,
    "accepted": [1, 2], "next": 50, "ms": MS,
}  # fmt: skip
LAST = {
    **STEP, "i": 1, "tokens": [50], "parents": [-1], "scores": [1.0], "origin": ["root"],
    "accepted": [], "next": 2, "cut": "eos",
}  # fmt: skip
END = {
    "type": "end", "id": "r0", "output_ids": [40, 41, 42, 50, 2], "text": "?", "finish": "eos",
    "forwards": 3, "drafted": 6, "accepted": 2, "tau": 5 / 3,
    "seconds": {"encode": 0.1, "prefill": 0.2, "decode": 0.3},
}  # fmt: skip


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path, REQUEST, PREFILL, STEP, LAST, END)


def test_a_request_step_by_step(shell: Shell, trace: Path) -> None:
    done = shell("inspect", trace)
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "prompt of 4 tokens (2 media)" in text
    assert "step 0 after #40: #41 #42 #50 (2 of 6 accepted)" in text
    assert "#42 0.250 suffix accepted" in text
    assert "step 1 after #50: #2 (no guess), ends: eos" in text
    assert "5 tokens in 3 forwards, tau 1.67; 6 drafted, 2 accepted (1 from recap, 1 from" in text


def test_the_rest_of_the_guesses_is_counted_or_shown(shell: Shell, trace: Path) -> None:
    assert "2 more" in shell("inspect", trace).out
    assert "#46" not in shell("inspect", trace).out
    assert "#46" in shell("inspect", trace, "--all").out


def test_one_step_has_every_guess(shell: Shell, trace: Path) -> None:
    done = shell("inspect", trace, "--step", 0)
    assert "#46" in done.out
    assert "step 1" not in done.out


def test_no_such_step(shell: Shell, trace: Path) -> None:
    assert "has 2, counted from 0" in shell.refused("inspect", trace, "--step", 9)


def test_one_request_of_several(shell: Shell, tmp_path: Path) -> None:
    other = [{**line, "id": "r1"} for line in (REQUEST, PREFILL, LAST, END)]
    file = written(tmp_path, REQUEST, PREFILL, STEP, END, *other)
    done = shell("inspect", file, "--request", "r1")
    assert "request r1" in done.out
    assert "request r0" not in done.out
    assert "it holds r0, r1" in shell.refused("inspect", file, "--request", "r7")


def test_an_interrupted_request_is_shown_as_far_as_it_goes(shell: Shell, tmp_path: Path) -> None:
    done = shell("inspect", written(tmp_path, REQUEST, PREFILL, STEP))
    assert done.code == 0
    assert "no end: the run was interrupted" in done.out


def test_tokens_become_text_with_a_tokenizer(shell: Shell, trace: Path, tiny_folder: Path) -> None:
    assert "'A'" in shell("inspect", trace, "--model", tiny_folder).out
    assert "#40" not in shell("inspect", trace, "--model", tiny_folder).out


def test_a_model_without_a_tokenizer(shell: Shell, trace: Path, tmp_path: Path) -> None:
    assert "tokenizer" in shell.refused("inspect", trace, "--model", tmp_path)


@pytest.mark.parametrize("content", ["", "{}\n", "words\n", '{"type": "step"}\n'])
def test_not_a_trace(shell: Shell, tmp_path: Path, content: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(content)
    assert "--trace" in shell.refused("inspect", file)


@pytest.mark.parametrize("field", ["tokens", "parents", "accepted", "ms"])
def test_a_line_without_its_fields(shell: Shell, tmp_path: Path, field: str) -> None:
    broken = {name: value for name, value in STEP.items() if name != field}
    file = written(tmp_path, REQUEST, PREFILL, broken, END)
    assert field in shell.refused("inspect", file)


def test_a_narrow_terminal_loses_nothing(
    shell: Shell, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = shell("inspect", trace).out
    assert max(len(line) for line in out.splitlines()) <= 40
    assert "0.250" in out


def test_text_with_line_separators_stays_one_line(shell: Shell, tmp_path: Path) -> None:
    """`str.splitlines` cuts at U+2028, which JSON leaves as it is."""
    file = tmp_path / "trace.jsonl"
    lines = (REQUEST, PREFILL, {**END, "text": "one\u2028two\x85three"})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")
    assert shell("inspect", file).code == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("ms", 5), ("ms", {"forward": "x"}), ("next", -1), ("next", 10**30), ("scores", None)],
)
def test_a_field_of_another_kind(
    shell: Shell, tmp_path: Path, tiny_folder: Path, field: str, value: object
) -> None:
    file = written(tmp_path, REQUEST, PREFILL, {**STEP, field: value}, END)
    assert "a line of another shape" in shell.refused("inspect", file, "-m", tiny_folder)


def test_json_nested_too_deep(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("[" * 100_000)
    assert "line 1 is no trace line" in shell.refused("inspect", tmp_path / "trace.jsonl")
