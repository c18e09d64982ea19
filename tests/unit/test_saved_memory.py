"""Saved memories that do not fit, are damaged or are none: refused, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyespan import saved_memory
from eyespan.artifacts import write_artifact
from eyespan.drafters import make_drafter
from eyespan.drafters.base import Drafter
from eyespan.errors import InputError, UnsupportedRequest
from eyespan.generation import Engine
from eyespan.memory import Memory
from eyespan.saved_memory import load_memory, save_memory
from eyespan.target import HuggingFaceTarget
from eyespan.target.identity import differs, identity_of
from eyespan.testing import tiny_model, tiny_target, tiny_tokenizer
from tests.property.test_conformance import answer, toy_drafter

TARGET = {"name": "toy", "layers": 2, "weights": [0.5, -1.0]}
PROMPT = [3, 4, 5, 3, 4]


def saved(tmp_path: Path, name: str = "recap", **options: Any) -> tuple[Drafter, Path]:
    drafter = toy_drafter(name, **options)
    answer(drafter, PROMPT, 30)
    save_memory(tmp_path / "memory", drafter, "a", TARGET)
    return drafter, tmp_path / "memory"


def test_a_memory_is_written_over_the_old_one(tmp_path: Path) -> None:
    drafter, folder = saved(tmp_path)
    answer(drafter, [6, 7], 30)
    save_memory(folder, drafter, "a", TARGET)
    assert len(list(folder.glob("*.safetensors"))) == 1
    assert {path.name.split("-")[0] for path in folder.iterdir()} == {"manifest.json", "tensors"}


def spoil_tensors(folder: Path) -> None:
    file = next(folder.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def edit(folder: Path, where: str = "", **changes: object) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    (manifest[where] if where else manifest).update(changes)
    file.write_text(json.dumps(manifest))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (spoil_tensors, "another content"),
    "no tensors": (lambda f: next(f.glob("*.safetensors")).unlink(), "no readable tensor file"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "no readable manifest.json"),
    "a list": (lambda f: (f / "manifest.json").write_text("[1]"), "another shape"),
    "half a manifest": (lambda f: (f / "manifest.json").write_text("{"), "no readable manifest"),
    "a long manifest": (lambda f: (f / "manifest.json").write_text(" " * (2 << 20)), "more than"),
    "another format": (lambda f: edit(f, format=99), "format 99"),
    "another kind": (lambda f: edit(f, kind="drafter"), "'drafter'"),
    "a path": (lambda f: edit(f, file="../x.safetensors"), "beside it"),
    "another drafter's": (lambda f: edit(f, "about", memory="rows of stand"), "'rows of stand'"),
    "no settings": (lambda f: edit(f, "about", settings=3), "does not say what it holds"),
    "another target": (
        lambda f: edit(f, "about", target={**TARGET, "layers": 3}),
        "another target: layers was 3, not 2",
    ),
    "other weights": (
        lambda f: edit(f, "about", target={**TARGET, "weights": [0.5, 1.0]}),
        "another target: a weight was 1.0, not -1.0",
    ),
    "no target": (lambda f: edit(f, "about", target=None), "not recorded"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_memory_that_cannot_be_used_is_refused_and_nothing_is_lost(
    damage: str, tmp_path: Path
) -> None:
    twin, folder = saved(tmp_path)
    drafter = toy_drafter("recap")
    answer(drafter, PROMPT, 30)
    spoil, found = DAMAGES[damage]
    spoil(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match=found) as refused:
        load_memory(folder, drafter, "a", TARGET)
    assert refused.value.needed
    assert refused.value.todo
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert answer(drafter, PROMPT, 30) == answer(twin, PROMPT, 30)


BAD_TENSORS: dict[str, dict[str, Any]] = {
    "recap": {"u.ids": np.full((1, 8), 99, np.int32)},
    "stand": {"1.probs": np.full((1, 8), np.nan, np.float32)},
    "suffix": {"text": np.array([3, 99], np.int32)},
    "lookahead": {"parents": np.array([5], np.int32)},
    "token_recycling": {"rows": np.zeros((1, 7), np.int32)},
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_arrays_that_are_no_memory_are_refused(name: str, tmp_path: Path) -> None:
    """A whole file with the right words in it, and nonsense behind them."""
    twin, _ = saved(tmp_path, name)
    drafter, _ = saved(tmp_path, name)
    memory: Memory = drafter.export_memory("a")  # type: ignore[attr-defined]
    ((field, array),) = BAD_TENSORS[name].items()
    for tensors in (
        {**memory.tensors, field: array},
        {key: value for key, value in memory.tensors.items() if key != field},
        {**memory.tensors, field: memory.tensors[field][..., None]},
    ):
        about = {"target": TARGET, "memory": memory.kind, "settings": dict(memory.settings)}
        write_artifact(tmp_path / "bad", kind=saved_memory.KIND, about=about, tensors=tensors)
        with pytest.raises(InputError, match="nothing that"):
            load_memory(tmp_path / "bad", drafter, "a", TARGET)
    assert answer(drafter, PROMPT, 30) == answer(twin, PROMPT, 30)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, "lookahead")
    with pytest.raises(InputError, match="branch_length was 12, not 5"):
        load_memory(folder, toy_drafter("lookahead", branch_length=5), "a", TARGET)
    with pytest.raises(InputError, match="more nodes than max_nodes"):
        load_memory(folder, toy_drafter("lookahead", max_nodes=26), "a", TARGET)
    _, folder = saved(tmp_path, "stand")
    with pytest.raises(InputError, match="row_size was 4, not 8"):
        load_memory(folder, toy_drafter("stand", row_size=8), "a", TARGET)
    with pytest.raises(InputError, match="no memory outlives a request"):
        load_memory(folder, toy_drafter("stand", persist="request"), "a", TARGET)


def test_a_memory_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, folder = saved(tmp_path)
    monkeypatch.setattr(saved_memory, "LARGEST", 100)
    with pytest.raises(InputError, match="more than 100"):
        load_memory(folder, drafter, "a", TARGET)


def test_a_smaller_memory_takes_what_was_written_last(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    small = toy_drafter("recap", max_rows=2)
    load_memory(folder, small, "a", TARGET)
    assert len(small.export_memory("a").tensors["u.ids"]) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["none", "prompt_lookup", "tree_recycling"])
def test_a_drafter_without_a_memory_says_so(name: str, tmp_path: Path) -> None:
    for use in (save_memory, load_memory):
        with pytest.raises(UnsupportedRequest, match="keeps nothing between requests"):
            use(tmp_path, make_drafter(name, vocab_size=16), None, TARGET)
    with pytest.raises(InputError, match=r"keeps nothing|remembers nothing"):
        save_memory(tmp_path, make_drafter("sam", vocab_size=16, fallback=name), None, TARGET)


def test_an_empty_scope_and_a_strange_folder_are_refused(tmp_path: Path) -> None:
    drafter, _ = saved(tmp_path)
    with pytest.raises(InputError, match="remembers nothing of it"):
        save_memory(tmp_path / "b", drafter, "b", TARGET)
    request_only = toy_drafter("recap", persist="request")
    answer(request_only, PROMPT, 30)
    with pytest.raises(InputError, match="remembers nothing of it"):
        save_memory(tmp_path / "b", request_only, "a", TARGET)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("diary")
    write_artifact(tmp_path / "head", kind="drafter", about={}, tensors={})
    for folder in ("letters", "head"):
        before = sorted(path.name for path in (tmp_path / folder).iterdir())
        with pytest.raises(InputError):
            save_memory(tmp_path / folder, drafter, "a", TARGET)
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == before


def test_engines_save_and_load(tmp_path: Path) -> None:
    target = tiny_target("llama")
    engine = Engine(target, "recap", budget="fixed", max_rows=64)
    engine.generate("abc abc abc", max_new_tokens=20, scope="mine")
    engine.save_memory(tmp_path / "memory", scope="mine")
    other = Engine(tiny_target("llama", dtype=torch.bfloat16), "recap", budget="fixed")
    other.load_memory(tmp_path / "memory")
    assert other.drafter.is_warm(None)
    stranger = Engine(tiny_target("llama", seed=1), "recap", budget="fixed")
    with pytest.raises(InputError, match="another target: a weight was"):
        stranger.load_memory(tmp_path / "memory")
    assert not stranger.drafter.is_warm(None)
    engine.new_task()
    assert engine.drafter.is_warm("mine"), "persist='stream' knows no tasks"


def test_what_makes_another_target() -> None:
    here = identity_of(tiny_target("llama"))
    assert differs(here, json.loads(json.dumps(here))) is None
    assert differs(here, {**here, "name": "moved"}) is None
    assert "hidden_size" in str(differs(here, {**here, "hidden_size": 1}))
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["new"])
    words = identity_of(HuggingFaceTarget(tiny_model("llama"), tokenizer, name="words"))
    assert str(differs(here, words)).startswith("vocabulary was")
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.05)
    tuned = identity_of(HuggingFaceTarget(model, tiny_tokenizer(), name="tuned"))
    assert str(differs(here, tuned)).startswith("a weight was")
