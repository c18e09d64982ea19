"""Answers on the command line: what goes where, what a trace holds, how a folder is done."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import eyespan
from eyespan.batching import Scheduler, Ticket
from eyespan.cli import run
from eyespan.testing import tiny_images
from eyespan.verbs import generate as generate_verb
from eyespan.verbs.results import Results
from tests.cli import Shell


@pytest.fixture(scope="module")
def answers(tiny_folder: Path) -> dict[str, str]:
    """What the library answers about each picture, by its file's name, decoding plainly."""
    engine = eyespan.load(str(tiny_folder), "none", budget=0)
    return {
        f"{number}.png": engine.generate("Hi", [picture], max_new_tokens=40).text
        for number, picture in enumerate(tiny_images(4))
    }


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n")[:-1]]


def texts_of(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {Path(line["image"]).name: line["text"] for line in lines}


def test_stdout_holds_the_answer_and_nothing_else(
    shell: Shell, tiny_folder: Path, pictures: Path, answers: dict[str, str]
) -> None:
    picture = pictures / "1.png"
    done = shell("generate", "-m", tiny_folder, "-n", 40, "-i", picture, "Hi")
    assert (done.code, done.err) == (0, "")
    assert done.out == answers[picture.name] + "\n"


def test_shown_drafts_leave_the_answer_as_it_is_on_a_pipe(
    shell: Shell,
    tiny_folder: Path,
    pictures: Path,
    answers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate_verb, "PAIRS", 1)
    picture = pictures / "1.png"
    asked = ("-m", tiny_folder, "-n", 40, "-i", picture, "--budget", "fixed", "Hi")
    done = shell("generate", "--show-drafts", *asked)
    assert done.code == 0
    assert done.out == answers[picture.name] + "\n"
    assert "recap" in done.err
    assert "tau" in done.err
    assert "S " in done.err
    assert "outputs equal" in " ".join(done.err.split())


def test_forced_colours_mark_drafted_words_and_no_color_has_none(
    shell: Shell, tiny_folder: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_verb, "PAIRS", 1)
    asked = ("-m", tiny_folder, "-n", 30, "-i", pictures / "1.png", "--budget", "fixed", "Hi")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;32m" in shell("generate", "--show-drafts", *asked).out
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shell("generate", "--show-drafts", *asked).out
    assert "\x1b[1m" in plain, "still told by bold type"
    assert "32m" not in plain


def test_a_trace_can_be_read_back(
    shell: Shell, tiny_folder: Path, tmp_path: Path, pictures: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    asked = ("-n", 30, "-i", pictures / "1.png", "--trace", trace, "Hi")
    done = shell("generate", "-m", tiny_folder, *asked)
    (request,) = eyespan.read_trace(trace)
    assert request[-1]["type"] == "end"
    assert request[-1]["text"] + "\n" == done.out


def test_stop_strings_and_options_reach_the_engine(
    shell: Shell, tiny_folder: Path, tmp_path: Path, pictures: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    asked = ("--stop", "W", "--scope", "mine", "-o", "nodes=7", "-o", "fusion=gate", "Hi")
    done = shell("generate", "-m", tiny_folder, "-i", pictures / "1.png", "--trace", trace, *asked)
    request, *_, end = eyespan.read_trace(trace)[0]
    assert end["finish"] == "stop"
    assert "W" not in done.out
    assert request["scope"] == "mine"
    assert request["config"]["nodes"] == 7
    assert request["config"]["fusion"] == "gate"


@pytest.mark.parametrize("batch", [1, 3])
def test_a_folder_becomes_json_lines_on_stdout(
    shell: Shell, tiny_folder: Path, pictures: Path, answers: dict[str, str], batch: int
) -> None:
    command = ("generate", "-m", tiny_folder, "-n", 40, "--batch", batch, "--images", pictures)
    done = shell(*command, "Hi")
    assert done.code == 0
    names = [Path(line["image"]).name for line in lines_of(done.out)]
    assert names == ["0.png", "1.png", "2.png", "3.png"], "in their order, whoever ends first"
    assert texts_of(lines_of(done.out)) == answers
    assert "4 of 4 answered" in done.err


def test_a_glob_takes_what_it_matches(shell: Shell, tiny_folder: Path, pictures: Path) -> None:
    done = shell("generate", "-m", tiny_folder, "-n", 4, "--images", f"{pictures}/[12].png", "Hi")
    names = [Path(line["image"]).name for line in lines_of(done.out)]
    assert names == ["1.png", "2.png"]


@pytest.mark.parametrize("batch", [1, 4])
def test_one_bad_picture_does_not_stop_the_rest(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path, batch: int
) -> None:
    (pictures / "0.png").write_text("not a picture")
    out = tmp_path / "out.jsonl"
    files = ("--batch", batch, "--images", pictures, "--out", out)
    command = ("generate", "-m", tiny_folder, "-n", 4, *files, "Hi")
    done = shell(*command)
    assert done.code == 1
    assert done.out == ""
    assert "1 failed" in done.err
    _, bad, *good = lines_of(out.read_text())
    assert bad["type"] == "error"
    assert "not a picture" in bad["error"]
    assert [line["type"] for line in good] == ["answer"] * 3

    (pictures / "0.png").write_bytes((pictures / "1.png").read_bytes())
    done = shell(*command)
    assert done.code == 0, "mended pictures get another try"
    kinds = [line["type"] for line in lines_of(out.read_text())]
    assert kinds == ["run", *["answer"] * 4]


def test_an_interrupted_run_goes_on_where_it_stopped(
    shell: Shell,
    tiny_folder: Path,
    pictures: Path,
    tmp_path: Path,
    answers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, trace = tmp_path / "out.jsonl", tmp_path / "trace.jsonl"
    files = ("--images", pictures, "--out", out, "--trace", trace)
    command = ("generate", "-m", tiny_folder, "-n", 40, *files, "Hi")
    calls: list[str] = []

    def submit(self: Scheduler, prompt: str, images: list[Path], **options: Any) -> Ticket:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(images[0].name)
        return real(self, prompt, images, **options)

    real = Scheduler.submit
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "submit", submit)
        done = shell(*command)
    assert done.code == 130
    assert "run the same command again" in " ".join(done.err.split())
    for file in (out, trace):
        with file.open("a") as half:
            half.write('{"type": "st')

    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "submit", submit)
        done = shell(*command)
    assert done.code == 0
    assert calls == ["2.png", "3.png"], "finished pictures are not done again"
    head, *lines = lines_of(out.read_text())
    assert head["type"] == "run"
    assert texts_of(lines) == answers
    assert len(eyespan.read_trace(trace)) == 4

    calls.clear()
    assert "all 4 pictures" in " ".join(shell(*command).err.split())
    assert calls == []


def test_a_batch_that_goes_on_traces_no_picture_twice(
    shell: Shell,
    tiny_folder: Path,
    pictures: Path,
    tmp_path: Path,
) -> None:
    """Answers end in another order than their lines are written in: 1.png was traced, and asked
    about again because 0.png before it had no answer yet.
    """
    out, trace = tmp_path / "out.jsonl", tmp_path / "trace.jsonl"
    files = ("--batch", 3, "--images", pictures, "--out", out, "--trace", trace)
    command = ("generate", "-m", tiny_folder, "-n", 12, *files, "Hi")
    assert shell(*command).code == 0
    head, zero, *_ = out.read_text().splitlines(keepends=True)
    out.write_text(head + zero)
    whole = {lines[0]["image"]: lines for lines in eyespan.read_trace(trace)}
    assert [Path(name).name for name in sorted(whole)] == ["0.png", "1.png", "2.png", "3.png"]
    lost = str(pictures / "2.png")
    rest = [line for name, lines in whole.items() if name != lost for line in lines]
    half = '{"type": "request", "id": "r9"}\n{"type": "st'
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in rest) + half)

    assert shell(*command).code == 0
    names = [lines[0]["image"] for lines in eyespan.read_trace(trace)]
    assert sorted(names) == sorted(whole), "each once"
    assert all(lines[-1]["type"] == "end" for lines in eyespan.read_trace(trace))


def test_a_second_run_on_the_same_files_is_refused(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    out, trace = tmp_path / "out.jsonl", tmp_path / "trace.jsonl"
    asked = ("generate", "-m", tiny_folder, "-n", 2, "--images", pictures)
    with eyespan.Trace(trace):
        assert "another run" in shell.refused(*asked, "--trace", trace, "Hi")
        assert "another run" in shell.refused("generate", "-m", tiny_folder, "--trace", trace, "Hi")
    names = [str(pictures / "0.png")]
    first = Results(out, {"prompt": "Hi"}, names)
    line = {"type": "answer", "image": names[0], "text": "mine"}
    first.write(line)
    assert "another run" in shell.refused(*asked, "--out", out, "Hi")
    first.close()
    assert lines_of(out.read_text())[1:] == [line]


def test_a_changed_question_is_refused_and_answers_are_kept(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = ("generate", "-m", tiny_folder, "-n", 4, "--images", pictures, "--out", out)
    shell(*command, "Hi")
    before = out.read_bytes()
    assert "choose another --out" in shell.refused(*command, "Bye")
    assert "max_new_tokens" in shell.refused(*command, "-n", 5, "Hi")
    assert out.read_bytes() == before


def test_ctrl_c_keeps_what_was_written(
    shell: Shell, tiny_folder: Path, tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = eyespan.engine.Decoder.step
    rounds: list[int] = []

    def interrupted(self: Any, batch: Any) -> None:
        if len(rounds) == 5:
            raise KeyboardInterrupt
        rounds.append(1)
        step(self, batch)

    monkeypatch.setattr(eyespan.engine.Decoder, "step", interrupted)
    trace = tmp_path / "trace.jsonl"
    picture = pictures / "1.png"
    done = shell("generate", "-m", tiny_folder, "-i", picture, "--trace", trace, "Hi")
    assert done.code == 130
    assert "stopped after" in done.err
    assert eyespan.read_trace(trace)[0][-1]["finish"] == "cancelled"


def test_help_has_examples_and_needs_no_model(shell: Shell) -> None:
    for verb in ("generate", "verify", "inspect", "doctor", "demo"):
        done = shell(verb, "--help")
        assert done.code == 0
        assert f"eyespan {verb}" in done.out
    assert "generate" in shell("--help").out
    assert "generate" in shell().out


def test_version(shell: Shell) -> None:
    assert shell("--version").out == f"eyespan {eyespan.__version__}\n"


def test_a_name_that_is_no_text_can_be_recorded_and_resumed(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    for name in (b"\xff.png", b"\xfe.png"):  # two names that one replacement mark would merge
        (pictures / os.fsdecode(name)).write_bytes((pictures / "0.png").read_bytes())
    out = tmp_path / "out.jsonl"
    command = ("generate", "-m", tiny_folder, "-n", 2, "--images", f"{pictures}/[!0-9].png")
    assert shell(*command, "--out", out, "Hi").code == 0
    names = [json.loads(line).get("image") for line in out.read_text().splitlines()]
    assert len({name for name in names if name}) == 2
    assert "all 2 pictures" in " ".join(shell(*command, "--out", out, "Hi").err.split())


def test_an_ascii_terminal_gets_replacements(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run(["generate", "-m", str(tiny_folder), "-n", "9", "Hi"]) == 0
    stream.flush()
    assert stream.buffer.getvalue().isascii()  # type: ignore[attr-defined]
