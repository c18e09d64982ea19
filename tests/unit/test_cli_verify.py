"""Verify tells equal, near tie and DIFFERENT apart, and its exit code says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import eyespan
from eyespan.bench.compare import NEAR_TIE, Verdict, Witness, first_difference, judge
from eyespan.generation import Engine
from eyespan.testing import tiny_target
from eyespan.types import Generation
from eyespan.verbs.verify import Row, summary
from tests.cli import Shell


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [([], [], None), ([1], [1], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1)],
)
def test_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(one, other) == at


@pytest.mark.parametrize("dtype", NEAR_TIE)
def test_a_difference_is_a_near_tie_up_to_the_bound_of_its_dtype(dtype: str) -> None:
    bound = NEAR_TIE[dtype]
    assert judge([1, 2], [1, 3], [9.0, bound], dtype) == Verdict("near tie", 1, bound)
    assert judge([1, 2], [1, 3], [9.0, 1.01 * bound], dtype).outcome == "DIFFERENT"


def test_an_answer_that_runs_past_the_plain_one_is_different() -> None:
    assert judge([1], [1, 2], [0.0], "float32") == Verdict("DIFFERENT", 1)


def test_an_unknown_dtype_gets_the_strictest_bound() -> None:
    assert judge([1], [2], [0.01], "float64").outcome == "DIFFERENT"


def test_the_witness_notes_the_gap_at_every_token() -> None:
    """Against a plain decoding loop over the model's own logits."""
    target, witness = tiny_target("llava"), Witness()
    answer = Engine(target, witness, budget=0).generate("Hi", max_new_tokens=12).token_ids
    ids, gaps = target.prepare("Hi").ids.tolist(), []
    for token in answer:
        logits = target.model(target.prompt_from_ids(ids).input_ids).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        assert int(logits.argmax()) == token
        gaps.append(best - second)
        ids.append(token)
    assert witness.gaps == pytest.approx(gaps, abs=1e-4)


def test_equal_answers_pass(shell: Shell, tiny_folder: Path, pictures: Path) -> None:
    asked = ("-m", tiny_folder, "-n", 30, "--budget", "fixed")
    done = shell("verify", *asked, "-i", pictures / "1.png", "--prompt", "Hi")
    assert done.code == 0
    assert done.out.count("equal") == 4, "control, drafted and stock, and the verdict"
    assert "lossless: 1 of 1 equal" in done.out


def test_inputs_come_from_json_lines(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    inputs = pictures / "inputs.jsonl"
    lines = [{"prompt": "Hi", "images": ["0.png"]}, {"prompt": "Ho"}]
    inputs.write_text("\n".join(json.dumps(line) for line in lines))
    trace = tmp_path / "trace.jsonl"
    asked = ("--inputs", inputs, "--trace", trace)
    done = shell("verify", "-m", tiny_folder, "-n", 8, *asked)
    assert done.code == 0
    assert "lossless: 2 of 2 equal" in done.out
    assert len(eyespan.read_trace(trace)) == 2


def test_another_answer_is_told(
    shell: Shell, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Engine.generate

    def generate(self: Engine, *args: Any, **options: Any) -> Generation:
        result = real(self, *args, **options)
        if self.drafter.name != "recap":
            return result
        ids = list(result.token_ids)
        ids[3] += 1
        return dataclasses.replace(result, token_ids=tuple(ids))

    monkeypatch.setattr(Engine, "generate", generate)
    done = shell("verify", "-m", tiny_folder, "-n", 8, "--prompt", "Hi")
    assert done.code == 1
    assert "DIFFERENT at token 3, gap" in done.out
    assert "NOT lossless" in done.out


SAME, NEAR, WRONG = Verdict("equal"), Verdict("near tie", 3, 0.01), Verdict("DIFFERENT", 3, 2.0)


@pytest.mark.parametrize(
    ("rows", "says", "code"),
    [
        ([Row("a", 9, SAME, SAME, SAME)], "lossless: 1 of 1 equal", 0),
        ([Row("a", 9, SAME, SAME, None)], "lossless: 1 of 1 equal", 0),
        ([Row("a", 9, SAME, NEAR, SAME)], "lossless: 0 of 1 equal, 1 near ties", 0),
        ([Row("a", 9, SAME, WRONG, SAME)], "NOT lossless: 0 of 1 equal, 1 DIFFERENT", 1),
        ([Row("a", 9, NEAR, SAME, SAME)], "unclear: 1 of 1 equal; plain decoding itself", 1),
        ([Row("a", 9, SAME, SAME, WRONG)], "unclear: 1 of 1 equal; stock generate()", 1),
    ],
)
def test_the_verdict(rows: list[Row], says: str, code: int) -> None:
    text, found = summary(rows)
    assert text.startswith(says)
    assert found == code
