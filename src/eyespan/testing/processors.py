"""Families' own processors around `tiny_tokenizer`, with PIL image processing."""

from __future__ import annotations

from typing import Any

import transformers

from eyespan.target.processors import without_video
from eyespan.testing.tokens import CHAT, tiny_tokenizer
from eyespan.testing.vision import PROCESSED


def tiny_processor(family: str) -> Any:
    """The family's own processor; a plain tokenizer where there is none."""
    tokenizer = tiny_tokenizer()
    if family not in PROCESSED:
        return tokenizer
    mark = "<|vision_start|><|image_pad|><|vision_end|>" if "qwen" in family else "<image>"
    parts: dict[str, Any] = {"tokenizer": tokenizer, "chat_template": CHAT.replace("IMAGE", mark)}
    if family in ("qwen2_vl", "qwen2_5_vl"):
        parts["image_processor"] = transformers.Qwen2VLImageProcessorPil(
            min_pixels=28 * 28, max_pixels=84 * 84
        )
        kind = "Qwen2VLProcessor" if family == "qwen2_vl" else "Qwen2_5_VLProcessor"
        return without_video(getattr(transformers, kind))(**parts)
    square = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    parts |= {
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    if family == "llava":
        parts["image_processor"] = transformers.CLIPImageProcessorPil(**square)
        return transformers.LlavaProcessor(**parts)
    parts["image_processor"] = transformers.LlavaNextImageProcessorPil(
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]], **square
    )
    return transformers.LlavaNextProcessor(**parts)
