"""Code in the docs runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from eyespan.drafters import DRAFTERS
from eyespan.engine import Decoder
from eyespan.generation import Engine
from eyespan.policy import Policy
from eyespan.testing import tiny_images, tiny_target, tiny_video
from tests.cli import Shell
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


def test_the_papers_map_points_at_files_that_are_there() -> None:
    """A file may stand for a pair (`.h`, `.cc`), and one without its folder for the last one's."""
    root = DOCS.parent
    bases = (root / "src" / "eyespan", root / "tests", root)
    rows = re.findall(r"^\|.*\|$", (DOCS / "papers.md").read_text(), re.M)
    checked = 0
    for row in rows:
        folder = root
        for name in re.findall(r"`([\w./*{},-]+)`", row):
            if "/" not in name and not name.endswith(".py"):
                continue
            stem, _, choices = name.partition("{")
            parts = choices.partition("}")
            for one in parts[0].split(",") if choices else [""]:
                wanted = f"{stem}{one}{parts[2]}"
                found = [
                    file
                    for base in (*bases, folder)
                    for ending in ("", ".h", ".cc")
                    for file in base.glob(wanted + ending)
                ]
                assert found, f"{name} in: {row}"
                folder = found[0].parent
                checked += 1
    assert checked > 60
    said = "\n".join(rows)
    assert all(f"drafters/{name}.py" in said for name in DRAFTERS if name != "none")


def test_every_table_and_figure_of_recap_is_in_the_papers_map() -> None:
    """But for Figure 2, which is a picture of the method."""
    whole = (DOCS / "papers.md").read_text()
    section = whole[whole.index("## RECAP") : whole.index("## The methods they are compared with")]
    section = re.sub(r"\([^)]*\)", "", section)
    found: dict[str, set[int]] = {"table": set(), "fig": set()}
    for kind, numbers in re.findall(
        r"\b(table|fig)(?:ures?|s|\.)? ([\d, -]+)", section, re.IGNORECASE
    ):
        for low, high in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            found[kind.lower()] |= set(range(int(low), int(high or low) + 1))
    assert found["table"] >= set(range(1, 19))
    assert found["fig"] >= {1, 3, 4, 5, 6, 7, 8}


def test_every_reported_failure_in_the_docs_has_its_tests_and_every_test_its_row() -> None:
    tests = DOCS.parent / "tests"
    rows = re.findall(r"^\| (A\d\d) \|.*\| (`.*`) \|$", (DOCS / "lossless.md").read_text(), re.M)
    found: dict[str, set[str]] = {}
    for file in tests.rglob("test_*.py"):
        for number in re.findall(r"^(?:async )?def test_(A\d\d)_", file.read_text(), re.M):
            found.setdefault(number, set()).add(str(file.relative_to(tests)))
    assert [number for number, _ in rows] == sorted(found)
    assert {number: set(re.findall("`(.*?)`", files)) for number, files in rows} == found


def test_the_readmes_pictures_are_those_that_the_demo_hands_out(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that the README names under pictures/ is there once its first command ran."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS.parent / "README.md").read_text()
    assert "eyespan demo --pictures pictures" in text
    assert shell("demo", "--pictures", "pictures").code == 0
    named = re.findall(r"pictures/[\w*.-]+", text)
    assert len(named) > 4
    assert all(list(tmp_path.glob(name)) for name in named)
    assert shell("demo", "--pictures", "pictures").code == 0, "twice is as well as once"
    (tmp_path / "pictures/text-0003.png").write_text("mine")
    assert "nothing was copied" in shell.refused("demo", "--pictures", "pictures")
    assert (tmp_path / "pictures/text-0003.png").read_text() == "mine"


@pytest.mark.slow
def test_the_readmes_first_lines_of_python_and_its_commands_run(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(DOCS.parent / "runs")
    text = (DOCS.parent / "README.md").read_text()
    section = text[text.index("## On the command line") :]
    lines = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[0].splitlines()
    commands = [line[line.index("eyespan ") :] for line in lines]
    assert len(commands) > 7
    for command in commands:
        assert shell(*shlex.split(command, comments=True)[1:]).code == 0, command
    (code,) = [
        code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "tau:" in code
    ]
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    assert "The chart shows" in capsys.readouterr().out
