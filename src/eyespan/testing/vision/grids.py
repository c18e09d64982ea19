"""Tiny families whose pictures are rows of patches with a grid: Qwen-VL, GLM-V, Kimi."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers

from eyespan.testing.text_models import deepseek, delta_sizes, sizes
from eyespan.testing.tokens import IMAGE_PAD, MEDIA_END, MEDIA_START, VIDEO_PAD
from eyespan.testing.vision.pictures import (
    Tensors,
    Tiny,
    patches,
)

_GRIDS = ((1, 4, 4), (1, 4, 2), (1, 2, 6))
"""Patches of the first, second, third picture by time, height and width."""


_VIDEO_GRIDS = ((2, 2, 4), (3, 4, 2))


_GRID_IDS = {
    "vision_start_token_id": MEDIA_START,
    "vision_end_token_id": MEDIA_END,
    "image_token_id": IMAGE_PAD,
    "video_token_id": VIDEO_PAD,
    "tie_word_embeddings": False,
}


_MERGED: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2}


_SMALL_MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 2],
}


_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}


_INTERLEAVED = {**_MROPE, "mrope_interleaved": True}


def _qwen2_vl() -> Any:
    return transformers.Qwen2VLConfig(
        vision_config={**_MERGED, "embed_dim": 32, "hidden_size": 64},
        text_config=sizes(rope_parameters=_MROPE),
        **_GRID_IDS,
    )


def _qwen2_5_vl() -> Any:
    vision = {
        **_MERGED,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    return transformers.Qwen2_5_VLConfig(
        vision_config=vision, text_config=sizes(rope_parameters=_MROPE), **_GRID_IDS
    )


_QWEN3_VISION = {
    **_MERGED,
    "patch_size": 14,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
}


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _qwen3_vl() -> Any:
    text = sizes(head_dim=16, rope_parameters=_INTERLEAVED)
    return transformers.Qwen3VLConfig(vision_config=_QWEN3_VISION, text_config=text, **_GRID_IDS)


def _qwen3_vl_moe() -> Any:
    text = sizes(head_dim=16, rope_parameters=_INTERLEAVED, **_EXPERTS)
    return transformers.Qwen3VLMoeConfig(vision_config=_QWEN3_VISION, text_config=text, **_GRID_IDS)


def _qwen3_5(kind: str = "Qwen3_5Config", **text: Any) -> Any:
    vision = {k: v for k, v in _QWEN3_VISION.items() if k != "deepstack_visual_indexes"}
    rope = {**_INTERLEAVED, "partial_rotary_factor": 1.0}
    return getattr(transformers, kind)(
        vision_config=vision, text_config=delta_sizes(rope_parameters=rope, **text), **_GRID_IDS
    )


def _qwen3_5_moe() -> Any:
    return _qwen3_5("Qwen3_5MoeConfig", **_EXPERTS, shared_expert_intermediate_size=32)


def _glm4v(kind: str = "Glm4vConfig", rope: Mapping[str, Any] = _MROPE, **text: Any) -> Any:
    vision = {
        **_MERGED,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 48,
        "image_size": 56,
    }
    ids = {
        "image_token_id": IMAGE_PAD,
        "video_token_id": VIDEO_PAD,
        "image_start_token_id": MEDIA_START,
        "image_end_token_id": MEDIA_END,
        "video_start_token_id": MEDIA_START,
        "video_end_token_id": MEDIA_END,
        "tie_word_embeddings": False,
    }
    return getattr(transformers, kind)(
        vision_config=vision, text_config=sizes(rope_parameters=dict(rope), **text), **ids
    )


def _glm4v_moe() -> Any:
    return _glm4v(
        "Glm4vMoeConfig",
        _SMALL_MROPE,
        head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    )


def _kimi_k25() -> Any:
    vision = {
        "patch_size": 14,
        "pos_emb_height": 8,
        "pos_emb_width": 8,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
    }
    return transformers.Kimi_K25Config(
        vision_config=vision, text_config=deepseek(), projection_hidden_size=32, **_GRID_IDS
    )


def _unfolded(make: Callable[[int], Tensors], pixels: str) -> Callable[[int], Tensors]:
    """The same patches as [n, 3, 14, 14]."""

    def unfolded(count: int) -> Tensors:
        tensors = make(count)
        return {**tensors, pixels: tensors[pixels].view(-1, 3, 14, 14)}

    return unfolded


def _grid(width: int, **changes: Any) -> dict[str, Any]:
    """Pictures and videos as patches of `width` numbers between two marks."""
    return {
        "pictures": patches(width, _GRIDS, "pixel_values", "image_grid_thw"),
        "videos": patches(width, _VIDEO_GRIDS, "pixel_values_videos", "video_grid_thw"),
        "image": IMAGE_PAD,
        "before": (MEDIA_START,),
        "after": (MEDIA_END,),
        **changes,
    }


_TEMPORAL = 3 * 2 * 14 * 14
"""Numbers of one patch of two frames."""


_KIMI = _grid(3 * 14 * 14)


PROCESSED: Mapping[str, Tiny] = {
    "qwen2_vl": Tiny(config=_qwen2_vl, **_grid(_TEMPORAL)),
    "qwen2_5_vl": Tiny(config=_qwen2_5_vl, **_grid(_TEMPORAL)),
}


FED: Mapping[str, Tiny] = {
    "qwen3_vl": Tiny(config=_qwen3_vl, **_grid(_TEMPORAL, apart=True)),
    "qwen3_vl_moe": Tiny(config=_qwen3_vl_moe, **_grid(_TEMPORAL, apart=True)),
    "glm4v": Tiny(config=_glm4v, **_grid(_TEMPORAL, apart=True, video=IMAGE_PAD)),
    "glm4v_moe": Tiny(config=_glm4v_moe, **_grid(_TEMPORAL, apart=True, video=IMAGE_PAD)),
    "kimi_k25": Tiny(
        config=_kimi_k25,
        pictures=_unfolded(_KIMI["pictures"], "pixel_values"),
        videos=_unfolded(_KIMI["videos"], "pixel_values_videos"),
        image=IMAGE_PAD,
    ),
    "qwen3_5": Tiny(config=_qwen3_5, **_grid(_TEMPORAL, apart=True)),
    "qwen3_5_moe": Tiny(config=_qwen3_5_moe, **_grid(_TEMPORAL, apart=True)),
}
