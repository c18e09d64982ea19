"""What tiny vision-language models are made of: towers, decoders, and pictures as tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from eyespan.testing.text_models import sizes
from eyespan.testing.tokens import IMAGE, VIDEO_PAD

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A tiny family.

    Attributes:
        config: makes its config.
        pictures: count -> the tensors of that many pictures; None where a processor makes them.
        videos: count -> the tensors of that many videos; None where the family has none.
        image, video: placeholder ids.
        before, after: ids around each picture or video span.
        apart: every frame of a video has a span of its own.
        counts: tensors -> placeholders of each picture; None asks the model's own tower.
        kinds: what `Family.token_kinds` says of a picture's and a video's placeholders.
    """

    config: Callable[[], Any]
    pictures: Callable[[int], Tensors] | None = None
    videos: Callable[[int], Tensors] | None = None
    image: int = IMAGE
    video: int = VIDEO_PAD
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    apart: bool = False
    counts: Callable[[Tensors], list[int]] | None = None
    kinds: tuple[int, int] = (1, 2)


def noise(*shape: int) -> Tensor:
    """Normal numbers; more rows begin with the same ones."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))


def squares(side: int, name: str = "pixel_values") -> Callable[[int], Tensors]:
    """Pictures [n, 3, side, side]."""
    return lambda count: {name: noise(count, 3, side, side)}


def patches(
    width: int, grids: tuple[tuple[int, int, int], ...], pixels: str, grid: str
) -> Callable[[int], Tensors]:
    """Pictures or videos as rows of patches [sum(t h w), width] and their grids."""

    def make(count: int) -> Tensors:
        sizes = torch.tensor([grids[at % len(grids)] for at in range(count)])
        return {pixels: noise(int(sizes.prod(-1).sum()), width), grid: sizes}

    return make


def nested(side: int) -> Callable[[int], Tensors]:
    """Pictures [1, n, 3, side, side] with masks that hide a margin of every second one."""

    def make(count: int) -> Tensors:
        mask = torch.ones(1, count, side, side, dtype=torch.bool)
        mask[:, 1::2, side // 2 :] = False
        return {"pixel_values": noise(1, count, 3, side, side), "pixel_attention_mask": mask}

    return make


def clip(side: int = 28, **changes: Any) -> Any:
    return transformers.CLIPVisionConfig(**tower(side, **changes))


def siglip(side: int = 28, **changes: Any) -> Any:
    return transformers.SiglipVisionConfig(**tower(side, vision_use_head=False, **changes))


def tower(side: int | list[int] = 28, **changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": side,
        "patch_size": 14,
        **changes,
    }


def llama(**changes: Any) -> Any:
    return transformers.LlamaConfig(**sizes(**changes))


def qwen2(**changes: Any) -> Any:
    return transformers.Qwen2Config(**sizes(**changes))


IMAGE_ID = {"image_token_id": IMAGE, "tie_word_embeddings": False}
