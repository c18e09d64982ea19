"""Result files survive interruptions: finished lines are kept, half lines repaired, and answers of
different settings never share a file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eyespan.errors import ConfigError, InputError, OutputError
from eyespan.verbs.results import Results

SETTINGS = {"prompt": "What?", "model": "demo", "stop": ()}
PICTURES = ["a.png", "b.png", "c.png"]


def answer(image: str) -> dict[str, Any]:
    return {"type": "answer", "image": image, "text": f"zebra café \u2028 {image}"}


def begun(file: Path, *lines: dict[str, Any]) -> None:
    results = Results(file, SETTINGS, PICTURES)
    for line in lines:
        results.write(line)
    results.close()


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_new_file_begins_with_its_settings(tmp_path: Path) -> None:
    begun(tmp_path / "out", answer("a.png"))
    head, line = lines_of(tmp_path / "out")
    assert head["type"] == "run"
    assert head["settings"]["prompt"] == "What?"
    assert line == answer("a.png")


def test_answers_are_kept(tmp_path: Path) -> None:
    begun(tmp_path / "out", answer("a.png"), answer("b.png"))
    results = Results(tmp_path / "out", SETTINGS, PICTURES)
    assert results.done == {"a.png", "b.png"}
    results.write(answer("c.png"))
    assert [line.get("image") for line in lines_of(tmp_path / "out")] == [None, *PICTURES]


@pytest.mark.parametrize("cut", range(1, 60))
def test_an_end_cut_anywhere_costs_that_line_only(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "out"
    begun(file, answer("a.png"), answer("b.png"))
    file.write_bytes(file.read_bytes()[:-cut])
    assert Results(file, SETTINGS, PICTURES).done == {"a.png"}
    assert lines_of(file)[1:] == [answer("a.png")]


def test_a_file_cut_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "out"
    begun(file)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert Results(file, SETTINGS, PICTURES).done == set()
        assert file.read_bytes() == whole


def test_errors_get_another_try_and_those_of_other_pictures_stay(tmp_path: Path) -> None:
    file = tmp_path / "out"
    errors = [{"type": "error", "image": name, "error": "?"} for name in ("b.png", "other.png")]
    begun(file, answer("a.png"), *errors)
    results = Results(file, SETTINGS, PICTURES)
    assert results.done == {"a.png"}
    assert [line["image"] for line in lines_of(file)[1:]] == ["a.png", "other.png"]


@pytest.mark.parametrize("change", [{"prompt": "Who?"}, {"model": "other"}, {"stop": ["x"]}])
def test_other_settings_are_refused_and_nothing_is_lost(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    file = tmp_path / "out"
    begun(file, answer("a.png"))
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=next(iter(change))):
        Results(file, {**SETTINGS, **change}, PICTURES)
    assert file.read_bytes() == before


def test_a_run_without_an_answer_binds_nobody_to_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "out"
    begun(file, {"type": "error", "image": "a.png", "error": "?"})
    Results(file, {**SETTINGS, "prompt": "Who?"}, PICTURES).close()
    assert lines_of(file)[0]["settings"]["prompt"] == "Who?"


def test_two_runs_never_write_one_file(tmp_path: Path) -> None:
    first = Results(tmp_path / "out", SETTINGS, PICTURES)
    first.write(answer("a.png"))
    with pytest.raises(OutputError, match="another run"):
        Results(tmp_path / "out", SETTINGS, PICTURES)
    first.write(answer("b.png"))
    first.close()
    assert Results(tmp_path / "out", SETTINGS, PICTURES).done == {"a.png", "b.png"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "content", [b"shopping list\n", b"shopping list", b'{"a": 1}\n', b"[]\n", b"\xff\xfe\n"]
)
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "out"
    file.write_bytes(content)
    with pytest.raises(InputError, match="did not write"):
        Results(file, SETTINGS, PICTURES)
    assert file.read_bytes() == content


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    assert Results(tmp_path / "out", SETTINGS, PICTURES).done == set()


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="regular file"):
        Results(tmp_path / "pipe", SETTINGS, PICTURES)
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_goes_on_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    begun(tmp_path / "link", answer("a.png"))
    assert (tmp_path / "link").is_symlink()
    assert len(lines_of(tmp_path / "file")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"type": "run", "settings": 5}',
        '{"type": "run", "settings": {}}\n{"type": "a", "image": [1]}',
    ],
    ids=["deep", "settings", "image"],
)
def test_json_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "out").write_text(f"{text}\n")
    with pytest.raises(InputError, match="did not write"):
        Results(tmp_path / "out", SETTINGS, PICTURES)
