"""Families' own processors around `tiny_tokenizer`, with PIL image processing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import transformers

from eyespan.target.frames import FRAMES
from eyespan.target.processors import with_frames
from eyespan.testing.tokens import CHAT, tiny_tokenizer

_PINPOINTS = [[28, 56], [56, 28], [56, 56]]


def tiny_processor(family: str) -> Any:
    """The family's own processor; a plain tokenizer where there is none, or where the package that
    SmolVLM's needs (num2words) is not there.
    """
    make = _MAKERS.get(family)
    if family == "smolvlm" and find_spec("num2words") is None:
        make = None
    return make(family) if make else tiny_tokenizer()


def _template(image: str, video: str = "") -> str:
    """The tiny chat template with a family's marks of pictures and videos."""
    return CHAT.replace("IMAGE", image).replace("VIDEO", video)


def _square(side: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}


def _qwen(family: str) -> Any:
    """Qwen-VL's processor; for video, our own frames in it."""
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
    limits = {"shortest_edge": 28 * 28, "longest_edge": 84 * 84}
    film = "<|video_pad|>"  # Qwen3-VL puts marks around every frame itself
    return with_frames(getattr(transformers, f"{name}Processor"), FRAMES[family])(
        image_processor=transformers.Qwen2VLImageProcessorPil(
            min_pixels=28 * 28, max_pixels=84 * 84
        ),
        video_processor=FRAMES[family](
            size=limits if family != "qwen3_vl" else {k: 4 * v for k, v in limits.items()},
            patch_size=14,
            min_frames=2,
        ),
        tokenizer=tiny_tokenizer(),
        chat_template=_template(
            "<|vision_start|><|image_pad|><|vision_end|>",
            film if family == "qwen3_vl" else f"<|vision_start|>{film}<|vision_end|>",
        ),
    )


def _llava(family: str) -> Any:
    """LLaVA's and LLaVA-NeXT's."""
    parts: dict[str, Any] = {
        "tokenizer": tiny_tokenizer(),
        "chat_template": _template("<image>"),
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    if family == "llava":
        images = transformers.CLIPImageProcessorPil(**_square(28))
        return transformers.LlavaProcessor(image_processor=images, **parts)
    images = transformers.LlavaNextImageProcessorPil(image_grid_pinpoints=_PINPOINTS, **_square(28))
    return transformers.LlavaNextProcessor(image_processor=images, **parts)


def _filmed(family: str, name: str, images: Any, frames: Mapping[str, Any], **more: Any) -> Any:
    """A stock processor whose videos have a placeholder of their own."""
    more.setdefault("video_token", "<|video_pad|>")
    return with_frames(getattr(transformers, name), FRAMES[family])(
        image_processor=images,
        video_processor=FRAMES[family](**frames),
        tokenizer=more.pop("tokenizer", None) or tiny_tokenizer(),
        chat_template=_template("<image>", "<|video_pad|>"),
        **more,
    )


def _llava_onevision(family: str) -> Any:
    images = transformers.LlavaOnevisionImageProcessorPil(
        size={"height": 28, "width": 28}, image_grid_pinpoints=_PINPOINTS
    )
    return _filmed(
        family,
        "LlavaOnevisionProcessor",
        images,
        {"size": {"height": 28, "width": 28}},
        num_image_tokens=4,
        vision_feature_select_strategy="full",
    )


def _llava_next_video(family: str) -> Any:
    pinpoints = [[2 * side for side in shape] for shape in _PINPOINTS]
    images = transformers.LlavaNextImageProcessorPil(image_grid_pinpoints=pinpoints, **_square(56))
    return _filmed(
        family,
        "LlavaNextVideoProcessor",
        images,
        _square(56),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def _video_llava(family: str) -> Any:
    images = transformers.VideoLlavaImageProcessor(**_square(28))
    return _filmed(family, "VideoLlavaProcessor", images, _square(28), patch_size=14)


def _internvl(family: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.context_image_token, tokenizer.context_image_token_id = "<image>", 3
    tokenizer.start_image_token, tokenizer.start_image_token_id = "<|vision_start|>", 4
    tokenizer.end_image_token, tokenizer.end_image_token_id = "<|vision_end|>", 5
    tokenizer.video_token = "<|video_pad|>"
    side = {"size": {"height": 56, "width": 56}}
    make = with_frames(transformers.InternVLProcessor, FRAMES[family])
    return make(
        image_processor=transformers.GotOcr2ImageProcessorPil(**side),
        video_processor=FRAMES[family](**side),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template=_template("<image>", "<|video_pad|>"),
    )


def _smolvlm(family: str) -> Any:
    """SmolVLM's own, which needs num2words; it writes videos by a template of its own."""
    tokenizer = tiny_tokenizer()
    tokenizer.video_token, tokenizer.fake_image_token = "<video>", "<|vision_start|>"
    tokenizer.global_image_token = "<|vision_end|>"
    images = transformers.SmolVLMImageProcessorPil(
        size={"longest_edge": 112}, max_image_size={"longest_edge": 56}, do_image_splitting=False
    )
    frames = FRAMES[family](
        size={"longest_edge": 112}, max_image_size={"longest_edge": 56}, num_frames=8, fps=1.0
    )
    make = with_frames(transformers.SmolVLMProcessor, FRAMES[family])
    return make(
        image_processor=images,
        video_processor=frames,
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=_template("<image>", "<video>"),
    )


def _blip2(family: str) -> Any:
    """BLIP-2's, which has places for one picture."""
    images = transformers.BlipImageProcessorPil(size={"height": 28, "width": 28})
    return transformers.Blip2Processor(
        image_processor=images, tokenizer=tiny_tokenizer(), num_query_tokens=4
    )


_MAKERS: Mapping[str, Callable[[str], Any]] = {
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "llava": _llava,
    "llava_next": _llava,
    "llava_onevision": _llava_onevision,
    "llava_next_video": _llava_next_video,
    "video_llava": _video_llava,
    "internvl": _internvl,
    "smolvlm": _smolvlm,
    "blip2": _blip2,
}
