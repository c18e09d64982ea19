"""What a conversation has read already, and how much of it a new prompt stands on.

A chat template may write earlier turns anew, and does (an answer's text may be tokenised another
way than the model wrote it, thoughts are left out, dates change). So nothing is assumed: ids,
positions, pictures and the state of the weights are compared, and the prompt is read from the first
difference on. Equal ids are not enough: two pictures of one size have the same placeholders.

The cache of the common beginning shares its memory with the one that it was cut from. That is safe
because every layer on the allow-list grows by concatenation, into new memory.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from eyespan.target.base import Prompt
from eyespan.types import Ints


class Mark(NamedTuple):
    """The first `tokens` of a text hold exactly its first `pictures`."""

    tokens: int
    pictures: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """A cache and what was read into it.

    Attributes:
        ids: [n] its tokens.
        position_ids: [1, n] or [4, 1, n] where they stand.
        pictures: a digest of each picture among them, in order.
        marks: how far its pictures reach, ascending.
        weights: the state of the model's weights then.
        cache: the transformers cache.
    """

    ids: Ints
    position_ids: Tensor
    pictures: tuple[bytes, ...]
    marks: tuple[Mark, ...]
    weights: bytes
    cache: Any

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def fork(self) -> Prefix | None:
        """A second one, whose cache grows on its own; None where its layers cannot be shared."""
        everything = range(len(self.cache.layers))
        cache = beginning(self.cache, len(self), skip=everything)
        return None if cache is None else replace(self, cache=cache)

    def marks_within(self, length: int) -> tuple[Mark, ...]:
        """Marks of the first `length` tokens."""
        return tuple(mark for mark in self.marks if mark.tokens <= length)

    def common(
        self, prompt: Prompt, pictures: Sequence[bytes], picture_ids: Collection[int]
    ) -> int:
        """How many first tokens it has in common with a prompt, at most all but the prompt's last.

        Args:
            prompt: the next one.
            pictures: digests of all its pictures, in order.
            picture_ids: ids in whose place the features of pictures stand.
        """
        places = list(picture_ids)
        most = min(len(self), len(prompt) - 1)
        same = self.ids[:most] == prompt.ids[:most]
        mine, its = self.position_ids[..., :most], prompt.position_ids[..., :most]
        if mine.shape != its.shape:
            return 0
        stand = (mine == its).reshape(-1, most).all(dim=0).cpu().numpy()
        length = _leading(same & stand)
        equal = _leading(
            np.array([a == b for a, b in zip(self.pictures, pictures, strict=False)], bool)
        )
        if equal < len(self.pictures):
            mark = max(mark for mark in (Mark(0, 0), *self.marks) if mark.pictures <= equal)
            behind = np.isin(self.ids[mark.tokens :], places)
            length = min(length, mark.tokens + (int(np.argmax(behind)) if behind.any() else 0))
        is_place = np.isin(prompt.ids[: length + 1], places)
        while length > 0 and is_place[length - 1] and is_place[length]:
            length -= 1  # never between two tokens of pictures, which may see each other both ways
        return length


def resume(
    prompt: Prompt,
    prefix: Prefix,
    pictures: Sequence[bytes],
    *,
    picture_ids: Collection[int],
    picture_layers: Collection[int],
    cuts: bool,
    two_way: bool,
    weights: bytes,
) -> Prompt:
    """A prompt on the cache of what it has in common with an earlier one; as it is for nothing.

    Args:
        prompt: the whole prompt, with no cache.
        prefix: what was read before.
        pictures: digests of the prompt's pictures.
        picture_ids: ids in whose place the features of pictures stand.
        picture_layers: layers that hold pictures instead of text; all of them or none.
        cuts: whether features can be cut where the cache ends, in the midst of the pictures.
        two_way: whether pictures behind the cache would be read otherwise (see `Family`).
        weights: the state of the model's weights now.
    """
    if prefix.weights != weights:
        return prompt
    length = prefix.common(prompt, pictures, picture_ids)
    is_place = np.isin(prompt.ids, list(picture_ids))
    if not cuts and is_place[length:].any():
        length = min(length, int(np.argmax(is_place)))
    if two_way and is_place[length:].any():
        return prompt
    if picture_layers and pictures:
        whole = prefix.pictures == tuple(pictures) and not is_place[length:].any()
        length = length if whole else 0
    cache = beginning(prefix.cache, length, picture_layers) if length else None
    return prompt if cache is None else replace(prompt, cache=cache)


def prefix_after(
    prompt: Prompt,
    ids: Ints,
    cache: Any,
    *,
    pictures: Sequence[bytes],
    before: Sequence[Mark],
    weights: bytes,
) -> Prefix:
    """What a cache holds once a prompt was answered.

    Args:
        prompt: what was answered.
        ids: [n] the cache's tokens: the prompt, then the answer without its newest token.
        cache: of those.
        pictures: digests of the prompt's pictures.
        before: marks of the beginning that the prompt stood on.
        weights: see `Prefix`.
    """
    answered = len(ids) - len(prompt)
    last = prompt.position_ids[..., -1:]
    positions = torch.cat(
        [prompt.position_ids, last + 1 + torch.arange(answered, device=last.device)], dim=-1
    )
    marks = (*before, Mark(len(prompt), len(pictures)))
    return Prefix(ids, positions, tuple(pictures), marks, weights, cache)


def beginning(cache: Any, length: int, skip: Collection[int] = frozenset()) -> Any:
    """A second cache with the first tokens of another, which stays as it is.

    Args:
        cache: filled, with no pack waiting for `keep`.
        length: tokens to keep, at most those in it.
        skip: indices of layers that hold no text; they are taken over whole.

    Returns:
        The cache, or None where a layer is not on the allow-list or has forgotten what it would
        need: a window that moved on, a recurrent state.
    """
    layers = []
    for at, layer in enumerate(cache.layers):
        kind = type(layer)
        if kind not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
            return None
        cut = copy.copy(layer)
        if at not in skip and kind is not DummyLayer and layer.is_initialized:
            held = layer.keys.shape[-2]
            first = layer.get_seq_length() - held  # token in the first slot
            if kind is DynamicSlidingWindowLayer:
                reach = layer.sliding_window - 1
                if first > max(0, length - reach):
                    return None
                start, cut.cumulative_length = max(0, length - reach) - first, length
            else:
                start = 0
            cut.keys = layer.keys[..., start : length - first, :]
            cut.values = layer.values[..., start : length - first, :]
        layers.append(cut)
    second = copy.copy(cache)
    second.layers = layers
    return second


def _leading(true: Any) -> int:
    """How many entries are true before the first that is not."""
    return len(true) if true.all() else int(np.argmin(true))
