"""Blocks shaped like a target's decoder layer, which every trained head is built from.

Positions are plain indices in the sequence under the target's rotary base, also where the target
itself uses M-RoPE: a head has a rope of its own, the same when it is trained and when it drafts.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from eyespan.drafters._head_config import HeadConfig


class Attend(Protocol):
    """How queries meet keys: over a cache while drafting, in parallel while training."""

    def __call__(self, slot: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend.

        Args:
            slot: which attention of the head asks; keys and values of each are kept apart.
            query: [B, heads, n, d].
            key: [B, kv_heads, n, d] of the same n pairs.
            value: like `key`.

        Returns:
            [B, heads, n, d].
        """
        ...


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm of [..., size]."""
        wide = x if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


def rotary(positions: Tensor, config: HeadConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, n, head_dim] float32 of positions [B, n]."""
    steps = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32)
    speeds = config.rope_theta ** (-steps / config.head_dim)
    angles = positions[:, None, :, None].float() * speeds
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn [B, heads, n, head_dim] by rotary angles, halves as pairs (Llama's order)."""
    cos, sin = turn
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions.

    Args:
        config: of the head.
        slot: its place among the head's attentions.
        width: of its input; the output has the target's width.
    """

    def __init__(self, config: HeadConfig, slot: int, width: int) -> None:
        super().__init__()
        size, bias = config.head_dim, config.qkv_bias
        self.slot, self.size = slot, size
        self.query = nn.Linear(width, config.heads * size, bias=bias)
        self.key = nn.Linear(width, config.kv_heads * size, bias=bias)
        self.value = nn.Linear(width, config.kv_heads * size, bias=bias)
        self.out = nn.Linear(config.heads * size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """[B, n, width] -> [B, n, D]."""
        query = rotate(split_heads(self.query(x), self.size), turn)
        key = rotate(split_heads(self.key(x), self.size), turn)
        value = split_heads(self.value(x), self.size)
        joined: Tensor = self.out(join_heads(attend(self.slot, query, key, value)))
        return joined


def split_heads(x: Tensor, size: int) -> Tensor:
    """[B, n, heads * size] -> [B, heads, n, size]."""
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, heads, n, size] -> [B, n, heads * size]."""
    return x.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, D] -> [B, n, D]."""
        y: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """A decoder layer: attention and feed-forward, each behind a norm and beside a residual.

    Args:
        config: of the head.
        slot: its attention's place.
        norm_first: whether attention is behind a norm; EAGLE's first layer reads its input as it
            is.
    """

    def __init__(self, config: HeadConfig, slot: int, *, norm_first: bool = True) -> None:
        super().__init__()
        self.norm_attention = (
            RmsNorm(config.hidden_size, config.rms_eps) if norm_first else nn.Identity()
        )
        self.attention = SelfAttention(config, slot, config.hidden_size)
        self.norm_feed = RmsNorm(config.hidden_size, config.rms_eps)
        self.feed = FeedForward(config)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """[B, n, D] -> [B, n, D]."""
        x = x + self.attention(self.norm_attention(x), turn, attend)
        y: Tensor = x + self.feed(self.norm_feed(x))
        return y
