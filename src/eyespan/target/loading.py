"""Load a target: the embedded demo model, a folder, a hub id, or a live model.

Weights are read from safetensors only and code from nowhere but transformers itself. Every part a
folder lacks is one sentence before anything large is read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as hf_logging

from eyespan.errors import ConfigError, EyespanError, InputError, UnsupportedTarget
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.families import family_of
from eyespan.target.processors import load_processor

DEMO = "demo"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_LOAD_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ImportError,
    AttributeError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)


def load_target(
    model: str | Path | torch.nn.Module,
    *,
    processor: Any = None,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device | None = None,
    attention: str | None = None,
    compiled: bool = False,
) -> HuggingFaceTarget:
    """Make a target ready.

    Args:
        model: "demo", a folder, a hub id, or a live transformers model. A live model is used as
            it is: dtype, device and attention stay, its training flag is off until `detach()`.
        processor: for a live model, its processor or tokenizer.
        dtype: of the weights, e.g. torch.bfloat16 or "bfloat16". Default: float32 on a CPU (most
            only emulate bfloat16, so such a folder is up-cast), the folder's own elsewhere.
        device: default: the first GPU if there is one, else the CPU.
        attention: "sdpa" or "eager"; default: transformers' choice. In bfloat16 on a CPU, eager
            gives trees and single steps the very same bits.
        compiled: run single sequences in compiled passes of fixed widths (see `static.py`).

    Raises:
        InputError: a missing folder or part of it, or no model at all.
        ConfigError: a dtype or device that cannot be used here.
        UnsupportedTarget: a model that trees do not fit, or that cannot be compiled here.
    """
    target = _loaded(model, processor, dtype, device, attention)
    return target.compile_passes() if compiled else target


def _loaded(
    model: str | Path | torch.nn.Module,
    processor: Any,
    dtype: torch.dtype | str | None,
    device: str | torch.device | None,
    attention: str | None,
) -> HuggingFaceTarget:
    if isinstance(model, torch.nn.Module) and hasattr(model, "config"):
        return HuggingFaceTarget(model, processor)
    if not isinstance(model, (str, Path)):
        raise InputError(
            f"model {model!r:.60}",
            found=f"a {type(model).__name__}",
            needed="a folder, a hub id or a live transformers model is needed",
            todo="Pass one of these; 'demo' is the model that comes with eyespan.",
        )
    return _from_files(model, dtype, device, attention)


def _from_files(
    model: str | Path,
    dtype: torch.dtype | str | None,
    device: str | torch.device | None,
    attention: str | None,
) -> HuggingFaceTarget:
    place = _place(device)
    _check_dtype(dtype)
    source = _source(model)
    config = _load(source, "its config", lambda: _config(source))
    family = family_of(config)
    if not family.sees and config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedTarget(
            f"model '{source}'",
            found=f"model type '{config.model_type}'",
            needed="a decoder-only language model or a vision-language model is needed",
            todo="Use the model's own library.",
        )
    if os.path.isdir(source):
        _load(source, "its list of files", lambda: _check_folder(Path(source), family.sees))
    kind = (
        transformers.AutoModelForImageTextToText
        if family.sees
        else transformers.AutoModelForCausalLM
    )
    processor = _load(source, "its processor", lambda: load_processor(source, config, family))
    with _quiet_unless_watched():
        loaded, report = _load(
            source,
            "its weights",
            lambda: kind.from_pretrained(
                source,
                config=config,
                dtype=dtype or (torch.float32 if place.type == "cpu" else "auto"),
                attn_implementation=attention,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            ),
        )
    _check_complete(source, report)
    target: HuggingFaceTarget = _load(
        source,
        "what it holds",
        lambda: HuggingFaceTarget(loaded.to(place), processor, name=str(model)),
    )
    return target


def _place(device: str | torch.device | None) -> torch.device:
    """A device that this machine has."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tried = torch.empty(0, device=device)
        if tried.is_meta:
            raise RuntimeError("it holds no data")
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        raise ConfigError(
            f"device '{device}'",
            found="torch cannot use it on this machine",
            needed="a device such as cpu or cuda:0 is needed",
            todo="See `eyespan doctor`, or leave the device out.",
        ) from error
    return torch.device(device)


def _check_dtype(dtype: object) -> None:
    """Refuse what weights cannot be computed in; "auto" is the checkpoint's own."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    usable = isinstance(found, torch.dtype) and found.is_floating_point and found.itemsize > 1
    if not usable and dtype not in (None, "auto"):
        raise ConfigError(
            f"dtype {dtype!r:.40}",
            found="no type that a model computes in",
            needed="bfloat16, float16 or float32 is needed",
            todo="Pass one of these, or leave dtype out.",
        )


@contextmanager
def _quiet_unless_watched() -> Iterator[None]:
    """Progress bars of the weights only where somebody can see them move."""
    hide = hf_logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if hide:
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            hf_logging.enable_progress_bar()


def _check_complete(source: str, report: Any) -> None:
    """Refuse weights that do not fill the model; transformers would draw the rest at random."""
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise _missing(source, f"weights for {lacking[0]} and {len(lacking) - 1} more", "all are")


def _source(model: str | Path) -> str:
    """A folder's path or a hub id."""
    if model == DEMO:
        return str(files("eyespan") / "demo" / "model")
    text = str(model)
    looks_like_path = isinstance(model, Path) or text.startswith((".", "/", "~"))
    path = os.path.expanduser(text)  # os.path: a name too long for the system is no folder either
    if text.strip() and os.path.isdir(path):
        return path
    is_file = os.path.isfile(path)
    if looks_like_path or is_file or text.count("/") > 1 or not text.strip():
        raise InputError(
            f"model '{model}'",
            found="a file" if is_file else "no such folder",
            needed="a folder with config.json and *.safetensors is needed",
            todo="Check the path; 'demo' is the model that comes with eyespan.",
        )
    return text


def _config(source: str) -> Any:
    if os.path.isdir(source) and not (Path(source) / "config.json").is_file():
        raise _missing(source, "config.json", "it says what the model is")
    return transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)


def _check_folder(folder: Path, sees: bool) -> None:
    """Name the first part a folder lacks."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        for shard in shards:
            if not (folder / shard).is_file():
                raise _missing(folder, shard, "the index lists it")
    elif not any(folder.glob("*.safetensors")):
        others = ", ".join(sorted(p.name for p in folder.glob("*.bin"))) or "none"
        raise _missing(folder, "*.safetensors", f"weights are read from nothing else ({others})")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise _missing(folder, "tokenizer.json", "text becomes ids through it")
    if sees and not any((folder / name).is_file() for name in _PROCESSOR_FILES):
        raise _missing(folder, "preprocessor_config.json", "pictures become pixels through it")


def _missing(folder: str | Path, part: str, why: str) -> InputError:
    return InputError(
        f"model folder '{folder}'",
        found=f"no {part}",
        needed=f"it is needed: {why}",
        todo="Download or save the model again, all files of it.",
    )


def _load(source: str, part: str, load: Any) -> Any:
    """Run one loading step; its library's errors become one sentence."""
    try:
        return load()
    except EyespanError:
        raise
    except _LOAD_ERRORS as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise InputError(
            f"model '{source}'",
            found=f"{part} could not be loaded ({reason})",
            needed="a complete folder in transformers' format, or a hub id, is needed",
            todo="Check the name and the files; remote code and pickled weights are never loaded.",
        ) from None
