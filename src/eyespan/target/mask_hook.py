"""Tree masks for any mask that a model composes itself: windows, chunks, padding, static caches.

Every transformers model builds its masks through one table, looked up at each call: a builder per
attention implementation, which receives the model's own rule `mask_function(batch, head, query,
key)` over absolute positions. While a tree is active, our wrapper evaluates that rule at the
positions the nodes will have in the text (prefix + depth) and joins it with "is an ancestor".
Outside a tree it passes everything on untouched, so stock generation is not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from eyespan.target.in_force import in_force

HOOKED = ("sdpa", "eager")


@dataclass(frozen=True, slots=True)
class ActiveTree:
    """The pack whose masks are being built.

    Attributes:
        ancestors: [n, n] bool, row i true at i and its ancestors.
        depths: [n] int64.
        start: tokens in the cache before the pack.
    """

    ancestors: Tensor
    depths: Tensor
    start: int


_active: ContextVar[ActiveTree | None] = ContextVar("eyespan_active_tree", default=None)


class _TreeAware:
    """A mask builder that knows about trees; recognised by its class, so it is installed once."""

    def __init__(self, builder: Callable[..., Any]) -> None:
        self.builder = builder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tree = in_force(_active)
        if tree is None:
            return self.builder(*args, **kwargs)
        kwargs["mask_function"] = _over_tree(kwargs["mask_function"], tree)
        kwargs["q_offset"] = tree.start
        kwargs["allow_is_causal_skip"] = False  # the builder may not assume a causal order
        if kwargs.get("local_size") is not None:
            kwargs["local_size"] = None
        token = _active.set(None)  # a builder that calls another wrapped one maps only once
        try:
            return self.builder(*args, **kwargs)
        finally:
            _active.reset(token)


def install() -> None:
    """Wrap the builders of `HOOKED`; harmless when they are wrapped already."""
    for name in HOOKED:
        builder = ALL_MASK_ATTENTION_FUNCTIONS[name]
        if not isinstance(builder, _TreeAware):
            ALL_MASK_ATTENTION_FUNCTIONS.register(name, _TreeAware(builder))


@contextmanager
def tree_active(tree: ActiveTree) -> Iterator[None]:
    """Masks built inside, in this thread or task, are those of `tree`."""
    install()
    token = _active.set(tree)
    try:
        yield
    finally:
        _active.reset(token)


def _over_tree(rule: Callable[..., Tensor], tree: ActiveTree) -> Callable[..., Tensor]:
    """The model's rule at the nodes' text positions, and only towards prefix and ancestors."""
    start, nodes = tree.start, tree.depths.shape[0]

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_node = (query - start).clamp(0, nodes - 1)
        key_node = (key - start).clamp(0, nodes - 1)
        in_pack = (key >= start) & (key < start + nodes)
        key_position = torch.where(in_pack, start + tree.depths[key_node], key)
        query_position = start + tree.depths[query_node]
        by_model = rule(batch, head, query_position, key_position)
        by_tree = torch.where(in_pack, tree.ancestors[query_node, key_node], key < start)
        return by_model & by_tree

    return allowed
