"""Tiny random models of every supported family, with real tokenizers, processors and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.processors import without_video

_SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<image>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_TEXT_SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_CHAT = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tiny_tokenizer() -> Any:
    """A byte tokenizer: ids 0-7 are special (`<pad>`, `<s>`, `</s>`, media), then 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*_SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=list(_SPECIAL[3:]),
        chat_template=_CHAT.replace("IMAGE", ""),
    )


VOCAB_SIZE = len(_SPECIAL) + 256
"""Ids of `tiny_tokenizer`, and rows of every tiny model's head."""


def _clip() -> Any:
    return transformers.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=28,
        patch_size=14,
    )


def _llama(**changes: Any) -> Any:
    return transformers.LlamaConfig(**_text_sizes(**changes))


def _text_sizes(**changes: Any) -> dict[str, Any]:
    return {**_TEXT_SIZES, "vocab_size": VOCAB_SIZE, **changes}


def _llava() -> Any:
    return transformers.LlavaConfig(
        vision_config=_clip(), text_config=_llama(), image_token_id=3, tie_word_embeddings=False
    )


def _llava_next() -> Any:
    return transformers.LlavaNextConfig(
        vision_config=_clip(),
        text_config=_llama(),
        image_token_id=3,
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        tie_word_embeddings=False,
    )


def _qwen_vl(kind: str) -> Any:
    text = _text_sizes(
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [2, 3, 3],
        },
    )
    shared: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2}
    ids = {
        "vision_start_token_id": 4,
        "vision_end_token_id": 5,
        "image_token_id": 6,
        "video_token_id": 7,
        "tie_word_embeddings": False,
    }
    if kind == "qwen2_vl":
        vision = {**shared, "embed_dim": 32, "hidden_size": 64}
        return transformers.Qwen2VLConfig(vision_config=vision, text_config=text, **ids)
    vision = {
        **shared,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    return transformers.Qwen2_5_VLConfig(vision_config=vision, text_config=text, **ids)


_CONFIGS: Mapping[str, Callable[[], Any]] = {
    "llava": _llava,
    "llava_next": _llava_next,
    "qwen2_vl": lambda: _qwen_vl("qwen2_vl"),
    "qwen2_5_vl": lambda: _qwen_vl("qwen2_5_vl"),
    "llama": _llama,
    "qwen2": lambda: transformers.Qwen2Config(**_text_sizes()),
    "qwen3": lambda: transformers.Qwen3Config(**_text_sizes(head_dim=16)),
    "mistral": lambda: transformers.MistralConfig(**_text_sizes(sliding_window=12)),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **_text_sizes(
            sliding_window=12,
            head_dim=16,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=512,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    ),
}

SEEING = ("llava", "llava_next", "qwen2_vl", "qwen2_5_vl")
"""Tiny families that take pictures."""

TEXT_ONLY = tuple(name for name in _CONFIGS if name not in SEEING)
"""Tiny families that do not; `mistral` and `gemma3_text` have windows of 12 tokens."""


def tiny_model(
    family: str, *, attention: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0
) -> Any:
    """A random model of a family.

    Args:
        family: one of `SEEING` or `TEXT_ONLY`.
        attention: "sdpa" or "eager".
        dtype: of its weights.
        seed: of its weights.
    """
    config = _CONFIGS[family]()
    kind = (
        transformers.AutoModelForImageTextToText
        if family in SEEING
        else transformers.AutoModelForCausalLM
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind.from_config(config, attn_implementation=attention)
    _reinitialise(model, seed)
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
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
        embeddings.normal_(0.0, 1.0, generator=generator)
        head.normal_(0.0, 3.0 * head.shape[1] ** -0.5, generator=generator)


def tiny_processor(family: str) -> Any:
    """The family's own processor around `tiny_tokenizer`, PIL image processing; a plain tokenizer
    for text-only families.
    """
    tokenizer = tiny_tokenizer()
    if family in TEXT_ONLY:
        return tokenizer
    mark = "<|vision_start|><|image_pad|><|vision_end|>" if "qwen" in family else "<image>"
    parts: dict[str, Any] = {"tokenizer": tokenizer, "chat_template": _CHAT.replace("IMAGE", mark)}
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


def tiny_target(
    family: str, *, attention: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0
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
