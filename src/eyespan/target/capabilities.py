"""What one live model can do, found once. The only place that asks models such questions.

Facts this rests on (transformers 5): a causal language model accepts a 4-D attention mask as it is;
where the decoder's config has `layer_types`, the same masks travel as {layer type: mask}; the cache
argument is called `cache` (before 5.24 `past_key_values`); `DynamicCache(config=...)` says by its
layer classes what every decoder layer remembers. `_is_stateful` and `is_croppable` are not asked:
neither tells a state that mixes siblings from one that does not.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionLayer

from eyespan.errors import UnsupportedTarget
from eyespan.target.base import MaskWay
from eyespan.target.cache import check_cache, contents, new_cache
from eyespan.target.families import Family
from eyespan.target.states import States, states_of

_NEEDED_ARGUMENTS = ("attention_mask", "logits_to_keep")
_CACHE_ARGUMENTS = ("cache", "past_key_values")
_MASKABLE = ("sdpa", "eager")
_LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Answers about one model.

    Attributes:
        cache_argument: name of the forward argument that takes the cache.
        takes_positions: whether the model counts positions at all (a model of states does not).
        layer_types: keys of the mask mapping, or empty when the mask travels as one tensor.
        full_attention: every layer sees the whole past, so one explicit mask serves all.
        picture_layers: indices of layers that attend to pictures instead of text.
        states: what the model remembers besides keys and values.
        remembers: what its layers remember, in words.
        attention: "sdpa" or "eager".
        vocab_size, max_context, hidden_size, layers: see `TargetInfo`.
        embeddings: rows of the input embeddings; prompt ids lie below it.
        dtype, device: of the embeddings, where every input goes.
    """

    cache_argument: str
    takes_positions: bool
    layer_types: tuple[str, ...]
    full_attention: bool
    picture_layers: frozenset[int]
    states: States
    remembers: str
    attention: str
    vocab_size: int
    embeddings: int
    max_context: int
    hidden_size: int
    layers: int
    dtype: torch.dtype
    device: torch.device

    @property
    def masks(self) -> MaskWay:
        """How tree masks reach the model."""
        if self.states == "chains":
            return "own"
        return "explicit" if self.full_attention else "hook"

    @property
    def shares(self) -> bool:
        """Whether the caches of many sequences can be rows of one (`batch.py`): one explicit mask
        serves every layer, and nothing but keys and values of text is remembered.
        """
        return self.full_attention and self.states == "none" and not self.picture_layers


def inspect_model(model: Any, family: Family, name: str) -> Capabilities:
    """Ask everything once.

    Args:
        model: a transformers causal or image-text-to-text model.
        family: its row.
        name: how error messages call it.

    Raises:
        UnsupportedTarget: it cannot be verified in trees, with the reason.
    """
    config = model.config
    text = config.get_text_config(decoder=True)
    inner = model.language_model if family.wraps else model
    _refuse_other_shapes(model, config, name)
    if inner.config.is_encoder_decoder:  # InstructBLIP's own config does not say so
        raise _encoder_decoder(name)
    cache = _empty_cache(config, name)
    states = states_of(model, cache, name)
    check_cache(cache, name, states)
    attends = any(type(layer) is not LinearAttentionLayer for layer in cache.layers)
    arguments = inspect.signature(inner.forward).parameters
    embeddings = model.get_input_embeddings().weight
    pictures = frozenset(getattr(text, "cross_attention_layers", None) or ())
    full = all(type(layer) in (DynamicLayer, DummyLayer) for layer in cache.layers)
    return Capabilities(
        cache_argument=_cache_argument(arguments, attends, name),
        takes_positions="position_ids" in arguments,
        layer_types=tuple(sorted(set(getattr(text, "layer_types", None) or ()))),
        full_attention=full and not family.own_masks,
        picture_layers=pictures,
        states=states,
        remembers=contents(cache, pictures),
        attention=_attention(text, name),
        vocab_size=int(model.get_output_embeddings().weight.shape[0]),
        embeddings=int(embeddings.shape[0]),
        max_context=_max_context(text),
        hidden_size=int(text.hidden_size),
        layers=int(text.num_hidden_layers),
        dtype=embeddings.dtype,
        device=embeddings.device,
    )


def check_unchanged(model: Any, found: Capabilities, name: str) -> None:
    """Refuse a model that was changed since it was inspected: eager attention would add a mask that
    was made for sdpa, and inputs would go to where the model was.

    Raises:
        UnsupportedTarget: another attention, dtype, device or vocabulary.
    """
    embeddings = model.get_input_embeddings().weight
    now = {
        "attention": str(model.config.get_text_config(decoder=True)._attn_implementation),
        "dtype": embeddings.dtype,
        "device": embeddings.device,
        "embeddings": int(embeddings.shape[0]),
    }
    for what, value in now.items():
        if value != getattr(found, what):
            raise _unsupported(
                name,
                f"{what} {value} instead of {getattr(found, what)}, changed since it was loaded",
                "the model as it was",
                "Call enable() or load() again after changing a model.",
            )


def _refuse_other_shapes(model: Any, config: Any, name: str) -> None:
    if config.is_encoder_decoder:
        raise _encoder_decoder(name)
    if model.get_output_embeddings() is None:
        raise _unsupported(
            name,
            "a model without a language-model head",
            "one that generates text",
            "Load it with AutoModelForCausalLM or AutoModelForImageTextToText.",
        )
    if "local" in (getattr(config, "attention_layers", None) or ()):
        raise _unsupported(  # GPT-Neo: no cache layer and no mask builder knows of this window
            name,
            "a window inside its attention layers that no cache or mask shows",
            "windows that the config declares by layer type",
            "Use stock generate().",
        )
    if any(type(module).__module__.startswith(_DYNAMIC_INT8) for module in model.modules()):
        raise _unsupported(
            name,
            "dynamically quantised linear layers, whose activation scale is shared by all tokens "
            "of one pass, so that a token's logits depend on its neighbours in the tree",
            "weights in float32, bfloat16 or float16",
            "Load the model without quantize_dynamic.",
        )


def _encoder_decoder(name: str) -> UnsupportedTarget:
    return _unsupported(
        name, "an encoder-decoder model", "a decoder-only one", "Use stock generate()."
    )


_DYNAMIC_INT8 = ("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic")


def _cache_argument(arguments: Any, attends: bool, name: str) -> str:
    needed = (*_NEEDED_ARGUMENTS, "position_ids") if attends else _NEEDED_ARGUMENTS
    missing = [argument for argument in needed if argument not in arguments]
    found = [argument for argument in _CACHE_ARGUMENTS if argument in arguments]
    if missing or not found:
        raise _unsupported(
            name,
            f"a forward() without {', '.join(missing) or 'a cache argument'}",
            "a model of transformers >= 5 whose positions and masks can be given",
            "Use stock generate().",
        )
    return found[0]


def _attention(text_config: Any, name: str) -> str:
    attention = str(text_config._attn_implementation)
    if attention not in _MASKABLE:
        raise _unsupported(
            name,
            f"attention implementation '{attention}'",
            "'sdpa' or 'eager', the two that take a tree mask",
            "Load the model with attn_implementation='sdpa'.",
        )
    return attention


def _empty_cache(config: Any, name: str) -> Any:
    """The cache that stock makes for this model; its layers say what each decoder layer keeps."""
    try:
        return new_cache(config)
    except (KeyError, AttributeError, TypeError) as error:
        raise _unsupported(
            name,
            f"a decoder for which transformers builds no dynamic cache ({error!r})",
            "attention layers that keep keys and values",
            "Use stock generate().",
        ) from None


def _max_context(text_config: Any) -> int:
    """The position table's length; for ropes that rescale by the longest position of a call, the
    length up to which they do not (beyond it a draft would change the positions of its prefix).
    """
    longest = int(getattr(text_config, "max_position_embeddings", None) or _UNBOUNDED)
    rope = getattr(text_config, "rope_parameters", None) or {}
    variants = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for variant in variants:
        if variant.get("rope_type") in _LENGTH_DEPENDENT_ROPES:
            unscaled = variant.get("original_max_position_embeddings") or getattr(
                text_config, "original_max_position_embeddings", None
            )
            longest = min(longest, int(unscaled or longest))
    return longest


def _unsupported(name: str, found: str, needed: str, todo: str) -> UnsupportedTarget:
    return UnsupportedTarget(
        f"tree verification of '{name}'", found=found, needed=f"needed is {needed}", todo=todo
    )
