"""Published draft heads: read offline into our format, and EAGLE-3 heads written back out.

Nothing is downloaded, and `*.bin` files are read with `weights_only`, which builds tensors and runs
nothing else. What a checkpoint leaves open is asked for, never guessed: above all which states its
layer numbers mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from eyespan.artifacts import read_artifact, swap_in
from eyespan.drafters._checkpoint import KIND, head_folder, write_head
from eyespan.errors import ConfigError, InputError, unknown_name, unwritable
from eyespan.target.weights import TargetWeights
from eyespan.train.layouts import from_ours, method_of_tensors, normal_names, to_ours
from eyespan.train.run import method_of

LAYOUTS: Final = ("eagle3", "speculators")
_CLOSE = 0.02
_ROWS = 256


def convert(
    source: Path,
    to: Path,
    weights: TargetWeights,
    *,
    read_layers: tuple[int, ...] | None = None,
) -> str:
    """Write a public checkpoint as a drafter of ours.

    Args:
        source: its folder: `config.json` and `*.safetensors` or `*.bin`.
        to: folder to write.
        weights: of the target it drafts for.
        read_layers: for EAGLE-3, the layers whose entering states it reads, where its config names
            others than the usual ones.

    Returns:
        One line about what was written.

    Raises:
        InputError: no checkpoint, a variant that our heads do not have, or one of another target.
    """
    config, raw = read_public(source)
    tensors = normal_names(raw)
    method = method_of_tensors(tensors)
    _check_embedding(tensors, weights)
    ours = to_ours(method, tensors)
    options = _options(method, config, ours, weights)
    if method == "eagle3":
        options["read_layers"] = read_layers or _read_layers(config, weights.shape.layers)
    kind = method_of(method)
    shape = kind.config_type.for_target(weights.shape, **options)
    head = kind.head_type(shape)
    _fill(head, ours, method)
    half = all(t.dtype == torch.float16 for t in ours.values() if t.is_floating_point())
    write_head(
        to,
        head,
        weights.record(),
        dtype="float16" if half else "float32",
        training={"converted": method, "from": source.name},
    )
    return f"{to}: {method} for {weights.shape.name}, {len(ours)} tensors from {source}"


def export(source: Path, to: Path, layout: str) -> str:
    """Write an EAGLE-3 drafter of ours in a public layout.

    Args:
        source: a trained drafter, or a training run's folder.
        to: folder to write.
        layout: "eagle3" (vLLM, SGLang, SpecForge) or "speculators".

    Returns:
        One line about what was written.

    Raises:
        ConfigError: another layout, or a method that it cannot express.
        OutputError: the folder cannot be written.
    """
    if layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    saved = read_artifact(head_folder(os.fspath(source)), kind=KIND)
    method, shape, target = (saved.about[name] for name in ("method", "config", "target"))
    if method != "eagle3":
        raise ConfigError(
            f"exporting '{source}' as {layout}",
            found=f"a drafter of method '{method}'",
            needed="the layout expresses EAGLE-3 alone",
            todo="Serve it with eyespan.",
        )
    layers = tuple(shape["read_layers"])
    usual = usual_layers(target["layers"])
    if layout == "eagle3" and layers != usual:
        raise ConfigError(
            f"exporting '{source}' as eagle3",
            found=f"a head that reads the states entering layers {layers}",
            needed=f"servers that read this layout take {usual} unless told otherwise, and differ "
            "in whether a number means entering or leaving a layer",
            todo="Use layout speculators, which says it.",
        )
    ours = {name: torch.from_numpy(value) for name, value in saved.tensors.items()}
    tensors = from_ours(ours, midlayer=layout == "eagle3")
    names = ours["names"]
    tensors["d2t"] = names - torch.arange(len(names))
    tensors["t2d"] = torch.zeros(shape["vocab_size"], dtype=torch.bool)
    tensors["t2d"][names] = True
    config = _speculators(shape, target) if layout == "speculators" else _eagle3(shape)
    try:
        to.mkdir(parents=True, exist_ok=True)
        swap_in(to / "model.safetensors", save({k: v.contiguous() for k, v in tensors.items()}))
        swap_in(to / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    except OSError as error:
        raise unwritable(f"checkpoint in '{to}'", error) from error
    return f"{to}: {layout} layout, {len(tensors)} tensors"


def read_public(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A public checkpoint's config (empty without one) and tensors.

    Raises:
        InputError: nothing readable there, or a pickle that holds more than tensors.
    """
    config: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    try:
        if (folder / "config.json").is_file():
            config = dict(json.loads((folder / "config.json").read_text("utf-8")))
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        if not tensors:
            for file in sorted([*folder.glob("*.bin"), *folder.glob("*.pt")]):
                held = torch.load(file, map_location="cpu", weights_only=True)
                if not isinstance(held, dict):
                    raise ValueError(f"a {type(held).__name__} in '{file.name}'")
                tensors |= held
        if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError("no tensors by name")
    except Exception as error:  # torch.load raises whatever a broken or hostile file leads to
        if not isinstance(error, (OSError, ValueError, TypeError, RuntimeError, SafetensorError)):
            reason = f"a file that is no plain table of tensors ({type(error).__name__})"
        else:
            reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise InputError(
            f"checkpoint '{folder}'",
            found=reason,
            needed="*.safetensors, or *.bin that holds tensors by name and nothing else, is needed",
            todo="Download the head again, all files of it.",
        ) from None
    return config, tensors


def usual_layers(layers: int) -> tuple[int, int, int]:
    """Layers whose entering states EAGLE-3 reads unless told otherwise."""
    return (2, layers // 2, layers - 3)


def _options(
    method: str, config: Mapping[str, Any], ours: Mapping[str, Tensor], weights: TargetWeights
) -> dict[str, Any]:
    """Fields of our config that the checkpoint says, in its tensors or its config."""
    inner = {**config, **config.get("transformer_layer_config", {})}
    rope = inner.get("rope_parameters") or inner.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope") or config.get("norm_before_residual"):
        raise InputError(
            f"a public {method} checkpoint",
            found=f"rotary positions of type '{kind}'"
            if kind not in ("default", "mrope")
            else "a norm before its residual (norm_before_residual)",
            needed="plain rotary positions and the residual before the norm are supported",
            todo="This variant is not supported.",
        )
    prefix = {"eagle3": "", "dream": "before."}.get(method, "block.")
    query, key = (ours[f"{prefix}attention.{name}.weight"] for name in ("query", "key"))
    heads = int(inner.get("num_attention_heads", weights.shape.heads))
    head_dim = int(inner.get("head_dim") or query.shape[0] // heads)
    options: dict[str, Any] = {
        "heads": heads,
        "head_dim": head_dim,
        "kv_heads": key.shape[0] // head_dim,
        "intermediate_size": ours[f"{prefix}feed.gate.weight"].shape[0],
        "qkv_bias": f"{prefix}attention.query.bias" in ours,
    }
    said = {
        "rms_eps": inner.get("rms_norm_eps"),
        "rope_theta": inner.get("rope_theta", rope.get("rope_theta")),
    }
    options |= {name: float(value) for name, value in said.items() if value is not None}
    if method == "eagle3":
        options["draft_vocab_size"] = ours["head.weight"].shape[0]
    if method == "vispec":
        options["slots"] = ours["compress.queries"].shape[0]
    return options


def _read_layers(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Layers whose entering states an EAGLE-3 head reads. Configs that name layers disagree about
    what a number means, so only the usual ones are taken without asking.
    """
    usual = usual_layers(layers)
    inner = config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    named = tuple(config.get(key) or inner.get(key) or ())
    if named in ((), usual) or named == tuple(layer - 1 for layer in usual):
        return usual
    raise InputError(
        "a public eagle3 checkpoint",
        found=f"{key} = {list(named)}",
        needed="some servers take these numbers for states entering a layer, others for states "
        "leaving it; acceptance collapses when they are mixed up",
        todo="Say which entering states it reads: --read-layers 2,16,29.",
    )


def _check_embedding(tensors: Mapping[str, Tensor], weights: TargetWeights) -> None:
    """A head that brings an embedding table must bring the target's: ours borrow that one."""
    own = tensors.get("embed_tokens.weight")
    if own is None:
        return
    table = weights.embedding
    same = own.shape[1] == table.shape[1]
    if same:
        rows = torch.arange(0, min(len(own), len(table)), max(1, len(own) // _ROWS))
        apart = own[rows].float() - table[rows.to(table.device)].float().cpu()
        same = float(apart.abs().mean()) <= _CLOSE * float(own[rows].float().abs().mean())
    if not same:
        raise InputError(
            f"a public checkpoint for '{weights.shape.name}'",
            found=f"an embedding table of its own, {tuple(own.shape)}",
            needed=f"the target's table, {tuple(table.shape)}, is needed",
            todo="Name the target that it was trained for.",
        )


def _fill(head: torch.nn.Module, ours: Mapping[str, Tensor], method: str) -> None:
    """Every weight from the checkpoint, none left at random."""
    expected = head.state_dict()
    for name in sorted(expected.keys() | ours.keys()):
        have = tuple(ours[name].shape) if name in ours else None
        need = tuple(expected[name].shape) if name in expected else None
        if have != need:
            raise InputError(
                f"a public {method} checkpoint",
                found=f"'{name}' of shape {have}",
                needed=f"shape {need} is needed for this target",
                todo="Name the target that it was trained for, or use another checkpoint.",
            )
    head.load_state_dict(dict(ours))


def _llama(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The head's layer as a Llama config."""
    return {
        "model_type": "llama",
        "hidden_size": shape["hidden_size"],
        "intermediate_size": shape["intermediate_size"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": shape["rms_eps"],
        "rope_theta": shape["rope_theta"],
        "attention_bias": shape["qkv_bias"],
        "vocab_size": shape["vocab_size"],
        "tie_word_embeddings": False,
    }


def _eagle3(shape: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_llama(shape),
        "draft_vocab_size": shape["draft_vocab_size"],
    }


def _speculators(shape: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    proposal = {"proposal_type": "greedy", "speculative_tokens": shape["depth"]}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": shape["draft_vocab_size"],
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(shape["read_layers"]),
        "transformer_layer_config": _llama(shape),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target["name"], "architectures": []},
        },
    }
