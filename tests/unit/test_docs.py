"""Code in the docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from eyespan.engine import Decoder
from eyespan.generation import Engine
from eyespan.policy import Policy
from eyespan.testing import tiny_images, tiny_target, tiny_video
from tests.property.test_lossless import finish, request_for, start
from tests.toys import ToyTarget

DOCS = Path(__file__).parents[2] / "docs"


def code_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


def test_the_examples_of_choosing_run(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = code_blocks("choosing.md")
    engine = Engine(tiny_target("llama"), budget="fixed")
    exec(compile(code, "choosing.md", "exec"), {"engine": engine})
    assert capsys.readouterr().out


def test_the_examples_of_chat_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, files = code_blocks("chat.md")
    engine = Engine(tiny_target("llava"), budget="fixed")
    exec(compile(talk, "chat.md", "exec"), {"engine": engine, "pictures": tiny_images(2)})
    assert "prompt tokens were not read again" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    engine.generate("abc", max_new_tokens=8, scope="receipts")
    exec(compile(files, "chat.md", "exec"), {"engine": engine})
    assert {path.name for path in tmp_path.iterdir()} == {"receipts.memory"}


def test_the_examples_of_videos_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = code_blocks("video.md")
    engine = Engine(tiny_target("qwen2_5_vl"), budget="fixed")
    monkeypatch.chdir(tmp_path)
    first, *rest = frames = [Image.fromarray(frame) for frame in tiny_video(6)]
    first.save("clip.gif", save_all=True, append_images=rest, duration=500)
    names = {"engine": engine, "pictures": tiny_images(1), "frames": frames}
    exec(compile(code, "video.md", "exec"), names)
    assert "prompt tokens were not read again" in capsys.readouterr().out


def test_the_example_drafter_is_lossless_and_drafts() -> None:
    (code,) = code_blocks("add_a_drafter.md")
    names: dict[str, type] = {}
    exec(compile(code, "add_a_drafter.md", "exec"), names)
    target = ToyTarget(vocab=12, order=1, eos_ids=frozenset())
    drafter = names["Echo"]()
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    running = start(decoder, request_for(target, [3, 4, 7], 40))
    finish(decoder, running)
    assert running.output_ids.tolist() == target.plain([3, 4, 7], 40)
    assert running.counters.accepted > 10
