"""Tiny random models of every supported family, ready targets, and prompts for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor

from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing.processors import tiny_processor
from eyespan.testing.text_models import CHAIN_STATES, MORE, PLAIN, TREE_STATES
from eyespan.testing.tokens import EOS, PAD
from eyespan.testing.vision import FED, PROCESSED, Tiny

SEEING = tuple(PROCESSED)
"""Tiny families that take pictures through `prepare()`."""

TEXT_ONLY = tuple(PLAIN)
"""A few tiny families that do not; `mistral` and `gemma3_text` have windows of 12 tokens."""

EVERY_SEEING = (*PROCESSED, *FED)
"""All tiny families that take pictures; `tiny_prompt` makes their prompts."""

CHAINS = tuple(CHAIN_STATES)
"""Tiny families that verify chains only."""

EVERY_TEXT = (*PLAIN, *MORE, *TREE_STATES, *CHAIN_STATES)
"""All tiny families that do not."""

_SEEING: Mapping[str, Tiny] = {**PROCESSED, **FED}
_TEXT: Mapping[str, Callable[[], Any]] = {**PLAIN, **MORE, **TREE_STATES, **CHAIN_STATES}

WATCHING = tuple(name for name, tiny in _SEEING.items() if tiny.videos)
"""Tiny families that take videos."""

FILMED = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "llava_onevision",
    "llava_next_video",
    "video_llava",
    "internvl",
    "smolvlm",
)
"""Tiny families that take videos through `prepare()`."""


def tiny_model(
    family: str,
    *,
    attention: str | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Any:
    """A random model of a family.

    Args:
        family: one of `EVERY_SEEING` or `EVERY_TEXT`.
        attention: "sdpa" or "eager"; default: the first of them that the family has.
        dtype: of its weights.
        seed: of its weights.
    """
    config = _SEEING[family].config() if family in _SEEING else _TEXT[family]()
    seeing = type(config) in transformers.AutoModelForImageTextToText._model_mapping
    kind = transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind.from_config(config, attn_implementation=attention)
    _reinitialise(model, seed)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = PAD
    for parameter in model.parameters():  # not model.to(): rotary tables stay in float32
        parameter.data = parameter.data.to(dtype)
    return model.eval()


def _reinitialise(model: Any, seed: int) -> None:
    """Draw weights so that states keep unit scale and logits spread over about +-8."""
    generator = torch.Generator().manual_seed(seed)
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                scale = parameter[0].numel() ** -0.5
                parameter.normal_(0.0, scale, generator=generator)
            elif parameter.numel() == 1:  # a gate, closed when training begins
                parameter.fill_(0.7)
        embeddings.normal_(0.0, 1.0, generator=generator)
        head.normal_(0.0, 3.0 * head.shape[1] ** -0.5, generator=generator)


def tiny_target(
    family: str,
    *,
    attention: str | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> HuggingFaceTarget:
    """A ready target of a family; arguments as for `tiny_model`."""
    model = tiny_model(family, attention=attention, dtype=dtype, seed=seed)
    return HuggingFaceTarget(model, tiny_processor(family), name=f"tiny {family}")


def tiny_images(count: int, seed: int = 0) -> list[Image.Image]:
    """Pictures of different sizes, so that grids and tilings differ."""
    rng = np.random.default_rng(seed)
    sizes = [(56, 56), (84, 56), (56, 112), (40, 30)]
    return [
        Image.fromarray(rng.integers(0, 255, (*sizes[i % len(sizes)], 3), dtype=np.uint8))
        for i in range(count)
    ]


def tiny_video(frames: int = 4, seed: int = 0, size: tuple[int, int] = (40, 56)) -> Any:
    """[frames, height, width, 3] uint8, every frame another."""
    rng = np.random.default_rng(1000 + seed)
    return rng.integers(0, 255, (frames, *size, 3), dtype=np.uint8)


def tiny_prompt(
    target: HuggingFaceTarget,
    family: str,
    images: int = 0,
    videos: int = 0,
    text: str = "What is this?",
) -> Prompt:
    """A prompt of pictures, videos and text in turn: media stand between the words.

    Args:
        target: what `tiny_target(family)` returned.
        family: its name.
        images: pictures, of different sizes where the family takes those.
        videos: videos, for families of `WATCHING`.
        text: cut into words around the media.
    """
    if family in PROCESSED and not videos:
        return target.prepare(text, tiny_images(images))
    if family not in _SEEING:
        return target.prompt_from_ids(target.tokenizer(text)["input_ids"])
    tiny = _SEEING[family]
    media: dict[str, Tensor] = {}
    spans: list[list[int]] = []
    kinds: list[int] = []
    if images:
        assert tiny.pictures is not None
        media |= (tensors := tiny.pictures(images))
        counts = tiny.counts(tensors) if tiny.counts else _counts(target, tensors, "image")
        spans += [[tiny.image] * count for count in counts]
        kinds += [tiny.kinds[0]] * len(counts)
    if videos:
        assert tiny.videos is not None
        media |= (tensors := tiny.videos(videos))
        counts = _counts(target, tensors, "video")
        if tiny.apart:
            frames = tensors["video_grid_thw"][:, 0].tolist()
            counts = [c // f for c, f in zip(counts, frames, strict=True) for _ in range(f)]
        spans += [[tiny.video] * count for count in counts]
        kinds += [tiny.kinds[1]] * len(counts)
    ids, said = _interleaved(target, tiny, text, spans, kinds)
    row = target.family
    if row.token_kinds:
        media[row.token_kinds] = torch.tensor([said])
    if family == "mllama" and images:
        media["cross_attention_mask"] = _sees(ids, tiny.image, media["aspect_ratio_mask"])
    return target.prompt_from_ids(ids, **media)


def _interleaved(
    target: HuggingFaceTarget, tiny: Tiny, text: str, spans: list[list[int]], kinds: list[int]
) -> tuple[list[int], list[int]]:
    """Ids and their kinds: a span, a word, a span, a word, and so on."""
    ids: list[int] = []
    said: list[int] = []
    words = text.split(" ")
    for at in range(max(len(words), len(spans))):
        if at < len(spans):
            ids += [*tiny.before, *spans[at], *tiny.after]
            said += [0] * len(tiny.before) + [kinds[at]] * len(spans[at]) + [0] * len(tiny.after)
        if at < len(words):
            ids += target.tokenizer(words[at])["input_ids"]
            said += [0] * (len(ids) - len(said))
    return ids, said


def _counts(target: HuggingFaceTarget, tensors: Mapping[str, Tensor], modality: str) -> list[int]:
    """Placeholders of each picture or video, as many as the model's own tower makes features."""
    encode = getattr(target.model.base_model, f"get_{modality}_features")
    known = inspect.signature(encode).parameters
    with torch.no_grad():
        features = encode(**{k: v for k, v in tensors.items() if k in known}, return_dict=True)
    return [len(one) for one in features.pooler_output]


def _sees(ids: list[int], image: int, tiles: Tensor) -> Tensor:
    """[1, L, images, tiles]: every token sees the tiles of the pictures before it."""
    before = torch.tensor(ids).eq(image).cumsum(0)[:, None]
    seen = before > torch.arange(tiles.shape[1])
    return (seen[..., None] & tiles.bool()).long()[None]
