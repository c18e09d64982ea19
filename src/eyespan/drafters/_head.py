"""What every trained draft head is built from: blocks shaped like the target's decoder layer, and
the few questions that drafting and training ask a head.

A head works on *pairs*: token `t_j` with what is known of the position before it, the target's
state `f_{j-1}` where the target has been, the head's own state of the parent where it has not. Its
output at a pair stands for the target's state `f_j`, so its scores are guesses for token `j + 1`.
Positions are plain indices in the sequence under the target's rotary base, also where the target
itself uses M-RoPE: a head has a rope of its own, the same when it is trained and when it drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from eyespan.errors import ConfigError, unknown_name
from eyespan.types import MAX_PACK

if TYPE_CHECKING:
    from eyespan.target.weights import TargetShape
    from eyespan.train.batch import TrainBatch

C = TypeVar("C", bound="HeadConfig")

Condition = dict[str, Tensor]
"""What of a request's pictures a head looks at, by name, each [B, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Where a training run stands, as far as a head's losses depend on it.

    Attributes:
        progress: share of all updates that are done, in [0, 1].
        generator: source of noise and of random controls, on the batch's device; None: torch's own.
    """

    progress: float = 0.0
    generator: torch.Generator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Shape of a head and of its trees; JSON-ready.

    Attributes:
        hidden_size, heads, kv_heads, head_dim, intermediate_size, rms_eps, rope_theta, vocab_size,
            qkv_bias: as the target has them, see `TargetShape`.
        layers: blocks of the head.
        nodes: of a tree, root excluded.
        width: candidates taken at a node, and nodes expanded at a level.
        depth: longest path.
    """

    DECODING: ClassVar[frozenset[str]] = frozenset({"nodes", "width", "depth"})
    """Fields that may be changed when a trained head decodes; the others shape its weights."""

    hidden_size: int
    layers: int = 1
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    vocab_size: int
    qkv_bias: bool = False
    nodes: int = 40
    width: int = 6
    depth: int = 6

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "vocab_size"):
            need(self, name, getattr(self, name) >= 1, "at least 1")
        need(self, "kv_heads", self.heads % self.kv_heads == 0, f"a divisor of heads={self.heads}")
        need(self, "head_dim", self.head_dim % 2 == 0, "even: rotary positions turn pairs")
        need(self, "nodes", 1 <= self.nodes < MAX_PACK, f"from 1 to {MAX_PACK - 1}")
        need(self, "width", 1 <= self.width <= 64, "from 1 to 64")
        need(self, "depth", 1 <= self.depth <= 32, "from 1 to 32")

    def to_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any]) -> C:
        """A config from what `to_json` gave, or from a user's file.

        Raises:
            ConfigError: an unknown field, a missing one, a value of another kind or out of range.
        """
        known = {field.name: field for field in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_name(f"field of {cls.__name__}", name, known)
        made: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        try:
            return cls(**made)
        except TypeError as error:
            raise ConfigError(
                f"making a {cls.__name__}",
                found=str(error),
                needed=f"fields are {', '.join(known)}",
                todo="Build it with for_target(), or repair the manifest.",
            ) from error

    @classmethod
    def for_target(cls: type[C], shape: TargetShape, **options: Any) -> C:
        """A config whose blocks look like a target's layers.

        Args:
            shape: of the target.
            **options: other fields, or other values for the copied ones.

        Raises:
            ConfigError: see `from_json`.
        """
        copied = {name: getattr(shape, name) for name in _COPIED}
        return cls.from_json({**copied, **cls.from_shape(shape), **options})

    @classmethod
    def from_shape(cls, shape: TargetShape) -> dict[str, Any]:
        """Fields of this method that follow from the target, such as the layers it reads."""
        return {}


_COPIED = (
    "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "rms_eps", "rope_theta",
    "vocab_size", "qkv_bias",
)  # fmt: skip


def need(config: Any, name: str, holds: bool, needed: str) -> None:
    """Refuse a field's value unless it holds.

    Raises:
        ConfigError: naming the field, its value and what it must be.
    """
    if not holds:
        raise ConfigError(
            f"{type(config).__name__}.{name}",
            found=f"it is {getattr(config, name)!r}",
            needed=f"it must be {needed}",
            todo=f"Change {name}, or leave it out for the published setting.",
        )


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


class Hidden(NamedTuple):
    """What a head's blocks made of pairs: `last` [B, n, D] the last block's output, `first` the
    first block's.
    """

    last: Tensor
    first: Tensor


class PromptPairs(NamedTuple):
    """A prompt as a head's blocks read it.

    Attributes:
        x: [B, n, X] block inputs.
        visible: [B, n] bool, False where a pair is no part of the context; None: all are.
        each: entries of the condition as they stand at each of the n pairs, for training, where
            every pair is followed by drafts.
    """

    x: Tensor
    visible: Tensor | None = None
    each: Condition = {}  # noqa: RUF012 (never written)


class DraftHead(nn.Module):
    """Base of all heads. Weights of the target are borrowed (`attach`), neither trained nor saved.

    Class attributes:
        method: its name in the table of drafters.

    Attributes:
        slots: attentions in it that keep keys and values.
        reads: what it reads of the target, in terms of `Needs.hidden_layers`; the first is 0.
        sees: whether it looks at projected visual tokens.
    """

    method: ClassVar[str]

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.shape = config
        self.slots = config.layers
        self.reads: tuple[int, ...] = (0, -1)
        self.sees = False
        self._embedding: Tensor | None = None
        self._lm_head: Tensor | None = None

    def attach(self, embedding: Tensor, lm_head: Tensor) -> None:
        """Borrow the target's frozen weights.

        Args:
            embedding: [V', D] token embeddings.
            lm_head: [V, D] the language-model head.
        """
        self._embedding, self._lm_head = embedding.detach(), lm_head.detach()

    def prepare(self, counts: Tensor) -> None:
        """Get ready to be trained from the start; called once, after `attach`.

        Args:
            counts: [V] how often each id stands in the answers to learn from.
        """

    @property
    def dtype(self) -> torch.dtype:
        """Of its own weights."""
        return next(self.parameters()).dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the target's embedding, [..., D] in the head's dtype."""
        assert self._embedding is not None, "attach() comes first"
        return nn.functional.embedding(ids, self._embedding).to(self.dtype)

    def through_lm_head(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., V] logits of the target's head."""
        assert self._lm_head is not None, "attach() comes first"
        return nn.functional.linear(states.to(self._lm_head.dtype), self._lm_head)

    def token_ids(self) -> Tensor | None:
        """[v] target ids of the entries of `scores`; None where they are the ids themselves."""
        return None

    def look(self, visual: Tensor, visual_mask: Tensor) -> Condition:
        """What is kept of the pictures for a whole request.

        Args:
            visual: [B, N, D] projected visual tokens.
            visual_mask: [B, N] bool, False in the padding.
        """
        return {}

    def lift(self, states: Tensor) -> Tensor:
        """Target states [..., len(reads), D] -> features [..., F]; here the final state."""
        return states[..., -1, :]

    def prompt(
        self, embeds: Tensor, features: Tensor, media: Tensor, condition: Condition
    ) -> PromptPairs:
        """Block inputs of a prompt or of a whole training sequence.

        May add entries to `condition` that the nodes after the prompt's end need.

        Args:
            embeds: [B, n, D] what enters the target's decoder, pictures included.
            features: [B, n, F] lifted states of the position before each.
            media: [B, n] bool, True where a token stands for a part of a picture.
            condition: what `look` gave.
        """
        return PromptPairs(self.inputs(embeds, features, condition))

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """Block inputs [B, n, X] of text pairs: embeddings [B, n, D], features [B, n, F]."""
        raise NotImplementedError

    def stack(self, x: Tensor, positions: Tensor, attend: Attend) -> Hidden:
        """Run the blocks over pairs [B, n, X] at positions [B, n]."""
        raise NotImplementedError

    def feedback(self, last: Tensor) -> Tensor:
        """The head's own states [..., D] as features [..., F] of their children."""
        raise NotImplementedError

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """Logits [B, n, v] for what follows nodes of one depth (root: 0).

        Args:
            last: [B, n, D] the blocks' output there.
            depth: of the nodes.
            condition: of the requests.
            generator: where a control draws at random.
        """
        raise NotImplementedError

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """Losses of one batch.

        Returns:
            "loss", the scalar to minimise; its terms by name (detached); "accuracy" and "hit", [k]
            the share of drafts of 1, 2, ... k tokens whose last token is the target's own, as the
            best candidate and among the `width` best, given that those before it are.
        """
        raise NotImplementedError

    def visual_share(self, progress: float) -> float | None:
        """Share of samples with pictures at a point of training in [0, 1]; None for no plan."""
        return None


def count_parameters(kind: type[DraftHead], config: HeadConfig) -> dict[str, int]:
    """Trainable parameters of each direct part of a head, and "total"; allocates nothing."""
    with torch.device("meta"):
        head = kind(config)
    counts = {
        name: sum(parameter.numel() for parameter in part.parameters())
        for name, part in head.named_children()
    }
    own = sum(parameter.numel() for parameter in head.parameters(recurse=False))
    if own:
        counts["own"] = own
    return {**counts, "total": sum(counts.values())}
