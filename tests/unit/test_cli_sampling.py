"""Sampling and forms of answers on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli import Shell


def test_a_seed_repeats_a_drawn_answer(shell: Shell, tiny_folder: Path) -> None:
    asked = ("generate", "-m", tiny_folder, "-n", 12, "--budget", "fixed", "Hi")
    drawn = ("--temperature", 1, "--top-k", 30, "--top-p", 0.95, "--seed")
    first, again, other = (shell(*asked, *drawn, seed).out for seed in (1, 1, 2))
    assert first == again != other
    assert shell(*asked).out == shell(*asked, "--temperature", 0).out


def test_answers_take_the_form_that_was_asked_for(
    shell: Shell, tiny_folder: Path, tmp_path: Path
) -> None:
    asked = ("generate", "-m", tiny_folder, "-n", 200, "--budget", "fixed", "Hi")
    assert re.fullmatch("[a-c]{3}x\n", shell(*asked, "--regex", "[a-c]{3}x").out)
    assert shell(*asked, "--choice", "yes", "--choice", "no").out in ("yes\n", "no\n")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2}')
    assert set(json.loads(shell(*asked, "--json-schema", schema).out)) <= {1, 2}


def test_a_run_over_pictures_remembers_the_form(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    asked = ("generate", "-m", tiny_folder, "--images", pictures, "--out", out, "-n", 20, "Hi")
    assert shell(*asked, "--regex", "[a-c]{3}").code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(re.fullmatch("[a-c]{3}", line["text"]) for line in lines[1:])
    assert "response_format" in shell.refused(*asked)


def test_strict_says_what_it_cost(shell: Shell, tiny_folder: Path) -> None:
    done = shell("generate", "-m", tiny_folder, "-n", 12, "--budget", "fixed", "--strict", "Hi")
    assert "strict: 0 near ties decided" in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", -1], "temperature"),
        (["--top-p", 2], "top_p"),
        (["--seed", -1], "seed"),
        (["--regex", "a", "--choice", "b"], "--regex with --choice"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--strict", "--temperature", 1], "strict"),
    ],
    ids=str,
)
def test_bad_options_are_one_line(shell: Shell, options: list[object], words: str) -> None:
    assert words in shell.refused("generate", "-m", "no-such-model", *options, "Hi")


def test_a_schema_that_is_no_json(shell: Shell, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text("{")
    assert "schema.json" in shell.refused("generate", "--json-schema", schema, "Hi")


def test_a_broken_pattern_is_one_line(shell: Shell, tiny_folder: Path) -> None:
    error = shell.refused("generate", "-m", tiny_folder, "--regex", "(", "Hi")
    assert "response_format" in error
