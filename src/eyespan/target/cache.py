"""Keep the accepted path of a pack in the cache, drop the rest, and say which caches can do that.

After a forward over n nodes the last n slots of every layer hold the pack. The root and the
accepted nodes move to the front of those slots, in place, and the layer is cropped. Packs put the
likeliest chain first, so usually nothing moves at all.

Which caches qualify is an allow-list of layer classes, looked at on a cache that has been filled
(layers and states are made lazily). transformers' own flags do not decide it: `is_croppable` is
true for short-convolution layers, whose state mixes siblings.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticCache,
    StaticLayer,
)

from eyespan.errors import UnsupportedTarget
from eyespan.types import Ints

_CACHES = (DynamicCache, StaticCache)
_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, DummyLayer)


def new_cache(config: Any) -> Any:
    """An empty cache of the kind stock makes for this model."""
    return DynamicCache(config=config)


def check_cache(cache: Any, name: str) -> None:
    """Refuse a filled cache whose layers cannot drop single tokens again.

    Exact classes, not subclasses: hybrid layers derive from `DynamicLayer`, and a state that they
    carry besides keys and values cannot be rolled back.

    Raises:
        UnsupportedTarget: with the classes found.
    """
    kinds = {type(layer) for layer in cache.layers} if isinstance(cache, _CACHES) else {type(cache)}
    alien = sorted(kind.__name__ for kind in kinds - set(_LAYERS))
    if not alien and cache.offloading:  # layers come and go on a stream of their own
        alien = [f"offloaded {type(cache).__name__}"]
    if alien:
        raise UnsupportedTarget(
            f"tree verification of '{name}'",
            found=f"a cache of {', '.join(alien)}",
            needed="needed are plain or sliding-window attention layers, whose tokens can be "
            "dropped one by one",
            todo="Use stock generate() for models with recurrent or convolutional states, and "
            "quantised or indexed caches.",
        )


def capacity(cache: Any) -> int | None:
    """Slots of a static cache; None when it grows."""
    sizes = [layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer]
    return min(sizes) if sizes else None


def length(cache: Any) -> int:
    """Tokens in the cache."""
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


def keep_path(cache: Any, start: int, size: int, path: Ints) -> None:
    """Keep the root and `path` of a pack.

    Args:
        cache: holds `start` tokens, then the pack.
        start: tokens before the pack.
        size: nodes of the pack, root included.
        path: [a] packed indices of the accepted nodes, ascending, root excluded.
    """
    drop = size - 1 - len(path)
    moved = [slot for slot, node in enumerate(path.tolist(), start=1) if node != slot]
    for layer in cache.layers:
        if type(layer) is DummyLayer or not layer.is_initialized:
            continue
        if moved:
            first = start if type(layer) is StaticLayer else layer.keys.shape[-2] - size
            _move(layer, first, path[moved[0] - 1 :], moved[0])
        layer.crop(-drop)


def drop(cache: Any, count: int) -> None:
    """Forget the last `count` tokens."""
    for layer in cache.layers:
        if type(layer) is not DummyLayer and layer.is_initialized:
            layer.crop(-count)


def _move(layer: Any, first: int, nodes: Ints, slot: int) -> None:
    """Copy the slots of `nodes` to consecutive ones from `slot` on (counted from the pack's root);
    only the tail of the cache is touched.
    """
    source = torch.from_numpy(nodes.astype("int64") + first).to(layer.keys.device)
    target = slice(first + slot, first + slot + len(nodes))
    layer.keys[:, :, target] = layer.keys.index_select(2, source)
    layer.values[:, :, target] = layer.values.index_select(2, source)
