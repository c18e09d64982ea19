"""The shipped demo model: loads alone in stock transformers and reads its pictures."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from eyespan.demo import KINDS, MODEL_DIR, facts_right, showcase


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy elsewhere, so nothing beside the folder can help it."""
    return Path(shutil.copytree(MODEL_DIR, tmp_path_factory.mktemp("model") / "copy"))


def test_folder_is_small_and_holds_no_pickle(folder: Path) -> None:
    files = list(folder.iterdir())
    assert sum(file.stat().st_size for file in files) < 30_000_000
    assert {file.suffix for file in files} <= {".json", ".jinja", ".safetensors", ".md"}
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_copy_of_the_folder_answers_with_what_the_picture_says(folder: Path) -> None:
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    shown = next(item for item in showcase() if item.kind == "receipt")
    picture = Image.open(shown.path)
    content = [{"type": "image", "image": picture}, {"type": "text", "text": shown.question}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    assert int((inputs["input_ids"] == model.config.image_token_id).sum()) == 144
    with torch.inference_mode():
        out = model.generate(**inputs, max_new_tokens=48)
    text = processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    numbers = tuple(re.findall(r"\d+\.\d\d", shown.answer))[:2]
    assert facts_right(numbers, text) >= 1


def test_showcase_is_two_pictures_of_each_kind() -> None:
    shown = showcase()
    assert sorted(item.kind for item in shown) == sorted([*KINDS, *KINDS])
    for item in shown:
        with Image.open(item.path) as picture:
            assert picture.size == (192, 192)
        assert item.question
        assert item.answer
