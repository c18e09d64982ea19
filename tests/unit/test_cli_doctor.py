"""Doctor says what is here and what a model can do."""

from __future__ import annotations

from pathlib import Path

import torch

from eyespan.drafters import DRAFTERS
from eyespan.testing import tiny_target
from tests.cli import Shell


def test_the_machine(shell: Shell) -> None:
    done = shell("doctor")
    assert done.code == 0
    for word in (torch.__version__, "transformers", "core", *DRAFTERS):
        assert word in done.out


def test_a_model_that_works(shell: Shell, tiny_folder: Path) -> None:
    done = shell("doctor", tiny_folder)
    assert done.code == 0
    text = " ".join(done.out.split())
    for words in (
        "family llava: LLaVA", "drafts trees", "takes text, pictures", "cache all tokens;",
        "positions one by one", "2 layers, width 64", "float32, cpu", "attention sdpa",
        "context 512 tokens", "media ids 0, 3", "end ids 2", "self-test passed", "64: ",
        "speculation works", "verification a tree in one pass", "batches all rows in one pass",
        "videos none: it takes no videos", "static cache taken where",
    ):  # fmt: skip
        assert words in text


def test_a_model_that_does_not(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    done = shell("doctor", tmp_path)
    assert done.code == 1
    assert "verification refused speculation cannot: " in " ".join(done.out.split())


def test_a_model_that_watches(shell: Shell, tmp_path: Path) -> None:
    target = tiny_target("qwen2_5_vl")
    target.model.save_pretrained(tmp_path)
    target.processor.save_pretrained(tmp_path)
    text = " ".join(shell("doctor", tmp_path).out.split())
    assert "videos files, folders and lists of frames, or tensors" in text
    assert "takes text, pictures, videos" in text
