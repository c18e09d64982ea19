"""Where a sequence's keys and values stay while compiled passes write behind them.

A growing cache is copied whole by every step, and its shapes change with every token, so nothing
that was compiled for one step fits the next. Here each layer has a buffer [capacity, H, D] with
room to spare. A pass gets its first `window` rows, a multiple of `step`, writes its nodes behind
the sequence's tokens, and attention reads no farther than the window. Rows come first because the
beginning of such a buffer is contiguous whatever its length: one dynamic size and no stride that
depends on it.

The sequence's own cache stays the growing one that everybody knows: its layers show the beginning
of the buffers as [1, H, length, D]. Dropping tokens, moving accepted ones, joining a batch or
running a pass uncompiled work on it as ever; whatever put other tensors there (an uncompiled pass
appends to a copy) is noticed, and the tokens move in again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SPARE = 256
"""Least rows beyond what a sequence needs when it moves; a quarter of it where that is more."""
MOST_FREE = 2
"""Buffers kept for later requests."""


class Pool:
    """Buffers that wait for the next request. Those of a running one are nobody else's.

    On a GPU a recorded graph knows its buffers by address, so the same few must come again.

    Args:
        step: windows are multiples of it.
        whole: passes always get whole buffers; else the shortest window that does.
    """

    def __init__(self, step: int, *, whole: bool) -> None:
        self.step, self.whole = step, whole
        self._free: list[Places] = []

    def take(self) -> Places:
        """Buffers for one sequence."""
        return self._free.pop() if self._free else Places(self)

    def put(self, places: Places) -> None:
        """Take buffers back that no cache shows any more."""
        if len(self._free) < MOST_FREE:
            self._free.append(places)


class Places:
    """The buffers of one sequence.

    Args:
        pool: where they go when the sequence ends.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._window: tuple[list[Tensor], list[Tensor]] = ([], [])

    def __deepcopy__(self, memo: dict[int, Any]) -> Places:
        """A copy of a sequence moves into buffers of its own at its next pass."""
        return Places(self._pool)

    def hold(self, cache: Any, length: int, room: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of every layer, ready to be written behind `length` tokens.

        Args:
            cache: a growing cache of the sequence's tokens.
            length: tokens in it.
            room: tokens that the pass may write.

        Returns:
            [window, H, D] each, window >= length + room.
        """
        window = self._rounded(length + room)
        if not self._holds(cache) or window > len(self._keys[0]):
            self._move_in(cache, length, window)
        if self._pool.whole:
            window = len(self._keys[0])
        if len(self._window[0]) == 0 or len(self._window[0][0]) != window:
            self._window = _windows(self._keys, window), _windows(self._values, window)
        return self._window

    def show(self, cache: Any, length: int) -> None:
        """Let the cache's layers show the first `length` rows."""
        for layer, keys, values in zip(cache.layers, self._keys, self._values, strict=True):
            layer.keys, layer.values = _shown(keys, length), _shown(values, length)

    def leave(self, cache: Any) -> None:
        """Give the cache tensors of its own; the buffers may then serve somebody else."""
        for layer, keys, values in zip(cache.layers, self._keys, self._values, strict=False):
            if _same(layer, keys, values):
                layer.keys, layer.values = _apart(layer.keys), _apart(layer.values)
        self.free()

    def free(self) -> None:
        """Nobody reads these buffers any more."""
        self._pool.put(self)

    def _holds(self, cache: Any) -> bool:
        """Whether the cache's layers still show these buffers."""
        return len(self._keys) == len(cache.layers) and all(
            map(_same, cache.layers, self._keys, self._values)
        )

    def _move_in(self, cache: Any, length: int, window: int) -> None:
        """Copy the cache's tokens to buffers that are long enough; longer ones where these are not.

        Rows that nobody wrote are zero: attention multiplies them by zero, which makes NaN of
        whatever memory happened to hold.
        """
        layers = cache.layers
        fits = len(self._keys) == len(layers) and len(self._keys[0]) >= window
        size = self._rounded(window + (0 if self._pool.whole else max(SPARE, window // 4)))
        for name, buffers in (("keys", self._keys), ("values", self._values)):
            held = [getattr(layer, name) for layer in layers]
            if not fits:
                buffers[:] = [
                    tensor.new_zeros(size, tensor.shape[1], tensor.shape[3]) for tensor in held
                ]
                if self._pool.whole:
                    _mark_static(buffers)
            for buffer, tensor in zip(buffers, held, strict=True):
                buffer[:length] = tensor[0, :, :length].transpose(0, 1)
        self._window = ([], [])

    def _rounded(self, size: int) -> int:
        return -(-size // self._pool.step) * self._pool.step


def _same(layer: Any, keys: Tensor, values: Tensor) -> bool:
    """Whether a layer's tensors begin where these do."""
    same: bool = layer.keys.data_ptr() == keys.data_ptr()
    return same and layer.values.data_ptr() == values.data_ptr()


def _apart(shown: Tensor) -> Tensor:
    """A tensor of its own memory; `contiguous()` would keep one that is so by chance."""
    return shown.clone(memory_format=torch.contiguous_format)


def _mark_static(buffers: list[Tensor]) -> None:
    """Let recorded graphs write to these buffers where they are."""
    from torch._dynamo import mark_static_address  # a second to import, so not before it is needed

    for buffer in buffers:
        mark_static_address(buffer, guard=False)  # others may come: recorded again, not compiled


def _windows(buffers: list[Tensor], size: int) -> list[Tensor]:
    """The first rows of each buffer, declared to vary in number: one program for all of them."""
    from torch._dynamo import mark_dynamic

    windows = [buffer if len(buffer) == size else buffer[:size] for buffer in buffers]
    for window in windows:
        mark_dynamic(window, 0)
    return windows


def _shown(buffer: Tensor, length: int) -> Tensor:
    """[capacity, H, D] -> [1, H, length, D] of the same memory."""
    size, heads, width = buffer.shape
    return buffer.as_strided(
        (1, heads, length, width), (size * heads * width, width, heads * width, 1)
    )
