"""Whatever is wrong with the input: exit code 2, one line on stderr, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from eyespan.cli import run
from tests.cli import Shell


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["generate"], "PROMPT"),
        (["generate", "one", "two"], "two"),
        (["generate", "--nonsense", "hi"], "--nonsense"),
        (["nonsense"], "nonsense"),
        (["generate", "--drafter", "recup", "hi"], "Did you mean 'recap'?"),
        (["generate", "-o", "noodes=3", "hi"], "Did you mean 'nodes'?"),
        (["generate", "-o", "nodes=many", "hi"], "nodes=many"),
        (["generate", "-o", "nodes=4000", "hi"], "4000"),
        (["generate", "-o", "nodes", "hi"], "KEY=VALUE"),
        (["generate", "-d", "none", "-o", "nodes=3", "hi"], "option of drafter 'none'"),
        (["generate", "--budget", "abc", "hi"], "'auto', 'fixed'"),
        (["generate", "--budget", "128", "hi"], "from 0 to 127"),
        (["generate", "--budget", "-1", "hi"], "from 0 to 127"),
        (["generate", "--budget=--5", "hi"], "'auto', 'fixed'"),
        (["generate", "--budget", "9" * 5000, "hi"], "'auto', 'fixed'"),
        (["generate", "--device", "meta", "hi"], "device 'meta'"),
        (["generate", "--device", "hpu", "hi"], "device 'hpu'"),
        (["generate", "--trace", "x" * 5000, "hi"], "trace file"),
        (["generate", "--images", "x" * 5000, "hi"], "no such folder"),
        (["generate", "--image", "a.png", "--trace", "./a.png", "hi"], "a file of its own"),
        (["generate", "--images", ".", "--out", "a", "--trace", "a", "hi"], "a file of its own"),
        (["generate", "--model", "~nobody-of-that-name/x", "hi"], "no such folder"),
        (["generate", "--model", "/" + "x" * 5000, "hi"], "no such folder"),
        (["generate", "-n", "0", "hi"], "--max-new-tokens"),
        (["generate", "-n", "ten", "hi"], "--max-new-tokens"),
        (["generate", "--dtype", "float8", "hi"], "bfloat16, float16, float32"),
        (["generate", "--device", "toaster", "hi"], "device 'toaster'"),
        (["generate", "--trace", "/no/such/folder/t", "hi"], "trace file"),
        (["generate", "--out", "x", "hi"], "--out without --images"),
        (["generate", "--images", "/no/such/folder", "hi"], "no such folder"),
        (["generate", "--images", "/no/such/*.png", "hi"], "no file of such a name"),
        (["generate", "--model", "/no/such/folder", "hi"], "no such folder"),
        (["demo", "--pictures", "/dev/null/pictures"], "folder of pictures"),
        (["verify"], "--demo"),
        (["verify", "--demo", "1", "--prompt", "hi"], "two kinds at once"),
        (["verify", "--image", "a.png"], "--prompt"),
        (["verify", "--inputs", "/no/such/file"], "No such file"),
        (["inspect", "/no/such/file"], "No such file"),
        (["demo", "--trace", "/no/such/folder/t"], "trace file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_before_a_model_is_loaded(shell: Shell, args: list[str], says: str) -> None:
    assert says in shell.refused(*args)


def test_a_list_of_names_is_said_once(shell: Shell) -> None:
    for asked in (("-o", "zzz=1"), ("-d", "zzz")):
        assert (
            shell.refused("generate", *asked, "hi").count("persist" if "-o" in asked else "sam,")
            == 1
        )


def test_a_folder_without_pictures_is_told_from_an_empty_one(shell: Shell, tmp_path: Path) -> None:
    asked = ("generate", "--images", tmp_path, "hi")
    assert "an empty folder" in shell.refused(*asked)
    (tmp_path / "scan.pdf").touch()
    said = shell.refused(*asked)
    assert "without pictures (1 " in said
    assert ".png" in said
    assert "**" in said


def test_doctor_says_what_it_can_before_it_refuses_a_model(shell: Shell) -> None:
    done = shell("doctor", "/no/such/folder")
    assert done.code == 2
    assert "no such folder" in done.err
    assert "torch" in done.out


def test_a_missing_picture(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.png"
    assert "no such file" in shell.refused("generate", "-m", tiny_folder, "-i", missing, "hi")


def test_a_text_file_that_calls_itself_png(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "note.png"
    file.write_text("not a picture")
    assert "not a picture" in shell.refused("generate", "-m", tiny_folder, "-i", file, "hi")


def test_an_empty_picture(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "empty.png"
    file.touch()
    assert "an empty file" in shell.refused("generate", "-m", tiny_folder, "-i", file, "hi")


def test_a_truncated_jpeg(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.jpg"
    Image.effect_noise((200, 200), 50).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "a damaged picture" in shell.refused("generate", "-m", tiny_folder, "-i", file, "hi")


def test_huge_dimensions(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "huge.png"
    Image.new("1", (9000, 9000)).save(file)
    assert "9000 x 9000" in shell.refused("generate", "-m", tiny_folder, "-i", file, "hi")


def test_a_spelled_out_placeholder(shell: Shell, tiny_folder: Path) -> None:
    assert "'<image>'" in shell.refused("generate", "-m", tiny_folder, "what is <image> here?")


def test_a_spelled_out_placeholder_for_many_pictures(
    shell: Shell, tiny_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    """One wrong question is no failure of a thousand pictures; nothing is written."""
    out = tmp_path / "answers.jsonl"
    asked = ("--images", pictures, "--out", out, "what is <image> here?")
    assert "'<image>'" in shell.refused("generate", "-m", tiny_folder, *asked)
    assert not out.exists() or "answer" not in out.read_text()


def test_more_text_than_the_context_holds(shell: Shell, tiny_folder: Path) -> None:
    assert "context" in shell.refused("generate", "-m", tiny_folder, "a" * 600)


def test_a_stop_string_without_text(shell: Shell, tiny_folder: Path) -> None:
    assert "stop string" in shell.refused("generate", "-m", tiny_folder, "--stop", "", "hi")


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no *.safetensors"),
        ("tokenizer.json", "processor could not be loaded"),
    ],
)
def test_a_model_folder_with_a_part_missing(
    shell: Shell, tiny_folder: Path, tmp_path: Path, part: str, says: str
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "half")
    (folder / part).unlink()
    assert says in shell.refused("generate", "-m", folder, "hi")


def test_a_folder_where_one_picture_belongs(shell: Shell, pictures: Path) -> None:
    assert "--images" in shell.refused("generate", "-i", pictures, "hi")


def test_one_question_and_many_at_once(shell: Shell, pictures: Path) -> None:
    args = ("generate", "-i", pictures / "0.png", "--images", pictures, "hi")
    assert "--image with --images" in shell.refused(*args)


def test_a_model_that_fails_to_load_leaves_an_earlier_trace_alone(
    shell: Shell, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("work of yesterday\n")
    shell.refused("generate", "-m", "/no/such/folder", "--trace", trace, "hi")
    assert trace.read_text() == "work of yesterday\n"


def test_a_failed_run_leaves_no_empty_trace(shell: Shell, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    shell.refused("generate", "-m", "/no/such/folder", "--trace", trace, "hi")
    assert not trace.exists()


@pytest.mark.parametrize(
    "line", ["no json", '{"images": []}', '{"prompt": 3}', '{"prompt": "hi", "image": "a.png"}', ""]
)
def test_inputs_of_another_shape(shell: Shell, tmp_path: Path, line: str) -> None:
    file = tmp_path / "inputs.jsonl"
    file.write_text(line + "\n")
    assert "inputs" in shell.refused("verify", "--inputs", file)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name.png"])
def test_a_picture_by_an_impossible_name(shell: Shell, tiny_folder: Path, name: str) -> None:
    assert "image '" in shell.refused("generate", "-m", tiny_folder, "-i", name, "hi")


def test_a_prompt_of_other_bytes_than_utf8(shell: Shell, tiny_folder: Path) -> None:
    assert "Unicode" in shell.refused("generate", "-m", tiny_folder, "caf\udce9")


def test_a_wrong_option_is_not_every_pictures_fault(
    shell: Shell, tiny_folder: Path, pictures: Path
) -> None:
    said = shell.refused("generate", "-m", tiny_folder, "--images", pictures, "--stop", "", "hi")
    assert "stop string" in said


@pytest.mark.parametrize(
    "index", ["{broken", "[]", '{"weight_map": 5}', '{"weight_map": {"a": 5}}']
)
def test_a_broken_index_of_weights(
    shell: Shell, tiny_folder: Path, tmp_path: Path, index: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors.index.json").write_text(index)
    assert "its list of files" in shell.refused("generate", "-m", folder, "hi")


def test_end_ids_that_no_text_holds(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    for ends, code in ((-1, 0), ([2, 10**9], 0), ("end", 2)):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        assert shell("generate", "-m", folder, "-n", 4, "hi").code == code


def test_a_full_disk_behind_stdout(
    shell: Shell, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("a device that is always full is needed")
    full = open("/dev/full", "w")  # noqa: SIM115 - closing it fails, as it must
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        done = shell("generate", "-m", tiny_folder, "-n", 2, "hi")
    with suppress(OSError):
        full.close()
    assert done.code == 2
    assert done.err.startswith("eyespan: output: No space left")
    assert done.err.count("\n") == 1


def test_a_trace_without_room(shell: Shell, tiny_folder: Path, pictures: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("a device that is always full is needed")
    args = ("generate", "-m", tiny_folder, "-n", 4, "--trace", "/dev/full", "hi")
    done = shell(*args)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.out.strip()  # the answer itself was given
    assert "No space left" in done.err
    assert "No space left" in shell(*args, "--images", pictures).err


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["generate", "--help"]], ids=" ".join)
def test_a_reader_that_went_away_ends_the_tool_silently(args: list[str]) -> None:
    """As behind `| head -1`; the end of a process writes what its buffer still holds."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "eyespan", *args]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_reader_that_goes_in_the_midst_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with suppress(BrokenPipeError), os.fdopen(writes, "w", buffering=1) as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert run(["--help"]) == 141
