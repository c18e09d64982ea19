"""Keys and values of draft heads: a cache with a context that all nodes of a tree share, and the
attention of training, where every position is the root of a draft of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

GROWTH = 256
"""Pairs that have room beyond what is asked, so that a buffer is seldom copied."""


class KeyValues:
    """Keys and values of B sequences, for every attention slot of a head.

    What lies beyond `length` is scratch: a tree's nodes are written there and forgotten.

    Attributes:
        keys, values: [slots, B, kv_heads, capacity, head_dim].
        length: columns in use.
        visible: [B, length] bool, False at columns that are not a row's own; None: all are.
    """

    def __init__(
        self,
        slots: int,
        kv_heads: int,
        head_dim: int,
        *,
        batch: int = 1,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (slots, batch, kv_heads, 0, head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0
        self.visible: Tensor | None = None

    def reserve(self, columns: int) -> None:
        """Make room for columns beyond `length`."""
        slots, batch, heads, capacity, size = self.keys.shape
        if self.length + columns <= capacity:
            return
        shape = (slots, batch, heads, self.length + columns + GROWTH, size)
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = old.new_empty(shape)
            new[..., : self.length, :] = old[..., : self.length, :]
            setattr(self, name, new)

    def clear(self) -> None:
        """Forget all columns; the buffers stay."""
        self.length, self.visible = 0, None


def side_by_side(caches: Sequence[KeyValues], room: int) -> KeyValues:
    """One cache for a batch of sequences of different lengths, with room for more columns.

    A single sequence's cache is returned itself; of several, the columns are copied, and what a
    shorter row lacks is not visible.
    """
    if len(caches) == 1:
        caches[0].reserve(room)
        return caches[0]
    first = caches[0].keys
    slots, _, heads, _, size = first.shape
    joined = KeyValues(
        slots, heads, size, batch=len(caches), dtype=first.dtype, device=first.device
    )
    longest = max(cache.length for cache in caches)
    joined.reserve(longest + room)
    joined.length = longest
    joined.visible = torch.zeros(len(caches), longest, dtype=torch.bool, device=first.device)
    for row, cache in enumerate(caches):
        own = cache.length
        joined.keys[:, row, :, :own] = cache.keys[:, 0, :, :own]
        joined.values[:, row, :, :own] = cache.values[:, 0, :, :own]
        joined.keys[:, row, :, own:longest] = 0  # masked out, but 0 * NaN would be NaN
        joined.values[:, row, :, own:longest] = 0
        joined.visible[row, :own] = True
    return joined


class CachedAttention:
    """Attention over a cache: new pairs are written at a column and see what a mask says.

    Args:
        cache: has room for the new pairs.
        start: column of the first new pair; everything before it is in use.
        mask: [B or 1, 1, n, start + n] bool, True where a pair sees a column; None: all pairs see
            everything up to themselves, which needs start == 0 or n == 1.
    """

    def __init__(self, cache: KeyValues, start: int, mask: Tensor | None) -> None:
        self.cache, self.start, self.mask = cache, start, mask

    def __call__(self, slot: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Attend`."""
        end = self.start + key.shape[2]
        keys, values = self.cache.keys[slot], self.cache.values[slot]
        keys[:, :, self.start : end] = key
        values[:, :, self.start : end] = value
        keys, values = keys[:, :, :end], values[:, :, :end]
        groups = query.shape[1] // keys.shape[1]
        if self.mask is None and query.shape[2] > 1:
            return scaled_dot_product_attention(
                query, keys, values, is_causal=True, enable_gqa=groups > 1
            )
        # Queries that share keys stand one after another, so that no key is repeated.
        batch, heads, rows, size = query.shape
        query = query.reshape(batch, heads // groups, groups * rows, size)
        mask = None if self.mask is None else self.mask.repeat(1, 1, groups, 1)
        out = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return out.reshape(batch, heads, rows, size)


def causal_mask(
    lengths: Sequence[int], new: int, start: int, visible: Tensor | None, device: torch.device
) -> Tensor | None:
    """[B, 1, new, start + new] bool mask of ragged new pairs behind a context.

    Args:
        lengths: [B] new pairs of each row; the rest of a row is padding.
        new: most of them.
        start: columns of the context.
        visible: [B, start] which of those are a row's own; None: all.
        device: where it goes.

    Returns:
        None where plain causal attention does the same.
    """
    if new == 1 and visible is None and min(lengths) == 1:
        return None
    if start == 0 and len(lengths) == 1:
        return None
    mask = torch.ones(len(lengths), 1, new, start + new, dtype=torch.bool, device=device)
    own = torch.ones(new, new, dtype=torch.bool, device=device).tril()
    mask[..., start:] = own
    if visible is not None:
        mask[:, 0, :, :start] = visible[:, None, :]
    return mask


class UnrolledAttention:
    """Attention of training. At step 0 every pair sees the true pairs up to itself; at step k the
    pair of root i, fed with the head's own state, sees the true pairs up to i, the pairs that root
    i was fed at steps 1 to k - 1, and itself: exactly what a chain of drafts sees.

    Args:
        visible: [B, n] bool, False at true pairs that nobody sees but themselves; None: all are
            seen. Pairs at the front that are no roots (a prefix) take part in step 0 alone.
    """

    def __init__(self, visible: Tensor | None = None) -> None:
        self.step = 0
        self._visible = visible
        self._keys: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._values: defaultdict[int, list[Tensor]] = defaultdict(list)

    def __call__(self, slot: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Attend`."""
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        keys, values = self._keys[slot], self._values[slot]
        keys.append(key)
        values.append(value)
        if self.step == 0 and self._visible is None:
            return scaled_dot_product_attention(query, key, value, is_causal=True)
        scale = query.shape[-1] ** -0.5
        mask = self._mask(keys[0].shape[2], query.device)[..., -query.shape[2] :, :]
        true = (query @ keys[0].transpose(-1, -2)) * scale
        true = true.masked_fill(~mask, torch.finfo(true.dtype).min)
        fed = [(query * each).sum(-1, keepdim=True) * scale for each in keys[1:]]
        weights = torch.cat([true, *fed], dim=-1).softmax(-1)
        columns = keys[0].shape[2]
        out: Tensor = weights[..., :columns] @ values[0]
        for at, each in enumerate(values[1:]):
            out = out + weights[..., columns + at, None] * each
        return out

    def _mask(self, columns: int, device: torch.device) -> Tensor:
        """[B or 1, 1, columns, columns] who sees whom among the true pairs."""
        causal = torch.ones(columns, columns, dtype=torch.bool, device=device).tril()[None]
        if self._visible is not None:
            itself = torch.eye(columns, dtype=torch.bool, device=device)
            causal = causal & (self._visible[:, None, :] | itself)
        return causal[:, None]
