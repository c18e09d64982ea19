"""Tiny families whose pictures are squares or tiles of them: LLaVA and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from eyespan.testing.text_models import sizes
from eyespan.testing.tokens import VIDEO_PAD, VOCAB_SIZE
from eyespan.testing.vision.pictures import (
    IMAGE_ID,
    Tensors,
    Tiny,
    clip,
    llama,
    nested,
    noise,
    qwen2,
    siglip,
    squares,
    tower,
)


def _sized(count: int) -> Tensors:
    """Pictures [n, 3, 56, 56] of which only [height, width] is filled."""
    shapes = ((56, 56), (28, 56), (56, 28))
    return {
        "pixel_values": noise(count, 3, 56, 56),
        "image_sizes": torch.tensor([shapes[at % 3] for at in range(count)]),
    }


def _llava() -> Any:
    return transformers.LlavaConfig(vision_config=clip(), text_config=llama(), **IMAGE_ID)


def _llava_next() -> Any:
    return transformers.LlavaNextConfig(
        vision_config=clip(),
        text_config=llama(),
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        **IMAGE_ID,
    )


def _vipllava() -> Any:
    return transformers.VipLlavaConfig(
        vision_config=clip(), text_config=llama(), vision_feature_layers=[-2, -1], **IMAGE_ID
    )


def _llava_onevision() -> Any:
    return transformers.LlavaOnevisionConfig(
        vision_config=siglip(),
        text_config=qwen2(),
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        video_token_id=VIDEO_PAD,
        **IMAGE_ID,
    )


def _onevision_pictures(count: int) -> Tensors:
    """Pictures of up to two tiles and their overview, [n, 3, 3, 28, 28]."""
    shapes = ((28, 56), (56, 28))
    return {
        "pixel_values": noise(count, 3, 3, 28, 28),
        "image_sizes": torch.tensor([shapes[at % 2] for at in range(count)]),
    }


def _llava_next_video() -> Any:
    return transformers.LlavaNextVideoConfig(
        vision_config=clip(56),
        text_config=llama(),
        image_grid_pinpoints=[[56, 112], [112, 56], [112, 112]],
        video_token_id=VIDEO_PAD,
        spatial_pool_stride=2,
        **IMAGE_ID,
    )


def _next_pictures(count: int) -> Tensors:
    """Pictures of up to two tiles of 56 and their overview."""
    shapes = ((56, 112), (112, 56))
    return {
        "pixel_values": noise(count, 3, 3, 56, 56),
        "image_sizes": torch.tensor([shapes[at % 2] for at in range(count)]),
    }


def _film(side: int, frames: int) -> Callable[[int], Tensors]:
    """Videos [n, frames, 3, side, side]."""
    return lambda count: {"pixel_values_videos": noise(count, frames, 3, side, side)}


def _video_llava() -> Any:
    return transformers.VideoLlavaConfig(
        vision_config=clip(), text_config=llama(), video_token_id=VIDEO_PAD, **IMAGE_ID
    )


def _pixtral_tower() -> Any:
    return transformers.PixtralVisionConfig(**tower(56, head_dim=8))


def _pixtral() -> Any:
    return transformers.LlavaConfig(
        vision_config=_pixtral_tower(),
        text_config=llama(),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **IMAGE_ID,
    )


def _mistral3() -> Any:
    text = transformers.MistralConfig(**sizes(sliding_window=None))
    return transformers.Mistral3Config(
        vision_config=_pixtral_tower(), text_config=text, spatial_merge_size=2, **IMAGE_ID
    )


def _idefics2() -> Any:
    perceiver = {
        "hidden_size": 64,
        "resampler_n_latents": 4,
        "resampler_depth": 1,
        "resampler_n_heads": 2,
        "resampler_head_dim": 16,
        "num_key_value_heads": 2,
    }
    return transformers.Idefics2Config(
        vision_config=tower(),
        perceiver_config=perceiver,
        text_config=transformers.MistralConfig(**sizes(sliding_window=None)),
        **IMAGE_ID,
    )


def _idefics3(kind: str = "Idefics3Config") -> Any:
    return getattr(transformers, kind)(
        vision_config=tower(56), text_config=llama(), scale_factor=2, **IMAGE_ID
    )


def _internvl() -> Any:
    vision = transformers.InternVLVisionConfig(
        **tower([56, 56], patch_size=[14, 14]), use_mask_token=False
    )
    return transformers.InternVLConfig(
        vision_config=vision, text_config=qwen2(), downsample_ratio=0.5, **IMAGE_ID
    )


def _got_ocr2() -> Any:
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 128,
        "patch_size": 16,
        "mlp_dim": 48,
        "output_channels": 16,
        "window_size": 4,
        "global_attn_indexes": [1],
    }
    return transformers.GotOcr2Config(vision_config=vision, text_config=qwen2(), **IMAGE_ID)


def _ovis2() -> Any:
    vision = tower(
        28, hidden_stride=1, vocab_size=40, num_visual_indicator_tokens=5, hidden_act="silu"
    )
    return transformers.Ovis2Config(
        vision_config=vision,
        text_config=qwen2(),
        visual_indicator_token_ids=[4, 5, 6, 7, 8],
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        **IMAGE_ID,
    )


def _aya_vision(kind: str = "AyaVisionConfig") -> Any:
    text = transformers.Cohere2Config(
        **sizes(
            sliding_window=12,
            layer_types=["sliding_attention", "full_attention"],
            logit_scale=1.0,
        )
    )
    changes = {"alignment_intermediate_size": 64} if kind.startswith("Cohere") else {}
    return getattr(transformers, kind)(
        vision_config=siglip(56), text_config=text, downsample_factor=2, **changes, **IMAGE_ID
    )


PROCESSED: Mapping[str, Tiny] = {
    "llava": Tiny(config=_llava),
    "llava_next": Tiny(config=_llava_next),
}


FED: Mapping[str, Tiny] = {
    "vipllava": Tiny(config=_vipllava, pictures=squares(28)),
    "pixtral": Tiny(config=_pixtral, pictures=_sized),
    "mistral3": Tiny(config=_mistral3, pictures=_sized),
    "llava_onevision": Tiny(
        config=_llava_onevision, pictures=_onevision_pictures, videos=_film(28, frames=3)
    ),
    "llava_next_video": Tiny(
        config=_llava_next_video, pictures=_next_pictures, videos=_film(56, frames=2)
    ),
    "video_llava": Tiny(config=_video_llava, pictures=squares(28), videos=_film(28, frames=8)),
    "idefics2": Tiny(config=_idefics2, pictures=nested(28)),
    "idefics3": Tiny(config=_idefics3, pictures=nested(56)),
    "smolvlm": Tiny(config=lambda: _idefics3("SmolVLMConfig"), pictures=nested(56)),
    "internvl": Tiny(config=_internvl, pictures=squares(56)),
    "got_ocr2": Tiny(config=_got_ocr2, pictures=squares(128)),
    "ovis2": Tiny(config=_ovis2, pictures=squares(28), before=(4, 5), after=(8,)),
    "aya_vision": Tiny(config=_aya_vision, pictures=squares(56)),
    "cohere2_vision": Tiny(config=lambda: _aya_vision("Cohere2VisionConfig"), pictures=squares(56)),
}
