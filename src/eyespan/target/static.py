"""Passes of a few fixed widths, each compiled once, over keys and values that stay in place.

A small model spends most of a step in Python: transformers' layers are some twenty calls each. A
compiled pass runs the same forward as one function. What would make a compiler start anew with
every token is settled here:

* a pack is filled up to the next of `WIDTHS`; filling nodes repeat the root, see the text and it,
  and nobody reads what comes out (a row that sees nothing would make NaN); the sequence's next
  pass overwrites what they left in the cache;
* the mask is an explicit one, so every tree of a width is the same program;
* keys and values are plain tensors with one size that is declared to vary (`places.py`), so every
  length and every request is the same program too.

The prompt is read uncompiled. So are packs wider than the widest pass, batches, padded prompts, a
static cache that a prompt brings, attention that somebody watches, and the packs of a width that
failed while it was compiled or run, which is logged. Each of these finds the cache as a plain
growing one; the words are the model's own either way.

Every width is compared with an uncompiled pass before it is used. Kernels that a compiler fuses
round otherwise, as two batch sizes do: measured differences are a few 1e-6.

On a GPU the same path records CUDA graphs (`mode="reduce-overhead"`): whole buffers of few sizes at
addresses that stay, and outputs copied out of the graph's own memory. That was never run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from eyespan.errors import UnsupportedTarget
from eyespan.target.base import SequenceState
from eyespan.target.cache import new_cache
from eyespan.target.capabilities import Capabilities
from eyespan.target.families import Family
from eyespan.target.places import Pool
from eyespan.target.probe import allowed_gap, binary_tree, text_prompt
from eyespan.target.tree_forward import (
    ancestor_matrix,
    as_the_model_takes,
    call_model,
    forward_tree,
)
from eyespan.types import Needs, PackedTree

if TYPE_CHECKING:
    from eyespan.target.adapter import HuggingFaceTarget

log = logging.getLogger("eyespan")

WIDTHS = (1, 4, 8, 16, 32, 72)
"""Nodes of the passes, roots included: the plain step, what pays on a CPU, and the published sizes
of most methods (RECAP's 63 + 4 guesses and the root are 68).
"""
_STEP, _STEP_GPU = 64, 512
"""Windows are multiples of it: attention reads this much too far at most; a GPU records a graph for
each."""
_PROMPT = 12
"""Tokens before the tree that a width is tried on."""


class _Written(Cache):  # type: ignore[misc]
    """The cache that the model sees inside a pass: appends by writing in place.

    Args:
        keys: [window, H, D] of each layer.
        values: [window, H, D] of each layer.
        at: [n] rows that the nodes take.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], at: Tensor) -> None:
        super().__init__(layers=[])
        self._keys, self._values, self._at = keys, values, at

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """[1, H, n, D] of the nodes -> [1, H, window, D] of everything."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.index_copy_(0, self._at, key_states[0].transpose(0, 1))
        values.index_copy_(0, self._at, value_states[0].transpose(0, 1))
        return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]


class Passes:
    """The compiled passes of one model.

    Args:
        model: a transformers model.
        capabilities: what `inspect_model` found.
        family: its row.
        name: how messages call it.
        backend: of `torch.compile`, a name or a function.
        widths: ascending, the first is 1.

    Raises:
        UnsupportedTarget: a model whose cache is more than keys and values of all tokens, or no
            compiler.
    """

    def __init__(
        self,
        model: Any,
        capabilities: Capabilities,
        family: Family,
        name: str,
        *,
        backend: Any = "inductor",
        widths: Sequence[int] = WIDTHS,
    ) -> None:
        self._model, self._capabilities, self._family = model, capabilities, family
        self._name, self._backend = name, backend
        self._widths = tuple(widths)
        self._gpu = capabilities.device.type != "cpu"
        layers = {type(layer) for layer in new_cache(model.config).layers}
        if not capabilities.shares or family.step_inputs or layers != {DynamicLayer}:
            raise self._refused(
                f"a decoder that remembers {capabilities.remembers}"
                if capabilities.remembers != "all tokens"
                else "a decoder whose passes need more than ids, positions, a mask and a cache",
                "layers that see all tokens and keep nothing but their keys and values are needed",
            )
        if backend == "inductor" and not self._gpu:
            self._check_compiler()
        self._pool = Pool(_STEP_GPU if self._gpu else _STEP, whole=self._gpu)
        self._passes: dict[int, Callable[..., Any]] = {}
        self._failed: dict[int, str] = {}

    @torch.no_grad()
    def ready(self, target: HuggingFaceTarget, most: int) -> None:
        """Compile and try what packs of up to `most` nodes need and is not there yet: tens of
        seconds a width the first time, a few with torch's own cache on disk.

        Args:
            target: the model's adapter.
            most: nodes of the largest pack, the root included.

        Raises:
            UnsupportedTarget: the plain step cannot be compiled, or gives other logits.
        """
        below = 0
        for width in self._widths:
            if below >= most:
                break
            below = width
            if width in self._passes or width in self._failed:
                continue
            with _told(f"compiling passes of {width}"):
                self._compile(target, width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that are ready, ascending."""
        return tuple(sorted(self._passes))

    def width_of(self, size: int) -> int | None:
        """The pass that takes a pack of `size` nodes; None where none is ready."""
        return next((width for width in self.widths if size <= width), None)

    def run(self, state: SequenceState, tree: PackedTree) -> Any:
        """Run one pack; its nodes are then the last entries of the state's cache.

        Returns:
            logits [1, n, V] and the states of all layers, as `forward_tree` returns them; None
            where the pack has to run uncompiled.
        """
        width = self.width_of(len(tree))
        alone = state.padding is None and state.capacity is None and not state.pending
        if width is None or not alone:
            return None
        try:
            return self._run(state, tree, width)
        except Exception as error:  # the cache is as it was, so the pack can run uncompiled
            self._fail(width, error)
            return None

    def _run(self, state: SequenceState, tree: PackedTree, width: int) -> Any:
        size, start, cache = len(tree), state.length, state.cache
        device = self._capabilities.device
        if state.places is None:
            state.places = self._pool.take()
        keys, values = state.places.hold(cache, start, width)
        ids = np.full((1, width), tree.tokens[0], np.int64)
        ids[0, :size] = tree.tokens
        depths = np.zeros(width, np.int64)
        depths[:size] = tree.depths
        visible = _visible(tree, width, start, len(keys[0])).to(device)
        logits, hidden = self._passes[width](
            torch.from_numpy(ids).to(device),
            state.next_position + torch.from_numpy(depths).to(device),
            _let_vary(as_the_model_takes(self._capabilities, visible)),
            torch.arange(start, start + width, device=device),
            keys,
            values,
        )
        if self._gpu:  # a recorded graph writes its next result to the same memory
            logits, hidden = logits.clone(), tuple(each.clone() for each in hidden)
        state.places.show(cache, start + size)
        state.pack, state.undo = tree.tokens, None
        return SimpleNamespace(logits=logits[:, :size], hidden_states=hidden)

    def _compile(self, target: HuggingFaceTarget, width: int) -> None:
        """Compile one width and compare it with an uncompiled pass."""
        self._passes[width] = self._traced(width)
        try:
            gap, allowed = self._try(target, width)
        except Exception as error:
            if width == self._widths[0]:
                del self._passes[width]
                raise self._refused(
                    shorten(f"{type(error).__name__}: {error}", 200),
                    "a model that torch.compile can trace whole is needed",
                ) from error
            self._fail(width, error)
            return
        if not gap <= allowed:  # written so that NaN fails too
            raise self._refused(
                f"logits {gap:.2g} away from an uncompiled pass",
                f"at most {allowed:.2g} is needed at this precision",
            )

    def _traced(self, width: int) -> Callable[..., Any]:
        """The function of one width, ready to be compiled by its first call.

        torch files what it compiled, and counts how often it had to start anew, under a function's
        code; so each width of each model has a code object of its own.
        """
        model, capabilities, family = self._model, self._capabilities, self._family
        tells = family.tells_states

        def run(
            input_ids: Tensor,
            position_ids: Tensor,
            mask: Any,
            at: Tensor,
            keys: list[Tensor],
            values: list[Tensor],
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            output = call_model(
                model,
                capabilities,
                family,
                _Written(keys, values, at),
                input_ids=input_ids,
                position_ids=position_ids,
                mask=mask,
                logits_to_keep=width,
                hidden=tells,
            )
            return output.logits, tuple(output.hidden_states) if tells else ()

        code = run.__code__.replace(co_name=f"run_{width}")
        own = FunctionType(code, run.__globals__, code.co_name, None, run.__closure__)
        mode = "reduce-overhead" if self._gpu and self._backend == "inductor" else None
        compiled: Callable[..., Any] = torch.compile(
            own, backend=self._backend, fullgraph=True, dynamic=False, mode=mode
        )
        return compiled

    def _try(self, target: HuggingFaceTarget, width: int) -> tuple[float, float]:
        """Compile by running; how far its logits are from an uncompiled pass, and may be."""
        tells = self._family.tells_states
        tree = binary_tree(target, max(1, width - 1))  # one filling node, where there can be
        deepest = self._capabilities.max_context - 1 - int(tree.depths.max())
        prompt = text_prompt(target, max(1, min(_PROMPT, deepest)))
        state, _ = target.prefill(prompt, Needs(hidden_layers=(0,) if tells else ()))
        try:
            second = state.fork()
            plain = forward_tree(
                self._model, self._capabilities, self._family, state, tree, hidden=tells
            ).logits
            packed = self._run(second, tree, width).logits
            second.close()
        finally:
            state.close()
        return float((plain.float() - packed.float()).abs().max()), allowed_gap(plain)

    def _fail(self, width: int, error: Exception) -> None:
        """Give a width up."""
        self._passes.pop(width, None)
        self._failed[width] = reason = shorten(f"{type(error).__name__}: {error}", 200)
        log.warning("%s: passes of %d stay uncompiled (%s)", self._name, width, reason)

    def _check_compiler(self) -> None:
        """Kernels for a CPU are C++: look for a compiler before anything runs."""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            raise self._refused(
                "no C++ compiler",
                "one is needed: torch.compile writes kernels in C++",
                "Install g++ or clang, or name one in CXX; or leave compiled out.",
            ) from None

    def _refused(
        self, found: str, needed: str, todo: str = "Leave compiled out for this model."
    ) -> UnsupportedTarget:
        return UnsupportedTarget(
            f"compiled passes of '{self._name}'", found=found, needed=needed, todo=todo
        )


def _visible(tree: PackedTree, width: int, start: int, window: int) -> Tensor:
    """[1, 1, width, window] bool: text and ancestors; filling nodes see what the root sees."""
    size = len(tree)
    visible = torch.zeros(1, 1, width, window, dtype=torch.bool)
    visible[..., : start + 1] = True
    if size > 1:
        visible[..., :size, start : start + size] = ancestor_matrix(tree.ancestors, size)
    return visible


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Tell the log, and whoever waits at a terminal, what takes so long."""
    log.info("%s", what)
    watched = sys.stderr.isatty()
    if watched:
        print(f"{what} ...", end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if watched:
            print(" " * len(f"{what} ..."), end="\r", file=sys.stderr, flush=True)


def _let_vary(mask: Any) -> Any:
    """Declare that a mask's windows vary in length, as those of keys and values do."""
    from torch._dynamo import mark_dynamic

    for each in mask.values() if isinstance(mask, dict) else (mask,):
        mark_dynamic(each, 3)
    return mask
