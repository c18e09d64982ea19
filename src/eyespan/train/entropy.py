"""Attention entropy of chosen decoder layers during one forward, without keeping attention maps.

Every transformers model calls its attention through one table, looked up at each call. While a
meter is active our wrapper runs the stock kernel and, for the wanted layers, softmaxes queries and
keys once more, a block of queries at a time, and keeps one number a token: the entropy of a head's
attention, averaged over heads (DREAM section 3.3; FOVEA table 8 takes the same layer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eyespan.errors import UnsupportedTarget

BLOCK = 128
"""Queries softmaxed at a time: 32 heads over 4,000 keys in float32 are then 64 MB."""

KERNEL = "sdpa"


def candidate_layers(layers: int) -> tuple[int, ...]:
    """Layers whose entering state may become the intermediate target: 1..floor(0.4 layers)-2, which
    is 1-10 of LLaVA's 32 and 1-9 of Qwen2.5-VL's 28; empty for fewer than 8 layers.
    """
    return tuple(range(1, math.floor(0.4 * layers) - 1))


class EntropyMeter:
    """Collects entropies of one forward.

    Attributes:
        entropies: by layer index, [L] nats per query token.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        """Find the attention modules.

        Args:
            model: a transformers model with sdpa attention.
            layers: decoder layer indices.

        Raises:
            UnsupportedTarget: its layers are not laid out as usual, or its attention is not sdpa.
        """
        self.entropies: dict[int, Tensor] = {}
        found = {
            layer: getattr(module, "self_attn", None)
            for layer, module in enumerate(getattr(model.get_decoder(), "layers", ()))
            if layer in set(layers)
        }
        attention = str(model.config.get_text_config(decoder=True)._attn_implementation)
        if len(found) < len(set(layers)) or None in found.values() or attention != KERNEL:
            raise UnsupportedTarget(
                "attention entropies for the intermediate target",
                found=f"{len(found)} attention layers and attention '{attention}'",
                needed=f"layers {list(layers)} with attention '{KERNEL}' are needed",
                todo="Load the target with sdpa attention, or set store.mid = false.",
            )
        self._layers = {id(module): layer for layer, module in found.items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure every forward inside; a second one overwrites the first."""
        stock = ALL_ATTENTION_FUNCTIONS[KERNEL]

        def attend(module: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
            layer = self._layers.get(id(module))
            if layer is not None:
                mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
                scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
                self.entropies[layer] = attention_entropy(query, key, mask, scaling)[0]
            return stock(module, query, key, *args, **kwargs)

        ALL_ATTENTION_FUNCTIONS.register(KERNEL, attend)
        try:
            yield
        finally:
            ALL_ATTENTION_FUNCTIONS.register(KERNEL, stock)

    def lowest(self) -> Tensor:
        """[L] the layer with the lowest entropy at each token; of equal ones the lowest layer."""
        layers = sorted(self.entropies)
        stack = torch.stack([self.entropies[layer] for layer in layers])
        return torch.tensor(layers, device=stack.device)[stack.argmin(dim=0)]


def attention_entropy(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Entropy of every query's attention in nats, averaged over heads.

    Args:
        query: [B, H, L, d] after rotary embedding.
        key: [B, G, K, d]; H is a multiple of G (grouped queries).
        mask: [B, 1, L, K] bool or additive; None is causal, the last query seeing all keys.
        scaling: of the dot products.

    Returns:
        [B, L] float32.
    """
    batch, heads, length, _ = query.shape
    groups, keys = key.shape[1], key.shape[2]
    folded = query.reshape(batch, groups, heads // groups, length, -1)
    spread = key.float().transpose(-1, -2)[:, :, None]
    parts = []
    for start in range(0, length, BLOCK):
        block = folded[:, :, :, start : start + BLOCK].float()
        scores = block @ spread * scaling  # [B, G, H/G, block, K]
        rows = slice(start, start + block.shape[3])
        if mask is None:
            seen = torch.ones(length, keys, dtype=torch.bool, device=query.device)
            scores = scores.masked_fill(~seen.tril(keys - length)[rows], -torch.inf)
        elif mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[:, :, None, rows, :keys], -torch.inf)
        else:
            scores = scores + mask[:, :, None, rows, :keys].float()
        logs = scores.log_softmax(dim=-1)
        entropy = -(logs.exp() * logs.clamp_min(torch.finfo(logs.dtype).min)).sum(dim=-1)
        parts.append(entropy.mean(dim=(1, 2)))
    return torch.cat(parts, dim=-1)
