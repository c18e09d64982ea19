"""Tiny families with masks, caches or inputs of their own: Gemma, PaliGemma, Mllama and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers

from eyespan.testing.text_models import gemma_sizes, sizes
from eyespan.testing.tokens import (
    BOS,
    EOS,
    IMAGE,
    IMAGE_PAD,
    MEDIA_END,
    MEDIA_START,
    PAD,
    VIDEO_PAD,
    VOCAB_SIZE,
)
from eyespan.testing.vision.pictures import (
    IMAGE_ID,
    Tensors,
    Tiny,
    noise,
    siglip,
    squares,
    tower,
)


def _gemma3() -> Any:
    text = gemma_sizes(query_pre_attn_scalar=16)
    return transformers.Gemma3Config(
        vision_config=siglip(),
        text_config=text,
        mm_tokens_per_image=4,
        boi_token_id=MEDIA_START,
        eoi_token_id=MEDIA_END,
        **IMAGE_ID,
    )


def _gemma4() -> Any:
    text = gemma_sizes(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=8,
        use_bidirectional_attention="vision",
    )
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "pooling_kernel_size": 2,
        "patch_size": 14,
        "position_embedding_size": 64,
    }
    return transformers.Gemma4Config(
        vision_config=vision,
        text_config=text,
        audio_config=None,
        boi_token_id=MEDIA_START,
        eoi_token_id=MEDIA_END,
        video_token_id=VIDEO_PAD,
        audio_token_id=None,
        **IMAGE_ID,
    )


def _gemma4_pictures(count: int) -> Tensors:
    """Patches [n, 16, 588] at (x, y); the second picture fills only half of them."""
    places = torch.tensor([[x, y] for y in range(4) for x in range(4)])
    positions = places.expand(count, -1, -1).clone()
    positions[1::2, 8:] = -1
    return {"pixel_values": noise(count, 16, 588).sigmoid(), "image_position_ids": positions}


def _paligemma() -> Any:
    text = sizes(head_dim=16, model_type="gemma")
    return transformers.PaliGemmaConfig(
        vision_config=siglip(projection_dim=64), text_config=text, projection_dim=64, **IMAGE_ID
    )


def _paligemma2() -> Any:
    text = gemma_sizes(query_pre_attn_scalar=16, model_type="gemma2")
    return transformers.PaliGemmaConfig(
        vision_config=siglip(projection_dim=64), text_config=text, projection_dim=64, **IMAGE_ID
    )


def _mllama() -> Any:
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 4,
        "intermediate_size": 48,
        "vision_output_dim": 64,
        "image_size": 28,
        "patch_size": 14,
        "max_num_tiles": 2,
        "intermediate_layers_indices": [0],
        "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
    }
    text = sizes(num_hidden_layers=3, cross_attention_layers=[1])
    return transformers.MllamaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE
    )


def _mllama_pictures(count: int) -> Tensors:
    """Pictures of two tiles, every second one of one tile."""
    tiles = torch.tensor([2 - at % 2 for at in range(count)])
    return {
        "pixel_values": noise(1, count, 2, 3, 28, 28),
        "aspect_ratio_ids": (torch.where(tiles == 2, 2, 1))[None],
        "aspect_ratio_mask": (torch.arange(2) < tiles[:, None]).long()[None],
    }


def _mllama_counts(tensors: Tensors) -> list[int]:
    """One mark each: the pictures stay outside the text."""
    return [1] * tensors["pixel_values"].shape[1]


def _phi4_multimodal() -> Any:
    vision = tower(28, crop_size=28, image_token_id=IMAGE)
    audio = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_blocks": 1,
        "num_attention_heads": 4,
        "ext_pw_out_channel": 32,
        "depthwise_separable_out_channel": 32,
        "nemo_conv_channels": 8,
        "audio_token_id": VIDEO_PAD,
    }
    return transformers.Phi4MultimodalConfig(
        **sizes(original_max_position_embeddings=512), vision_config=vision, audio_config=audio
    )


def _phi4_pictures(count: int) -> Tensors:
    return {
        "image_pixel_values": noise(count, 2, 3, 28, 28),
        "image_sizes": torch.full((count, 2), 28),
        "image_attention_mask": torch.ones(count, 2, 2, 2, dtype=torch.bool),
    }


def _phi4_counts(tensors: Tensors) -> list[int]:
    """Each picture: one crop and its overview, a mark behind each row and one between the two."""
    return [1 * 2 + 1 + 1 * 2] * len(tensors["image_sizes"])


def _molmo2() -> Any:
    vision = {**tower(), "num_key_value_heads": 4, "head_dim": 8, "image_size": [28, 28]}
    adapter = {
        "vision_feature_layer": [-1],
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 48,
        "text_hidden_size": 64,
    }
    return transformers.Molmo2Config(
        vision_config=vision,
        adapter_config=adapter,
        text_config=sizes(head_dim=16, additional_vocab_size=8),
        image_patch_id=IMAGE,
        image_start_token_id=MEDIA_START,
        low_res_image_start_token_id=IMAGE_PAD,
        image_end_token_id=MEDIA_END,
        frame_start_token_id=VIDEO_PAD,
        frame_end_token_id=VIDEO_PAD,
        tie_word_embeddings=False,
    )


def _gemma4_videos(count: int) -> Tensors:
    """Two frames of 16 patches a video."""
    frames = _gemma4_pictures(2 * count)
    return {
        "pixel_values_videos": frames["pixel_values"],
        "video_position_ids": frames["image_position_ids"],
        "num_frames_per_video": torch.full((count,), 2),
    }


def _molmo2_videos(count: int) -> Tensors:
    """Two frames of 2 x 2 patches a video, pooled one by one."""
    return {
        "pixel_values_videos": noise(2 * count, 4, 588),
        "video_token_pooling": torch.arange(8 * count)[:, None],
        "video_grids": torch.tensor([[2, 2, 2]] * count),
    }


def _molmo2_pictures(count: int) -> Tensors:
    """Crops of four patches; each picture pools them one by one into a 2 x 2 grid."""
    pooling = torch.arange(4 * count)[:, None]
    return {
        "pixel_values": noise(count, 4, 588),
        "image_token_pooling": pooling,
        "image_grids": torch.tensor([[2, 2, 0, 0]] * count),
        "image_num_crops": torch.ones(count, dtype=torch.long),
    }


def _blip(kind: str = "Blip2Config") -> Any:
    text = transformers.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=64,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    former = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return getattr(transformers, kind)(
        vision_config=tower(),
        qformer_config=former,
        text_config=text,
        num_query_tokens=4,
        image_token_index=IMAGE,
        tie_word_embeddings=False,
    )


def _asked_pictures(count: int) -> Tensors:
    """Pictures and, for each, the question as the Q-Former reads it."""
    return {
        "pixel_values": noise(count, 3, 28, 28),
        "qformer_input_ids": torch.arange(10, 15).repeat(count, 1),
    }


def _lfm2_vl() -> Any:
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": 14,
        "num_patches": 64,
        "vision_use_head": False,
    }
    text = transformers.Lfm2Config(
        **sizes(
            layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, conv_L_cache=3
        )
    )
    return transformers.Lfm2VlConfig(
        vision_config=transformers.Siglip2VisionConfig(**vision),
        text_config=text,
        projector_hidden_size=32,
        downsample_factor=2,
        **IMAGE_ID,
    )


def _lfm2_pictures(count: int) -> Tensors:
    """Patches [n, 16, 588] of which only [height x width] are filled."""
    shapes = torch.tensor([((4, 4), (2, 4), (4, 2))[at % 3] for at in range(count)])
    filled = torch.arange(16) < shapes.prod(-1, keepdim=True)
    return {
        "pixel_values": noise(count, 16, 588),
        "spatial_shapes": shapes,
        "pixel_attention_mask": filled.long(),
    }


FED: Mapping[str, Tiny] = {
    "gemma3": Tiny(config=_gemma3, pictures=squares(28), before=(MEDIA_START,), after=(MEDIA_END,)),
    "gemma4": Tiny(
        config=_gemma4,
        pictures=_gemma4_pictures,
        videos=_gemma4_videos,
        before=(MEDIA_START,),
        after=(MEDIA_END,),
    ),
    "paligemma": Tiny(config=_paligemma, pictures=squares(28), kinds=(0, 0)),
    "paligemma2": Tiny(config=_paligemma2, pictures=squares(28), kinds=(0, 0)),
    "mllama": Tiny(
        config=_mllama, pictures=_mllama_pictures, counts=lambda t: [1] * t["pixel_values"].shape[1]
    ),
    "phi4_multimodal": Tiny(config=_phi4_multimodal, pictures=_phi4_pictures, counts=_phi4_counts),
    "molmo2": Tiny(
        config=_molmo2,
        pictures=_molmo2_pictures,
        videos=_molmo2_videos,
        video=IMAGE,
        before=(MEDIA_START,),
        after=(MEDIA_END,),
    ),
    "blip2": Tiny(config=_blip, pictures=squares(28)),
    "instructblip": Tiny(config=lambda: _blip("InstructBlipConfig"), pictures=_asked_pictures),
    "lfm2_vl": Tiny(config=_lfm2_vl, pictures=_lfm2_pictures),
}
