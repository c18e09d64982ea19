"""Keep the accepted path of a pack in the cache, drop the rest, and say which caches can do that.

After a forward over n nodes the last n slots of every layer hold the pack. The root and the
accepted nodes move to the front of those slots, in place, and the layer is cropped. Packs put the
likeliest chain first, so usually nothing moves at all.

Which caches qualify is an allow-list of layer classes, looked at on a cache that has been filled
(layers and states are made lazily). transformers' own flags do not decide it: `is_croppable` is
true for short-convolution layers, whose state mixes siblings. Recurrent states are the business of
`states.py` and `replay.py`; here the keys and values beside them are kept or dropped.

Layers that attend to pictures instead of text (Mllama) hold keys and values of the pictures in the
same class as everybody else's; they are never touched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    StaticCache,
    StaticLayer,
)

from eyespan.errors import UnsupportedTarget
from eyespan.target.states import States, state_layers
from eyespan.types import Ints

_CACHES = (DynamicCache, StaticCache)
_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, DummyLayer)
_WITH_STATES = {
    "none": (),
    "trees": (LinearAttentionLayer,),
    "chains": (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer),
}
"""Layers with states. In a static cache they would mislead transformers: while a state records what
may be dropped, the cache no longer counts as static, and a single step sees its empty slots."""


def new_cache(config: Any) -> Any:
    """An empty cache of the kind stock makes for this model."""
    return DynamicCache(config=config)


def check_cache(cache: Any, name: str, states: States = "none") -> None:
    """Refuse a filled cache whose layers cannot drop single tokens again.

    Exact classes, not subclasses: hybrid layers derive from `DynamicLayer`.

    Args:
        cache: what a forward has filled.
        name: how error messages call the model.
        states: which recurrent states its model has.

    Raises:
        UnsupportedTarget: with the classes found.
    """
    known = _CACHES if states == "none" else DynamicCache  # see `_WITH_STATES`
    kinds = {type(layer) for layer in cache.layers} if isinstance(cache, known) else {type(cache)}
    alien = sorted(kind.__name__ for kind in kinds - {*_ATTENTION, *_WITH_STATES[states]})
    if not alien and cache.offloading:  # layers come and go on a stream of their own
        alien = [f"offloaded {type(cache).__name__}"]
    if alien:
        raise UnsupportedTarget(
            f"tree verification of '{name}'",
            found=f"a cache of {', '.join(alien)}",
            needed="needed are plain or sliding-window attention layers, whose tokens can be "
            "dropped one by one, or states that are known how to roll back",
            todo="Use stock generate() for this model, and for quantised or indexed caches.",
        )


def contents(cache: Any, picture_layers: Collection[int]) -> str:
    """What the layers of a cache remember, in a few words, in the order of the layers."""
    words = [
        "pictures" if at in picture_layers else _WORDS.get(type(layer), type(layer).__name__)
        for at, layer in enumerate(cache.layers)
    ]
    return ", ".join(dict.fromkeys(words))


_WORDS: dict[type, str] = {
    DynamicLayer: "all tokens",
    StaticLayer: "all tokens",
    DynamicSlidingWindowLayer: "windows",
    DummyLayer: "shared",
    LinearAttentionLayer: "states",
    LinearAttentionAndFullAttentionLayer: "states and all tokens",
}


def capacity(cache: Any) -> int | None:
    """Slots of a static cache; None when it grows."""
    sizes = [layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer]
    return min(sizes) if sizes else None


def length(cache: Any) -> int:
    """Tokens in the cache.

    Raises:
        UnsupportedTarget: a filled cache of states alone, which count no tokens.
    """
    if all(type(layer) is LinearAttentionLayer for layer in cache.layers):
        if any(layer.has_previous_state[0] for layer in cache.layers):
            raise UnsupportedTarget(
                "continuing from a cache",
                found="recurrent states alone, which do not say how many tokens they hold",
                needed="an empty cache or one with attention layers is needed",
                todo="Pass the whole sequence without a cache.",
            )
        return 0
    return int(cache.get_seq_length())


def begin_recording(cache: Any) -> None:
    """Let sliding layers keep what they would evict until `keep_path` crops them. Called after the
    prefill, never before: the prompt would be kept whole.
    """
    cache.activate_past_recording()


def end_recording(cache: Any) -> None:
    """Give the cache back its stock behaviour."""
    for layer in cache.layers:
        if type(layer) is DynamicSlidingWindowLayer:
            layer.record_past = False
    for layer in state_layers(cache):
        layer.record_past = False


def keep_path(
    cache: Any, start: int, size: int, path: Ints, skip: Collection[int] = frozenset()
) -> None:
    """Keep the root and `path` of a pack in the keys and values.

    Args:
        cache: holds `start` tokens, then the pack.
        start: tokens before the pack.
        size: nodes of the pack, root included.
        path: [a] packed indices of the accepted nodes, ascending, root excluded.
        skip: indices of layers that hold no text.
    """
    moved = [slot for slot, node in enumerate(path.tolist(), start=1) if node != slot]
    for layer in _text_layers(cache, skip):
        if moved:
            first = start if type(layer) is StaticLayer else layer.keys.shape[-2] - size
            _move(layer, first, path[moved[0] - 1 :], moved[0])
    drop(cache, size - 1 - len(path), skip)


def drop(cache: Any, count: int, skip: Collection[int] = frozenset()) -> None:
    """Drop the last `count` tokens' keys and values; 0 still lets windows forget what they may."""
    for layer in _text_layers(cache, skip):
        if type(layer) is LinearAttentionAndFullAttentionLayer:
            DynamicLayer.crop(layer, -count)
        else:
            layer.crop(-count)


def _text_layers(cache: Any, skip: Collection[int]) -> list[Any]:
    """Layers that hold keys and values of text."""
    return [
        layer
        for at, layer in enumerate(cache.layers)
        if at not in skip and type(layer) in _HOLDING and layer.is_initialized
    ]


_HOLDING = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    LinearAttentionAndFullAttentionLayer,
)


def _move(layer: Any, first: int, nodes: Ints, slot: int) -> None:
    """Copy the slots of `nodes` to consecutive ones from `slot` on (counted from the pack's root);
    only the tail of the cache is touched.
    """
    source = torch.from_numpy(nodes.astype("int64") + first).to(layer.keys.device)
    target = slice(first + slot, first + slot + len(nodes))
    layer.keys[:, :, target] = layer.keys.index_select(2, source)
    layer.values[:, :, target] = layer.values.index_select(2, source)
