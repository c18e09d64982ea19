"""Names of the same weights in public checkpoints and in our heads.

Public layouts, by their tensors' names: EAGLE-3 as vLLM, SGLang and SpecForge read it (`midlayer`,
`fc` of three states, `d2t`), the same in speculators' naming (`layers.0`), and the files that the
authors of ViSpec (`imadpt`), DREAM (`layers.1.cross_attn`) and MSD (an EAGLE layer alone) save.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from eyespan.errors import InputError

_ATTENTION: Final = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
_FEED: Final = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}

_BORROWED: Final = ("embed_tokens.weight",)
_DERIVED: Final = re.compile(r"t2d|.*rotary_emb\..*|logsoftmax.*|verifier_.*|d2t")


def _block(public: str, ours: str, attention: str, norms: Mapping[str, str]) -> dict[str, str]:
    """One decoder layer's names."""
    names = {f"{public}.self_attn.{k}": f"{ours}{attention}.{v}" for k, v in _ATTENTION.items()}
    names |= {f"{public}.mlp.{k}": f"{ours}feed.{v}" for k, v in _FEED.items()}
    names |= {f"{public}.{k}": f"{ours}{v}" for k, v in norms.items()}
    return names


_EAGLE_BLOCK: Final = {
    "fc": "join",
    **_block("layers.0", "block.", "attention", {"post_attention_layernorm": "norm_feed"}),
}
_BOTH_NORMS: Final = {"input_layernorm": "norm_attention", "post_attention_layernorm": "norm_feed"}

NAMES: Final[dict[str, dict[str, str]]] = {
    "eagle3": {
        "fc": "mix",
        "norm": "norm",
        "lm_head": "head",
        **_block(
            "layers.0",
            "",
            "attention",
            {
                "input_layernorm": "norm_embed",
                "hidden_norm": "norm_feature",
                "post_attention_layernorm": "norm_feed",
            },
        ),
    },
    "vispec": {
        **_EAGLE_BLOCK,
        "img_fc": "blend",
        "imadpt.q": "compress.queries",
        "imadpt.k_proj": "compress.key",
        "imadpt.v_proj": "compress.value",
        "imadpt.o_proj": "compress.out",
    },
    "msd": _EAGLE_BLOCK,
    "dream": {
        **_block("layers.0", "before.", "attention", {"post_attention_layernorm": "norm_feed"}),
        **{f"layers.1.cross_attn.{k}": f"cross.{v}" for k, v in _ATTENTION.items()},
        **{f"layers.1.mlp.{k}": f"cross.feed.{v}" for k, v in _FEED.items()},
        **{f"layers.1.{k}": f"cross.{v}" for k, v in _BOTH_NORMS.items()},
        "layers.1.cross_attn.q_norm": "cross.norm_query",
        "layers.1.cross_attn.k_norm": "cross.norm_key",
        "layers.1.cross_attn_attn_gate": "cross.gate_attention",
        "layers.1.cross_attn_mlp_gate": "cross.gate_feed",
        **_block("layers.2", "after.", "attention", _BOTH_NORMS),
        "norm": "norm",
    },
}
"""By method: public module or parameter -> ours; `.weight` and `.bias` follow alike."""


def normal_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under one spelling: no wrapper's prefix, `midlayer` as the first layer."""
    named = {}
    for name, value in tensors.items():
        bare = re.sub(r"^(?:(?:module|model|ea_layer|spec_layer)\.)+", "", name)
        named[bare.replace("midlayer.", "layers.0.")] = value
    return named


def method_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Which method a checkpoint belongs to.

    Args:
        tensors: under their normal names.

    Raises:
        InputError: none that is known.
    """
    if "imadpt.q" in tensors:
        return "vispec"
    if "layers.1.cross_attn.q_proj.weight" in tensors:
        return "dream"
    fc = tensors.get("fc.weight")
    if fc is not None and fc.ndim == 2 and "layers.0.self_attn.q_proj.weight" in tensors:
        if fc.shape[1] == 3 * fc.shape[0] and "lm_head.weight" in tensors:
            return "eagle3"
        if fc.shape[1] == 2 * fc.shape[0] and "layers.1.self_attn.q_proj.weight" not in tensors:
            return "msd"
    raise InputError(
        "a public checkpoint",
        found=f"tensors {', '.join(sorted(tensors)[:6])} ...",
        needed="the names of an EAGLE-3, speculators, ViSpec, MSD or DREAM head are needed",
        todo="Point to the folder of the draft head itself.",
    )


def to_ours(method: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a public checkpoint under our names.

    Args:
        method: what `method_of_tensors` said.
        tensors: under their normal names.

    Raises:
        InputError: one that the method does not have.
    """
    table, ours = NAMES[method], {}
    for name, value in tensors.items():
        if name in _BORROWED or _DERIVED.fullmatch(name):
            continue
        module, _, last = name.rpartition(".")
        if module in table and last in ("weight", "bias"):
            ours[f"{table[module]}.{last}"] = value
        elif name in table:
            ours[table[name]] = value
        else:
            raise InputError(
                f"a public {method} checkpoint",
                found=f"a tensor '{name}' of shape {tuple(value.shape)}",
                needed="only what the method has is understood; left out, it would draft wrongly",
                todo="This variant is not supported.",
            )
    adjusted: dict[str, Tensor] = _ADJUST.get(method, _as_is)(ours, tensors)
    return adjusted


def from_ours(ours: Mapping[str, Tensor], *, midlayer: bool) -> dict[str, Tensor]:
    """An EAGLE-3 head's tensors under public names.

    Args:
        ours: its state dict.
        midlayer: as EAGLE-3 files have it; else as speculators does.
    """
    back = {mine: public for public, mine in NAMES["eagle3"].items()}
    tensors = {}
    for name, value in ours.items():
        module, _, last = name.rpartition(".")
        if module in back:
            public = f"{back[module]}.{last}"
            tensors[public.replace("layers.0.", "midlayer.") if midlayer else public] = value
    return tensors


def _as_is(ours: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return ours


def _eagle3(ours: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`d2t` is what is added to a draft id; ours are the target's ids themselves, ascending."""
    size = ours["head.weight"].shape[0]
    offset = tensors.get("d2t", torch.zeros(size, dtype=torch.int64))
    names = torch.arange(size) + offset.long()
    order = names.argsort()
    return {**ours, "names": names[order], "head.weight": ours["head.weight"][order]}


def _vispec(ours: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Learned queries in one row each, and what is added to a blended state is added behind the
    linear map that follows.
    """
    ours["compress.queries"] = ours["compress.queries"].flatten(1)
    added = ours.pop("blend.bias", None)
    if "join.bias" not in ours:
        ours["join.bias"] = ours["join.weight"].new_zeros(ours["join.weight"].shape[0])
    if added is not None:
        reads = ours["join.weight"][:, added.shape[0] :]
        ours["join.bias"] = ours["join.bias"] + (reads.double() @ added.double()).to(added)
    return ours


def _msd(ours: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Some EAGLE layers are saved without the bias of their input map."""
    ours.setdefault("join.bias", ours["join.weight"].new_zeros(ours["join.weight"].shape[0]))
    return ours


_ADJUST: Final[dict[str, Any]] = {"eagle3": _eagle3, "vispec": _vispec, "msd": _msd}
