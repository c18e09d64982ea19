"""How much of the last layer's attention falls on pictures: one row of it, or the columns of some
positions, never a whole map.

Fused attention never shows its weights. So the row that is asked for is computed again, from the
query and the keys that the model hands to the attention function it looks up by name; an eager
model returns its weights, and a hook takes the row out of them. One row of 4,000 keys and 32 heads
is half a megabyte; nothing else is kept, and other forwards are passed on untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eyespan.errors import UnsupportedTarget
from eyespan.target.in_force import in_force

FUSED = "sdpa"

BLOCK = 128
"""Queries of a whole forward that are looked at together."""


@dataclass(slots=True, eq=False)
class Watched:
    """One forward whose attention is looked at.

    Attributes:
        modules: the last decoder layer's modules, its attention among them.
        row: which query: 0 for the root of a pack, -1 for the last token of a prompt.
        weights: [B, kv] that query's attention in every row of the call, mean over heads, float32;
            None before the forward.
        slots: [m] positions; where they are given, `weights` is [n, m], what every query of the
            call's first row gives to each of them.
    """

    modules: Sequence[torch.nn.Module]
    row: int
    weights: Tensor | None = None
    slots: Tensor | None = None

    def share(self, slots: Tensor, length: int, name: str, at: int = 0) -> float:
        """The share of attention on some positions of the sequence, 0 to 1.

        Args:
            slots: [m] positions in the sequence.
            length: tokens of the sequence, those of this forward included. A sliding layer holds
                only the last of them, and what it forgot gets no attention.
            name: the target's, for the error.
            at: row of the call.

        Raises:
            UnsupportedTarget: the model's attention did not pass by.
        """
        if self.weights is None:
            raise unseen(name)
        forgotten = max(length - self.weights.shape[1], 0)
        slots = slots[slots >= forgotten] - forgotten
        return float(self.weights[at, slots].sum())


_watched: ContextVar[Watched | None] = ContextVar("eyespan_watched_attention", default=None)


def last_layer_modules(model: Any, layers: int) -> tuple[torch.nn.Module, ...]:
    """Modules that say they belong to the decoder's last layer; a vision tower's never do."""
    return tuple(
        module
        for module in model.get_decoder().modules()
        if getattr(module, "layer_idx", None) == layers - 1
    )


def unseen(name: str) -> UnsupportedTarget:
    """The error for a model whose attention cannot be looked at."""
    return UnsupportedTarget(
        f"attention on picture positions from '{name}'",
        found="attention layers without a number, or with an attention function of their own",
        needed="layers that know their index and take sdpa or eager attention are needed",
        todo="Use a drafter that does not look at attention.",
    )


@contextmanager
def row_watched(modules: Sequence[torch.nn.Module], row: int) -> Iterator[Watched]:
    """The forward inside, in this thread or task, is looked at; without modules it is not."""
    watched = Watched(modules, row)
    if not modules:
        yield watched
        return
    with _watching(watched):
        yield watched


@contextmanager
def columns_watched(modules: Sequence[torch.nn.Module], slots: Tensor) -> Iterator[Watched]:
    """The same for what every token of the forward gives to some positions [m]; for a forward
    whose cache was empty and whose last layer keeps every token.
    """
    watched = Watched(modules, row=-1, slots=slots)
    with _watching(watched):
        yield watched


@contextmanager
def _watching(watched: Watched) -> Iterator[None]:
    _install()
    token = _watched.set(watched)
    with ExitStack() as hooks:
        hooks.callback(_watched.reset, token)
        for module in watched.modules:
            hooks.callback(module.register_forward_hook(_take_eager).remove)
        yield


class _Aware:
    """An attention function that can be watched; recognised by its class, so installed once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        watched = in_force(_watched)
        if watched is not None and any(module is one for one in watched.modules):
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            if watched.slots is None:
                at = query[:, :, watched.row] * scaling
                watched.weights = _row(at, key, attention_mask, watched.row)
            else:
                asking = query[0] * scaling
                watched.weights = _columns(asking, key[0], attention_mask, watched.slots)
        return self.function(module, query, key, value, attention_mask, **kwargs)


def _install() -> None:
    function = ALL_ATTENTION_FUNCTIONS[FUSED]
    if not isinstance(function, _Aware):
        ALL_ATTENTION_FUNCTIONS.register(FUSED, _Aware(function))


def _row(query: Tensor, keys: Tensor, mask: Tensor | None, row: int) -> Tensor:
    """[B, kv] attention of one query, mean over heads.

    Args:
        query: [B, heads, d], scaled.
        keys: [B, key heads, kv, d]; several heads of the query share one.
        mask: [B, 1 or heads, n, kv], bool or added; None lets this query see every key, as the last
            one of a causal pass does.
        row: of the mask.
    """
    groups = query.reshape(*keys.shape[:2], -1, query.shape[-1])
    scores = (groups @ keys.transpose(-1, -2)).flatten(1, 2).float()
    if mask is not None:
        visible = mask[:, :, row, : keys.shape[-2]]
        if visible.dtype == torch.bool:
            scores = scores.masked_fill(~visible, float("-inf"))
        else:
            scores = scores + visible.float()
    return scores.softmax(-1).mean(1)


def _columns(queries: Tensor, keys: Tensor, mask: Tensor | None, slots: Tensor) -> Tensor:
    """[n, m] attention of all queries on some keys, mean over heads; a block of queries at a time.

    Args:
        queries: [heads, n, d], scaled.
        keys: [key heads, kv, d].
        mask: as of `_row`; None is causal.
        slots: [m].
    """
    count, size = keys.shape[1], keys.shape[-1]
    places = torch.arange(count, device=keys.device)
    first = count - queries.shape[1]
    found = []
    for start in range(0, queries.shape[1], BLOCK):
        some = queries[:, start : start + BLOCK]
        rows = slice(start, start + some.shape[1])
        groups = some.reshape(keys.shape[0], -1, some.shape[1], size)
        scores = (groups @ keys[:, None].transpose(-1, -2)).flatten(0, 1).float()
        if mask is None:
            later = places > (places[: some.shape[1]] + start + first)[:, None]
            scores = scores.masked_fill(later, float("-inf"))
        elif mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[0, :, rows, :count], float("-inf"))
        else:
            scores = scores + mask[0, :, rows, :count].float()
        found.append(scores.softmax(-1).mean(0)[:, slots.to(keys.device)])
    return torch.cat(found)


def _take_eager(module: Any, _inputs: Any, output: Any) -> None:
    """Keep the row of an eager attention's weights [B, heads, n, kv], its second result."""
    watched = in_force(_watched)
    weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    if watched is not None and isinstance(weights, Tensor) and weights.ndim == 4:
        if watched.slots is None:
            watched.weights = weights[:, :, watched.row].float().mean(1)
        else:
            mean = weights[0].float().mean(0)
            watched.weights = mean[:, watched.slots.to(mean.device)]
