"""Features of pictures, computed once: within a request, and within a conversation that keeps them.

transformers' models take features that are there already (`mm_encoder_outputs`); so a picture that
comes twice, in one prompt or in the next turn's, need not go through the vision tower again. What
counts as the same picture is decided on what the tower would read: a digest over the names, shapes,
dtypes and bytes of all its tensors, which hold everything that mode, size and preprocessing did to
it, and the state of the weights. A digest that leaves one of these out shows one user's picture to
another.

The same entry point cuts features to the tokens that are run, so that a prompt whose beginning is
cached already brings only the pictures behind it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyespan.errors import UnsupportedRequest
from eyespan.target.families import Family
from eyespan.types import Ints

READY = "mm_encoder_outputs"
"""The forward argument that takes features by modality."""

_PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
_BY_TOKEN = "deepstack_features"
"""Features besides the pooled ones: one [tokens, d] tensor for each layer that takes them."""

MEMORY_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Features:
    """One picture's features, or those of all, on the model's device.

    Attributes:
        pooled: [tokens, d] what stands in the place of the placeholders.
        layers: [tokens, d] each, what some decoder layers add to it (Qwen3-VL); else empty.
        shell: how the tower's output is rebuilt around them.
    """

    pooled: Tensor
    layers: tuple[Tensor, ...]
    shell: _Shell

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(each.numel() * each.element_size() for each in (self.pooled, *self.layers))


@dataclass(frozen=True, slots=True)
class _Shell:
    """A tower's output class, whether its features and those of its layers are one tensor instead
    of one for each picture, and fields of other kinds.
    """

    kind: type[Any]
    stacked: bool
    layers_stacked: bool
    others: Mapping[str, Any]


class FeatureMemory:
    """The features of one conversation, least recently used out first. One thread uses it.

    Whoever shares a memory can tell by time whether a picture was seen before, so it belongs to one
    conversation or memory scope, never to a whole server.

    Args:
        most_bytes: what it may hold.

    Attributes:
        hits: pictures found.
        misses: pictures that were not there.
    """

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self._most = most_bytes
        self._held = 0
        self._store: OrderedDict[bytes, Features] = OrderedDict()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._store)

    def fork(self) -> FeatureMemory:
        """A second memory with the same features."""
        second = FeatureMemory(self._most)
        second._store, second._held = self._store.copy(), self._held
        return second

    @property
    def held_bytes(self) -> int:
        """What it holds now."""
        return self._held

    def get(self, key: bytes) -> Features | None:
        """The features of a digest, if they are still here."""
        found = self._store.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._store.move_to_end(key)
        return found

    def put(self, key: bytes, features: Features) -> None:
        """Keep features; those that alone exceed the limit are not kept."""
        if features.size > self._most:
            return
        self.clear(key)
        self._store[key] = features
        self._held += features.size
        while self._held > self._most:
            self.clear(next(iter(self._store)))

    def clear(self, key: bytes | None = None) -> None:
        """Forget one picture, or all."""
        if key is None:
            self._store.clear()
            self._held = 0
        elif key in self._store:
            self._held -= self._store.pop(key).size


class Encoder:
    """Turns the media of a prompt into what a forward takes, for one model.

    Args:
        model: its towers are `base_model.get_image_features` and `get_video_features`.
        family: says how single pictures are cut out of a request's tensors.
        picture_ids: ids in whose place features stand.
    """

    def __init__(self, model: Any, family: Family, picture_ids: frozenset[int]) -> None:
        self._family, self._picture_ids = family, list(picture_ids)
        takes = READY in inspect.signature(model.forward).parameters
        self._towers = {
            modality: tower
            for modality in _PIXELS
            if takes and (tower := getattr(model.base_model, f"get_{modality}_features", None))
        }
        self._model = model

    @property
    def cuts(self) -> bool:
        """Whether features can be brought for the last pictures of a prompt alone."""
        return "image" in self._towers

    def mixes(self, media: Mapping[str, Any]) -> bool:
        """Whether a prompt has both pictures and videos, whose features are cut apart nowhere."""
        return all(media.get(pixels) is not None for pixels in _PIXELS.values())

    def inputs(
        self, media: Mapping[str, Any], ids: Ints, past: int, memory: FeatureMemory | None
    ) -> dict[str, Any]:
        """The media inputs of a forward over `ids[past:]`.

        Pictures that are all new, with no memory to keep them, stay pixels: the model's own forward
        encodes them, as in stock.

        Args:
            media: of the whole prompt; inputs with a row per token are left as they are.
            ids: [L] the whole prompt.
            past: tokens that the cache holds already.
            memory: where features are looked up and kept; None works for this call alone.

        Raises:
            UnsupportedRequest: part of the media is cached, and this model cannot say which.
        """
        is_place = np.isin(ids, self._picture_ids)
        before = int(is_place[:past].sum())
        if past and not is_place[past:].any():
            used = {*self._family.media_inputs, READY}
            return {name: value for name, value in media.items() if name not in used}
        given = dict(media)
        for modality, tower in self._towers.items():
            if given.get(_PIXELS[modality]) is not None:
                known = inspect.signature(tower).parameters
                tensors = {name: given[name] for name in known if name in given}
                features = self._encode(modality, tensors, memory, always=before > 0)
                if features is not None:
                    given = {name: value for name, value in given.items() if name not in tensors}
                    given[READY] = {**given.get(READY, {}), modality: _output(features)}
        return self._behind(given, before) if before else given

    def _behind(self, given: dict[str, Any], before: int) -> dict[str, Any]:
        """Drop the features of the first `before` placeholders."""
        ready = {name: each for name, each in given.get(READY, {}).items() if each is not None}
        if len(ready) != 1 or set(given) & set(_PIXELS.values()):
            raise UnsupportedRequest(
                "a prompt whose first tokens are cached",
                found="pictures or videos on both sides of where the cache ends",
                needed="all of them behind it or before it are needed with this model",
                todo="Pass the prompt without a cache.",
            )
        ((modality, output),) = ready.items()
        (whole,) = _features(output, 1)
        rest = Features(
            whole.pooled[before:], tuple(each[before:] for each in whole.layers), whole.shell
        )
        others = {k: value for k, value in given.items() if k not in self._family.media_inputs}
        return {**others, READY: {modality: _output([rest])}}

    def _encode(
        self,
        modality: str,
        tensors: Mapping[str, Any],
        memory: FeatureMemory | None,
        *,
        always: bool,
    ) -> list[Features] | None:
        """Features of every picture, each encoded once, the missing ones in one call; None where
        nothing is gained, unless they are wanted always.
        """
        parts = self._parts(modality, tensors)
        if memory is None and len(parts) == 1 and not always:
            return None
        weights = self.weights() if memory is not None else b""
        keys = [_digest(modality, part, weights) for part in parts]
        if memory is None and len(set(keys)) == len(keys) and not always:
            return None
        memory = FeatureMemory() if memory is None else memory
        known = {key: memory.get(key) for key in dict.fromkeys(keys)}
        new = {k: part for k, part in zip(keys, parts, strict=True) if known[k] is None}
        if new:
            output = self._towers[modality](**_joined([*new.values()]), return_dict=True)
            for key, fresh in zip(new, _features(output, len(new)), strict=True):
                known[key] = fresh
                memory.put(key, fresh)
        return [features for key in keys if (features := known[key]) is not None]

    def _parts(self, modality: str, tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The tensors of single pictures, or of all where the family cannot tell them apart."""
        split = self._family.split if modality == "image" else self._family.video_split
        pixels = tensors[_PIXELS[modality]]
        others = {name: value for name, value in tensors.items() if name != _PIXELS[modality]}
        if split is None or not all(isinstance(value, Tensor) for value in others.values()):
            return [dict(tensors)]
        if split == "rows":
            counts = [1] * len(pixels)
        else:
            (grid,) = others.values()
            counts = grid.prod(-1).tolist()
        if any(len(value) != len(counts) for value in others.values()):
            return [dict(tensors)]
        return [
            {
                _PIXELS[modality]: rows,
                **{name: value[at : at + 1] for name, value in others.items()},
            }
            for at, rows in enumerate(pixels.split(counts))
        ]

    def weights(self) -> bytes:
        """What tells one state of the model's weights from another: training, adapters and loading
        write in place or put other tensors there.
        """
        state = [
            (parameter.data_ptr(), parameter._version) for parameter in self._model.parameters()
        ]
        return hashlib.sha256(repr(state).encode()).digest()


def of_rows(ready: Mapping[str, Any], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Features of a batch as those of its rows.

    Args:
        ready: `mm_encoder_outputs` of the whole batch, in the order of its rows.
        counts: [B] places that each row has for features.

    Raises:
        UnsupportedRequest: they do not say which row they belong to.
    """
    given = {name: each for name, each in ready.items() if each is not None}
    if not given and not any(counts):
        return [{} for _ in counts]
    whole = _features(next(iter(given.values())), 1)[0] if len(given) == 1 else None
    if whole is None or len(whole.pooled) != sum(counts):
        raise UnsupportedRequest(
            "speculation in generate()",
            found="media of more than one sequence that do not say where they belong",
            needed="features of one kind, one for each place in the prompts",
            todo="Stock's own loop answers this call.",
        )
    rows: list[dict[str, Any]] = []
    first = 0
    for count in counts:
        part = slice(first, first := first + count)
        own = Features(whole.pooled[part], tuple(each[part] for each in whole.layers), whole.shell)
        rows.append({next(iter(given)): _output([own])} if count else {})
    return rows


def _digest(modality: str, tensors: Mapping[str, Any], weights: bytes) -> bytes:
    """What the tower would read, to the last bit."""
    digest = hashlib.blake2b(weights, digest_size=32)
    for name, value in sorted(tensors.items()):
        if isinstance(value, Tensor):
            digest.update(repr((modality, name, tuple(value.shape), str(value.dtype))).encode())
            octets = value.detach().cpu().contiguous().view(torch.uint8)
            digest.update(octets.numpy().data)
        else:
            digest.update(repr((modality, name, value)).encode())
    return digest.digest()


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Tensors of several pictures as those of one request."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _features(output: Any, count: int) -> list[Features]:
    """A tower's output as the features of `count` pictures; of all together when count is 1."""
    pooled = [each.reshape(-1, each.shape[-1]) for each in output.pooler_output]
    others = {name: value for name, value in output.items() if name not in _REBUILT}
    extra = output.get(_BY_TOKEN) or ()
    shell = _Shell(
        type(output),
        isinstance(output.pooler_output, Tensor),
        all(isinstance(layer, Tensor) for layer in extra),
        others,
    )
    if count == 1:
        pooled = [torch.cat(pooled)]
    sizes = [len(each) for each in pooled]
    layers = [torch.split(_rows(layer), sizes) for layer in extra]
    return [
        Features(rows, tuple(layer[at] for layer in layers), shell)
        for at, rows in enumerate(pooled)
    ]


_REBUILT = (
    "pooler_output",
    _BY_TOKEN,
    "last_hidden_state",
    "hidden_states",
    "attentions",
    "vision_outputs",
    "qformer_outputs",
)
"""Fields of a tower's output that are made anew or that no decoder reads."""


def _rows(layer: Any) -> Tensor:
    """[tokens, d] of one tensor or several."""
    return layer if isinstance(layer, Tensor) else torch.cat(list(layer))


def _output(features: list[Features]) -> Any:
    """The tower's output for these pictures, as one run of features."""
    shell = features[0].shell
    pooled = torch.cat([each.pooled for each in features])
    fields = dict(shell.others)
    fields["pooler_output"] = pooled[None] if shell.stacked else [pooled]
    if features[0].layers:
        layers = [torch.cat(rows) for rows in zip(*(each.layers for each in features), strict=True)]
        fields[_BY_TOKEN] = layers if shell.layers_stacked else [[layer] for layer in layers]
    return shell.kind(**fields)
