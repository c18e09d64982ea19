"""Loading: a folder's missing part is one sentence, and what trees do not fit is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from eyespan.errors import InputError, UnsupportedTarget
from eyespan.target import HuggingFaceTarget, load_target, self_test
from eyespan.target.families import FAMILIES, family_of
from eyespan.testing import (
    SEEING,
    VOCAB_SIZE,
    tiny_images,
    tiny_model,
    tiny_processor,
    tiny_target,
)
from eyespan.types import Needs


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    tiny_model("llava").save_pretrained(folder)
    tiny_processor("llava").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A complete copy to take things out of."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.mark.parametrize("family", [*SEEING, "gpt2"])
def test_a_saved_folder_loads_and_says_the_same(family: str, tmp_path: Path) -> None:
    tiny_model(family, dtype=torch.bfloat16).save_pretrained(tmp_path)
    tiny_processor(family).save_pretrained(tmp_path)
    target = load_target(tmp_path)
    self_test(target)
    assert target.info.dtype == "float32", "a bfloat16 folder is up-cast on a CPU"
    assert target.info.name == str(tmp_path)
    expected = HuggingFaceTarget(
        tiny_model(family, dtype=torch.bfloat16).float(), tiny_processor(family)
    )
    images = tiny_images(2) if family in SEEING else []
    ours = target.prefill(target.prepare("What?", images), Needs())[1]
    theirs = expected.prefill(expected.prepare("What?", images), Needs())[1]
    assert torch.equal(ours.logits, theirs.logits)
    assert load_target(tmp_path, attention="eager", dtype="bfloat16").info.attention == "eager"


PARTS = {
    "config.json": "no config.json",
    "model.safetensors": r"no \*.safetensors",
    "tokenizer.json": "its processor could not be loaded",
    "processor_config.json": "no preprocessor_config.json",
}


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(folder: Path, part: str) -> None:
    (folder / part).unlink()
    with pytest.raises(InputError, match=PARTS[part]) as error:
        load_target(folder)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None


def test_no_tokenizer_at_all(folder: Path) -> None:
    for part in folder.glob("tokenizer*"):
        part.unlink()
    with pytest.raises(InputError, match=r"no tokenizer.json"):
        load_target(folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin"):
        load_target(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="no model-00002-of-00002"):
        load_target(folder)


def test_missing_tensors_are_not_drawn_at_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if "q_proj" in name)
    del weights[gone]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="no weights for"):
        load_target(folder)


@pytest.mark.parametrize("part", ["config.json", "model.safetensors"])
def test_damaged_files_are_one_sentence(folder: Path, part: str) -> None:
    (folder / part).write_bytes(b"{ not json")
    with pytest.raises(InputError, match="could not be loaded"):
        load_target(folder)


def test_a_tokenizer_that_is_another_models(folder: Path) -> None:
    """Its word for a picture is not the model's: no forward may find out."""
    for part in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / part).read_text()
        (folder / part).write_text(text.replace("<image>", "<picture>"))
    target = load_target(folder)
    assert len(target.prepare("What is this?")) > 0
    with pytest.raises(InputError, match="nothing that the model reads as a picture"):
        target.prepare("What is this?", tiny_images(1))


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    for name in (tmp_path / "nothing", "./nothing", "a/b/c", "", "~/no/model"):
        with pytest.raises(InputError, match="no such folder"):
            load_target(name)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="a file"):
        load_target(str(tmp_path / "file"))


def test_remote_code_is_never_run(folder: Path) -> None:
    """A folder whose own code would write a file when imported."""
    marker = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "evil"
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="could not be loaded"):
        load_target(folder)
    assert not marker.exists()


def test_A05_unknown_vision_models_are_refused_with_the_known_ones() -> None:
    config = transformers.AutoConfig.for_model("aria")
    with pytest.raises(UnsupportedTarget, match="llava_next") as error:
        family_of(config)
    for row in FAMILIES:
        assert all(kind in str(error.value) for kind in row.model_types)
    assert "one row" in str(error.value)


def test_attention_that_takes_no_tree_mask_is_refused() -> None:
    model = tiny_model("llama")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UnsupportedTarget, match="attn_implementation='sdpa'"):
        HuggingFaceTarget(model)


@pytest.mark.filterwarnings("ignore")
def test_dynamic_int8_is_refused() -> None:
    """Its activation scale is one per forward, so a node's logits depend on its siblings."""
    quantization = pytest.importorskip("torch.ao.quantization")
    model = quantization.quantize_dynamic(tiny_model("llama"), {torch.nn.Linear}, torch.qint8)
    with pytest.raises(UnsupportedTarget, match="activation scale"):
        HuggingFaceTarget(model)


def refused_configs() -> dict[str, Any]:
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return {
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM.from_config(
            transformers.T5Config(**sizes, d_kv=16)
        ),
        "without a language-model head": tiny_model("llama").model,
    }


@pytest.mark.parametrize("reason", ["encoder-decoder", "without a language-model head"])
def test_models_of_another_shape_are_refused(reason: str) -> None:
    with pytest.raises(UnsupportedTarget, match=reason):
        HuggingFaceTarget(refused_configs()[reason])


def test_info_of_a_qwen_target() -> None:
    info = tiny_target("qwen2_5_vl").info
    assert info.family == "qwen_vl"
    assert info.media_ids == {0, 4, 5, 6, 7}
    assert info.eos_ids == {2}
    assert (info.vocab_size, info.hidden_size, info.layers) == (VOCAB_SIZE, 64, 2)
    assert (info.max_context, info.dtype, info.device) == (512, "float32", "cpu")
    assert (info.attention, info.masks) == ("sdpa", "explicit")


def test_a_padding_id_that_ends_answers_is_text() -> None:
    model = tiny_model("llama")
    model.config.pad_token_id = 2
    target = HuggingFaceTarget(model)
    assert target.info.media_ids == frozenset()
    assert target.info.eos_ids == {2}


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 512),
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 512),
        (
            {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 128,
            },
            128,
        ),
    ],
)
def test_context_ends_where_positions_would_be_rescaled(rope: dict[str, Any], longest: int) -> None:
    """Past that length the longest *draft* position would change the positions of the prefix."""
    config = transformers.LlamaConfig(**tiny_model("llama").config.to_dict())
    config.rope_parameters = rope
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert HuggingFaceTarget(model).info.max_context == longest


def test_windows_that_only_the_layers_know_are_refused() -> None:
    """Short texts cannot show them: the self-test would pass and longer answers would differ."""
    config = transformers.GPTNeoConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        window_size=256,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedTarget, match="a window inside its attention layers"):
        HuggingFaceTarget(model)
