"""Rows of the vision-language families, by the way their pictures enter."""

from __future__ import annotations

from dataclasses import replace

from eyespan.target.families.row import Family

_GRID_IMAGES = ("pixel_values", "image_grid_thw")
_GRID_VIDEOS = ("pixel_values_videos", "video_grid_thw")
_QWEN_FIELDS = (
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)

_QWEN_VL = Family(
    name="qwen_vl",
    title="Qwen2-VL, Qwen2.5-VL",
    model_types=("qwen2_vl", "qwen2_5_vl"),
    positions="mrope",
    media_fields=_QWEN_FIELDS,
    media_tokens=(
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ),
    media_inputs=(*_GRID_IMAGES, *_GRID_VIDEOS, "second_per_grid_ts"),
    video_inputs=_GRID_VIDEOS,
    token_kinds="mm_token_type_ids",
    image_text="<|vision_start|><|image_pad|><|vision_end|>",
    video_text="<|vision_start|><|video_pad|><|vision_end|>",
    split="patches",
    video_split="patches",
)

_QWEN3_VL = replace(
    _QWEN_VL,
    name="qwen3_vl",
    title="Qwen3-VL, Qwen3-VL-MoE",
    model_types=("qwen3_vl", "qwen3_vl_moe"),
    media_inputs=(*_GRID_IMAGES, *_GRID_VIDEOS),
    video_text="<|video_pad|>",  # its processor puts time stamps and marks around every frame
)

_QWEN3_5 = replace(
    _QWEN3_VL,
    name="qwen3_5",
    title="Qwen3.5-VL, Qwen3.5-VL-MoE (gated delta rule and attention)",
    model_types=("qwen3_5", "qwen3_5_moe"),
)

_GLM4V = Family(
    name="glm4v",
    title="GLM-4.1V, GLM-4.5V",
    model_types=("glm4v", "glm4v_moe"),
    positions="mrope",
    media_fields=(
        "image_token_id",
        "video_token_id",
        "image_start_token_id",
        "image_end_token_id",
        "video_start_token_id",
        "video_end_token_id",
    ),
    media_tokens=("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
    media_inputs=(*_GRID_IMAGES, *_GRID_VIDEOS),
    video_inputs=_GRID_VIDEOS,
    token_kinds="mm_token_type_ids",
    image_text="<|begin_of_image|><|image|><|end_of_image|>",
    video_text="<|begin_of_video|><|video|><|end_of_video|>",
    split="patches",
)

_KIMI_K25 = Family(
    name="kimi_k25",
    title="Kimi-K2.5 (latent attention)",
    model_types=("kimi_k25",),
    media_fields=_QWEN_FIELDS,
    media_inputs=(*_GRID_IMAGES, *_GRID_VIDEOS),
    video_inputs=_GRID_VIDEOS,
    split="patches",
)

_LLAVA = Family(
    name="llava",
    title="LLaVA, Pixtral-LLaVA, VipLLaVA",
    model_types=("llava", "vipllava"),
    media_fields=("image_token_id",),
    media_tokens=("<image>",),
    media_inputs=("pixel_values", "image_sizes"),
    image_text="<image>\n",
    split="rows",
)

_LLAVA_NEXT = replace(
    _LLAVA, name="llava_next", title="LLaVA-NeXT", model_types=("llava_next",), split=None
)

_LLAVA_ONEVISION = replace(
    _LLAVA_NEXT,
    name="llava_onevision",
    title="LLaVA-OneVision",
    model_types=("llava_onevision",),
    media_fields=("image_token_id", "video_token_id"),
    media_tokens=("<image>", "<video>"),
    media_inputs=("pixel_values", "image_sizes", "batch_num_images", "pixel_values_videos"),
    video_inputs=("pixel_values_videos",),
    video_text="<video>\n",
    video_split="rows",
)

_LLAVA_NEXT_VIDEO = replace(
    _LLAVA_ONEVISION,
    name="llava_next_video",
    title="LLaVA-NeXT-Video",
    model_types=("llava_next_video",),
    media_inputs=("pixel_values", "image_sizes", "pixel_values_videos"),
)

_VIDEO_LLAVA = replace(
    _LLAVA_NEXT_VIDEO,
    name="video_llava",
    title="Video-LLaVA",
    model_types=("video_llava",),
    media_inputs=("pixel_values", "pixel_values_videos"),
    former_names=(("pixel_values_images", "pixel_values"),),
    split="rows",
    video_split=None,
)

_MISTRAL3 = replace(
    _LLAVA,
    name="mistral3",
    title="Mistral-Small-3.1 and later",
    model_types=("mistral3",),
    media_tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    image_text="[IMG]",
)

_IDEFICS = Family(
    name="idefics",
    title="Idefics2, Idefics3",
    model_types=("idefics2", "idefics3"),
    media_fields=("image_token_id",),
    media_tokens=("<image>", "<fake_token_around_image>", "<global-img>"),
    media_inputs=("pixel_values", "pixel_attention_mask"),
    image_text="<image>",
)

_SMOLVLM = replace(
    _IDEFICS,
    name="smolvlm",
    title="SmolVLM",
    model_types=("smolvlm",),
    video_text="<video>",
    one_kind=True,
)

_INTERNVL = Family(
    name="internvl",
    title="InternVL",
    model_types=("internvl",),
    media_fields=("image_token_id",),
    media_tokens=("<IMG_CONTEXT>", "<img>", "</img>"),
    media_inputs=("pixel_values",),
    image_text="<IMG_CONTEXT>\n",
    video_text="<video>\n",
)

_GOT_OCR2 = Family(
    name="got_ocr2",
    title="GOT-OCR2",
    model_types=("got_ocr2",),
    media_fields=("image_token_id",),
    media_tokens=("<imgpad>", "<img>", "</img>"),
    media_inputs=("pixel_values",),
    image_text="<img><imgpad></img>",
)

_OVIS2 = Family(
    name="ovis2",
    title="Ovis2",
    model_types=("ovis2",),
    media_fields=("image_token_id", "visual_indicator_token_ids"),
    media_tokens=("<image>", "<IMG_ATOM>"),
    media_inputs=("pixel_values",),
    image_text="<image>\n",
)

_GEMMA3 = Family(
    name="gemma3",
    title="Gemma 3 (two-way attention inside a picture, sliding windows)",
    model_types=("gemma3",),
    media_fields=("image_token_id", "boi_token_id", "eoi_token_id"),
    media_tokens=("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    media_inputs=("pixel_values",),
    token_kinds="token_type_ids",
    image_text="<start_of_image>",
    split="rows",
)

_GEMMA4 = Family(
    name="gemma4",
    title="Gemma 4 (shared keys and values, sliding windows)",
    model_types=("gemma4",),
    media_fields=(
        "image_token_id",
        "video_token_id",
        "audio_token_id",
        "boi_token_id",
        "eoi_token_id",
        "boa_token_id",
        "eoa_token_id",
        "eoa_token_index",
    ),
    media_tokens=("<|image|>", "<|video|>", "<|audio|>"),
    media_inputs=(
        "pixel_values",
        "image_position_ids",
        "pixel_values_videos",
        "video_position_ids",
        "num_frames_per_video",
    ),
    video_inputs=("pixel_values_videos", "video_position_ids", "num_frames_per_video"),
    token_kinds="mm_token_type_ids",
    image_text="<|image|>",
    split="rows",
)

_PALIGEMMA = Family(
    name="paligemma",
    title="PaliGemma, PaliGemma 2 (the whole prompt sees itself)",
    model_types=("paligemma",),
    first_position=1,
    media_fields=("image_token_id",),
    media_tokens=("<image>",),
    media_inputs=("pixel_values",),
    token_kinds="token_type_ids",
    text_kind=1,
    own_masks=True,
    image_text="<image>",
    split="rows",
)

_AYA_VISION = Family(
    name="aya_vision",
    title="Aya Vision, Command A Vision",
    model_types=("aya_vision", "cohere2_vision"),
    media_fields=("image_token_id",),
    media_tokens=("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"),
    media_inputs=("pixel_values",),
    image_text="<image>",
)

_MLLAMA = Family(
    name="mllama",
    title="Llama 3.2 Vision (cross-attention)",
    model_types=("mllama",),
    media_fields=("image_token_id",),
    media_tokens=("<|image|>",),
    media_inputs=("pixel_values", "aspect_ratio_mask", "aspect_ratio_ids"),
    step_inputs=("cross_attention_mask",),
    image_text="<|image|>",
    tells_visual_tokens=False,
)

_PHI4_MULTIMODAL = Family(
    name="phi4_multimodal",
    title="Phi-4-multimodal",
    model_types=("phi4_multimodal",),
    media_fields=("vision_config.image_token_id", "audio_config.audio_token_id"),
    media_tokens=("<|image|>", "<|audio|>"),
    media_inputs=("image_pixel_values", "image_sizes", "image_attention_mask"),
    image_text="<|image|>",
    tells_states=False,  # once asked, transformers' vision tower fails in every later call
    tells_visual_tokens=False,
)

_MOLMO2 = Family(
    name="molmo2",
    title="Molmo 2",
    model_types=("molmo2",),
    media_fields=(
        "image_patch_id",
        "image_start_token_id",
        "low_res_image_start_token_id",
        "image_end_token_id",
        "frame_start_token_id",
        "frame_end_token_id",
    ),
    media_tokens=("<im_patch>", "<im_col>", "<im_start>", "<im_end>", "<low_res_im_start>"),
    media_inputs=(
        "pixel_values",
        "image_token_pooling",
        "image_grids",
        "image_num_crops",
        "pixel_values_videos",
        "video_token_pooling",
        "video_grids",
    ),
    video_inputs=("pixel_values_videos", "video_token_pooling", "video_grids"),
    token_kinds="mm_token_type_ids",
    image_text="<|image|>",
)

_BLIP2 = Family(
    name="blip2",
    title="BLIP-2 (with a decoder-only language model)",
    model_types=("blip-2",),
    media_fields=("image_token_id",),
    media_tokens=("<image>",),
    media_inputs=("pixel_values",),
    split="rows",
    wraps=True,
    most_images=1,
)

_INSTRUCTBLIP = replace(
    _BLIP2,
    name="instructblip",
    title="InstructBLIP (with a decoder-only language model)",
    model_types=("instructblip",),
    media_inputs=("pixel_values", "qformer_input_ids", "qformer_attention_mask"),
    split=None,  # its features depend on the question
)

_LFM2_VL = Family(
    name="lfm2_vl",
    title="LFM2-VL (short convolutions and attention)",
    model_types=("lfm2_vl",),
    media_fields=("image_token_id",),
    media_tokens=("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    media_inputs=("pixel_values", "spatial_shapes", "pixel_attention_mask"),
    image_text="<image>",
    split="rows",
)

FAMILIES: tuple[Family, ...] = (
    _QWEN_VL,
    _QWEN3_VL,
    _QWEN3_5,
    _GLM4V,
    _KIMI_K25,
    _LLAVA,
    _LLAVA_NEXT,
    _LLAVA_ONEVISION,
    _LLAVA_NEXT_VIDEO,
    _VIDEO_LLAVA,
    _MISTRAL3,
    _IDEFICS,
    _SMOLVLM,
    _INTERNVL,
    _GOT_OCR2,
    _OVIS2,
    _GEMMA3,
    _GEMMA4,
    _PALIGEMMA,
    _AYA_VISION,
    _MLLAMA,
    _PHI4_MULTIMODAL,
    _MOLMO2,
    _BLIP2,
    _INSTRUCTBLIP,
    _LFM2_VL,
)
"""Rows of the vision-language families."""
