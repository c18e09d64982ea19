"""What a trained drafter takes from its target: the shape of a decoder layer, the embedding table
and the language-model head, and a few weights by which the target is known again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eyespan.errors import UnsupportedTarget

STATE_MEANING = (
    "0 is what enters the decoder, i the state entering decoder layer i before its norm, -1 the "
    "state after the final norm, as the language-model head reads it"
)
"""What the numbers of `Needs.hidden_layers` stand for. A drafter fed with states of another layer,
or of the other side of a norm, still runs; only its guesses are wrong. So the words are stored with
every trained drafter and compared before use."""

_SAMPLES = 64
_CLOSE = 0.02
"""Relative: rounding to bfloat16 moves a weight by 0.4 %, another model moves most by far more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """A target's decoder, as far as a draft head copies it.

    Attributes:
        name: for people.
        hidden_size: width of the states.
        layers: decoder layers.
        heads, kv_heads, head_dim: of attention.
        intermediate_size: of the gated feed-forward part.
        rms_eps: of its norms.
        rope_theta: base of its rotary positions.
        vocab_size: rows of the language-model head.
        qkv_bias: whether query, key and value have biases.
    """

    name: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    vocab_size: int
    qkv_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWeights:
    """The frozen weights that a draft head borrows; nothing is copied.

    Attributes:
        shape: of the decoder.
        embedding: [V', D] token embeddings, V' >= V.
        lm_head: [V, D] the language-model head.
    """

    shape: TargetShape
    embedding: Tensor
    lm_head: Tensor

    def record(self) -> dict[str, Any]:
        """What a manifest stores to know this target again, JSON-ready."""
        return {**asdict(self.shape), "sample": _sample(self.lm_head)}

    def mismatch(self, record: Mapping[str, Any]) -> tuple[str, object, object] | None:
        """The first thing in which a recorded target differs: (field, found here, recorded).

        Names are for people and may differ: a folder can be moved. The weights are compared by a
        sample, loosely enough that another dtype of the same model passes.
        """
        here = self.record()
        for name in here:
            if name not in ("name", "sample") and here[name] != record.get(name):
                return name, here[name], record.get(name)
        sample = record.get("sample")
        if not isinstance(sample, list) or len(sample) != len(here["sample"]):
            return "a sample of its head's weights", len(here["sample"]), sample
        largest = max(map(abs, here["sample"]))
        for own, other in zip(here["sample"], sample, strict=True):
            if not abs(own - other) <= _CLOSE * max(abs(own), 0.01 * largest):
                return "a weight of its head", own, other
        return None


def weights_of(model: Any, name: str) -> TargetWeights:
    """Read the weights off a live model.

    Args:
        model: a transformers model.
        name: how messages and records call it.

    Raises:
        UnsupportedTarget: its embedding or head is more than a table, or it has no attention.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(embedding) is not nn.Embedding or type(head) is not nn.Linear or head.bias is not None:
        raise UnsupportedTarget(
            f"a trained drafter for '{name}'",
            found=f"an embedding of type {type(embedding).__name__} and a head of type "
            f"{type(head).__name__}",
            needed="a plain embedding table and a head without bias are needed: drafters borrow "
            "both",
            todo="Use a drafter without weights, such as recap.",
        )
    if not hasattr(model.config.get_text_config(decoder=True), "num_attention_heads"):
        raise UnsupportedTarget(
            f"a trained drafter for '{name}'",
            found="a decoder without attention heads",
            needed="an attention decoder is needed, whose shape a drafter takes over",
            todo="Use a drafter without weights, such as recap.",
        )
    return TargetWeights(
        shape=shape_of(model.config, name=name, vocab_size=int(head.weight.shape[0])),
        embedding=embedding.weight.detach(),
        lm_head=head.weight.detach(),
    )


def shape_of(config: Any, *, name: str, vocab_size: int) -> TargetShape:
    """The decoder's shape from a model's config; what a config does not know has the values of the
    original transformer.

    Args:
        config: of the whole model.
        name: for people.
        vocab_size: rows of the language-model head.
    """
    text = config.get_text_config(decoder=True)
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    rope = getattr(text, "rope_parameters", None) or {}
    bias = getattr(text, "attention_bias", None)
    return TargetShape(
        name=name,
        hidden_size=hidden,
        layers=int(text.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
        intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * hidden),
        rms_eps=float(getattr(text, "rms_norm_eps", None) or 1e-6),
        rope_theta=float(rope.get("rope_theta") or 10000.0),
        vocab_size=vocab_size,
        qkv_bias=text.model_type.startswith("qwen2") if bias is None else bool(bias),
    )


def _sample(weight: Tensor) -> list[float]:
    """Evenly spaced weights of a matrix, rounded to bfloat16 so that a dtype does not matter."""
    flat = weight.reshape(-1)
    step = max(1, flat.shape[0] // _SAMPLES)
    picked: list[float] = flat[::step][:_SAMPLES].to("cpu", torch.bfloat16).tolist()
    return picked


BACKBONES: dict[str, TargetShape] = {
    "llava-1.6-vicuna-7b": TargetShape(
        name="llava-1.6-vicuna-7b", hidden_size=4096, layers=32, heads=32, kv_heads=32,
        head_dim=128, intermediate_size=11008, rms_eps=1e-5, vocab_size=32064,
    ),
    "llava-1.6-vicuna-13b": TargetShape(
        name="llava-1.6-vicuna-13b", hidden_size=5120, layers=40, heads=40, kv_heads=40,
        head_dim=128, intermediate_size=13824, rms_eps=1e-5, vocab_size=32064,
    ),
    "qwen2.5-vl-7b": TargetShape(
        name="qwen2.5-vl-7b", hidden_size=3584, layers=28, heads=28, kv_heads=4,
        head_dim=128, intermediate_size=18944, rope_theta=1e6, vocab_size=152064, qkv_bias=True,
    ),
}  # fmt: skip
"""The three targets of the FOVEA paper, by the configs that their authors publish."""
