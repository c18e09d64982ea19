"""A conversation through a pipe, and memories between command lines."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import eyespan
from eyespan.testing import tiny_images
from eyespan.verbs import console
from tests.cli import Done, Shell


@pytest.fixture
def say(
    shell: Shell, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> object:
    """Run `eyespan chat` with these lines as its input."""

    def run(*lines: str, options: tuple[object, ...] = ()) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        asked = ("-m", tiny_folder, "-n", 12, "--budget", "fixed", *options)
        return shell("chat", *asked)

    return run


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> eyespan.Engine:
    return eyespan.load(str(tiny_folder), "none", budget=0)


def answers(chat: eyespan.Chat) -> str:
    said = [m["content"][-1]["text"] for m in chat.messages if m["role"] == "assistant"]
    return "".join(f"{text}\n" for text in said)


def speeds(done: Done) -> list[str]:
    return [line for line in done.err.split("\n") if line.startswith("tau ")]


def test_lines_are_turns_of_one_conversation(say, engine: eyespan.Engine, pictures: Path) -> None:  # type: ignore[no-untyped-def]
    done = say(
        "What is this?",
        "",
        f"/image {pictures / '1.png'}",
        "And that?",
        "//help",
        options=("-i", pictures / "0.png", "--system", "Be brief."),
    )
    chat = engine.chat("Be brief.", max_new_tokens=12)
    zero, one = tiny_images(2)
    chat.say("What is this?", [zero])
    chat.say("And that?", [one])
    chat.say("/help")
    assert done.code == 0
    assert done.out == answers(chat)
    first, second, third = speeds(done)
    assert ", 0 prompt tokens reused" in first
    assert ", 0 prompt tokens" not in second + third
    assert "tokens/s" in second


def test_edits_and_resets(say, engine: eyespan.Engine, pictures: Path) -> None:  # type: ignore[no-untyped-def]
    done = say(
        "One.",
        "/edit Two.",
        "/reset",
        "Three.",
        "/quit",
        "Never said.",
        options=("-i", pictures / "0.png"),
    )
    (zero,) = tiny_images(1)
    expected = ""
    for text, images in (("One.", [zero]), ("Two.", [zero]), ("Three.", [])):
        chat = engine.chat(max_new_tokens=12)
        chat.say(text, images)
        expected += answers(chat)
    assert (done.code, done.out) == (0, expected)


def test_what_goes_wrong_is_said_and_the_chat_goes_on(say, engine: eyespan.Engine) -> None:  # type: ignore[no-untyped-def]
    done = say("/image missing.png", "/what", "<image>", "/edit Nothing to edit.", "Hello.")
    chat = engine.chat(max_new_tokens=12)
    chat.say("Hello.")
    assert (done.code, done.out) == (1, answers(chat))
    errors = [line for line in done.err.split("\n") if line.startswith("eyespan: ")]
    assert len(errors) == 2
    assert "missing.png" in errors[0]
    assert "spells '<image>'" in errors[1]
    assert done.err.count("/image PATH") == 2


def test_help_is_no_failure(say) -> None:  # type: ignore[no-untyped-def]
    done = say("/help")
    assert (done.code, done.out) == (0, "")
    assert "/edit TEXT" in done.err


def test_ctrl_c_ends_an_answer_not_the_chat(
    say, engine: eyespan.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    write, rounds = console.write, iter([False, True])

    def interrupted(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        if next(rounds, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(console, "write", interrupted)
    done = say("Hello.", "And?")
    assert done.code == 0
    assert "stopped" in speeds(done)[0]
    assert "stopped" not in speeds(done)[1]


def test_a_memory_goes_from_one_command_line_to_the_next(
    say, shell: Shell, tiny_folder: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "memory"
    asked = ("-m", tiny_folder, "-n", 30, "--budget", "fixed", "--memory", folder)
    first = shell("generate", *asked, "--trace", tmp_path / "one.jsonl", "Hi")
    assert first.code == 0
    assert (folder / "manifest.json").exists()
    second = shell("generate", *asked, "--trace", tmp_path / "two.jsonl", "Hi")
    assert second.out == first.out
    one, two = ((tmp_path / f"{name}.jsonl").read_text().count("\n") for name in ("one", "two"))
    assert two < one, "it remembers what it said"
    assert say("Hi", options=("--memory", folder)).code == 0


def test_a_memory_that_is_none_is_refused_before_a_model_is_loaded(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("diary")
    for verb in (("chat",), ("generate", "Hi")):
        refused = shell.refused(*verb, "-m", "no-such-model", "--memory", tmp_path)
        assert "draft memory" in refused
        shell.refused(*verb, "-m", "no-such-model", "--memory", tmp_path / "file")


def test_a_drafter_without_a_memory_is_refused(
    shell: Shell, tiny_folder: Path, tmp_path: Path
) -> None:
    asked = ("-m", tiny_folder, "-d", "none", "--memory", tmp_path / "memory", "Hi")
    assert "keeps nothing between requests" in shell.refused("generate", *asked)
