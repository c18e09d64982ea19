"""Configs of tiny language models, one for each way in which text models differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers

from eyespan.testing.tokens import BOS, EOS, PAD, VOCAB_SIZE

WINDOW = 12
"""Tokens that the tiny models with sliding windows or chunks see."""

_SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_DELTA: Mapping[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_MIXED = ["sliding_attention", "full_attention"]
_RECURRENT = ["linear_attention", "full_attention"]


def sizes(**changes: Any) -> dict[str, Any]:
    """The sizes that all tiny decoders share, with changes."""
    return {**_SIZES, **changes}


def delta_sizes(**changes: Any) -> dict[str, Any]:
    """Sizes of a decoder with gated-delta layers."""
    return sizes(**{**_DELTA, "layer_types": _RECURRENT, "head_dim": 16, **changes})


def gemma_sizes(**changes: Any) -> dict[str, Any]:
    """Sizes of a Gemma decoder with windows."""
    mixed = {"sliding_window": WINDOW, "layer_types": _MIXED, "head_dim": 16}
    return sizes(**{**mixed, **changes})


def deepseek(**changes: Any) -> Any:
    """Latent attention and routed experts."""
    return transformers.DeepseekV3Config(
        **sizes(
            num_key_value_heads=4,
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            **changes,
        )
    )


def _gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=512,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )


def _llama4() -> Any:
    return transformers.Llama4TextConfig(
        **sizes(
            head_dim=16,
            intermediate_size_mlp=96,
            num_local_experts=2,
            num_experts_per_tok=1,
            attention_chunk_size=WINDOW,
            layer_types=["chunked_attention", "full_attention"],
            no_rope_layers=[1, 0],
            moe_layers=[1],
        )
    )


def _gpt_oss() -> Any:
    return transformers.GptOssConfig(
        **sizes(
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=WINDOW,
            layer_types=_MIXED,
        )
    )


def _gemma3n() -> Any:
    return transformers.Gemma3nTextConfig(
        **gemma_sizes(
            num_hidden_layers=4,
            layer_types=_MIXED * 2,
            num_kv_shared_layers=2,
            intermediate_size=[96] * 4,
            vocab_size_per_layer_input=VOCAB_SIZE,
            hidden_size_per_layer_input=8,
            laurel_rank=8,
            altup_num_inputs=2,
            activation_sparsity_pattern=[0.0] * 4,
        )
    )


def _falcon_h1() -> Any:
    return transformers.FalconH1Config(
        **sizes(
            head_dim=16,
            mamba_d_ssm=64,
            mamba_n_heads=4,
            mamba_d_head=16,
            mamba_n_groups=1,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_chunk_size=8,
        )
    )


def _bamba() -> Any:
    return transformers.BambaConfig(
        **sizes(
            attn_layer_indices=[1],
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_n_groups=1,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_chunk_size=8,
        )
    )


def _mamba2() -> Any:
    return transformers.Mamba2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=16,
        state_size=8,
        n_groups=1,
        conv_kernel=4,
        chunk_size=8,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )


def _granite() -> Any:
    return transformers.GraniteMoeHybridConfig(
        **sizes(
            layer_types=["mamba", "attention"],
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_d_state=8,
            mamba_n_groups=1,
            mamba_chunk_size=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            shared_intermediate_size=32,
        )
    )


PLAIN: Mapping[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**sizes()),
    "qwen2": lambda: transformers.Qwen2Config(**sizes()),
    "qwen3": lambda: transformers.Qwen3Config(**sizes(head_dim=16)),
    "mistral": lambda: transformers.MistralConfig(**sizes(sliding_window=WINDOW)),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **gemma_sizes(query_pre_attn_scalar=16),
    ),
    "gpt2": _gpt2,
}
"""A few that nearly every test can afford."""

MORE: Mapping[str, Callable[[], Any]] = {
    "phi3": lambda: transformers.Phi3Config(**sizes()),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**sizes(head_dim=16, **_EXPERTS)),
    "deepseek_v3": deepseek,
    "qwen2_windows": lambda: transformers.Qwen2Config(
        **sizes(use_sliding_window=True, sliding_window=WINDOW, layer_types=_MIXED)
    ),
    "smollm3": lambda: transformers.SmolLM3Config(**sizes(no_rope_layers=[1, 0])),
    "olmo3": lambda: transformers.Olmo3Config(**sizes(sliding_window=WINDOW, layer_types=_MIXED)),
    "cohere2": lambda: transformers.Cohere2Config(
        **sizes(sliding_window=WINDOW, layer_types=_MIXED, logit_scale=1.0)
    ),
    "llama4_text": _llama4,
    "gemma2": lambda: transformers.Gemma2Config(**gemma_sizes(query_pre_attn_scalar=16)),
    "gpt_oss": _gpt_oss,
    "gemma3n_text": _gemma3n,
}
"""Other decoders of attention alone: experts, latent attention, windows, chunks, sinks, shared
keys and values."""

TREE_STATES: Mapping[str, Callable[[], Any]] = {
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        **delta_sizes(**_EXPERTS, shared_expert_intermediate_size=32)
    ),
    "qwen3_5_text": lambda: transformers.Qwen3_5TextConfig(**delta_sizes()),
    "olmo_hybrid": lambda: transformers.OlmoHybridConfig(**delta_sizes()),
    "lfm2": lambda: transformers.Lfm2Config(
        **sizes(
            layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, conv_L_cache=3
        )
    ),
    "lfm2_moe": lambda: transformers.Lfm2MoeConfig(
        **sizes(layer_types=["conv", "full_attention"], num_dense_layers=1, **_EXPERTS)
    ),
}
"""Decoders with states that can be verified in trees."""

CHAIN_STATES: Mapping[str, Callable[[], Any]] = {
    "falcon_h1": _falcon_h1,
    "bamba": _bamba,
    "granitemoehybrid": _granite,
    "mamba2": _mamba2,
}
"""Decoders with states that can be verified in chains only."""
