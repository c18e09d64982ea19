"""One forward over one packed tree: mask, positions, model call.

A node sees the whole prefix and its own ancestors, and stands at root position + depth in every
row of position ids. Siblings share a position and do not see each other, so the logits of a node
equal those of a plain forward over its root path.

Models with recurrent states take a tree through `states.py` or a chain through `replay.py`.

Two pitfalls are settled here: eager attention *adds* its mask, so a bool one would silently shift
logits by one instead of hiding anything; and positions are given on every call, because Qwen-VL
models otherwise continue from the offset that the last prefill, of any request, left behind.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyespan.target.base import SequenceState
from eyespan.target.cache import length
from eyespan.target.capabilities import Capabilities
from eyespan.target.families import Family
from eyespan.target.features import READY
from eyespan.target.mask_hook import ActiveTree, tree_active
from eyespan.target.replay import Snapshot, is_chain
from eyespan.target.states import StateTree, states_active
from eyespan.types import PackedTree, Words


def call_model(
    model: Any,
    capabilities: Capabilities,
    family: Family,
    cache: Any,
    *,
    input_ids: Tensor,
    position_ids: Tensor,
    mask: Any,
    logits_to_keep: int | Tensor,
    hidden: bool = False,
    **inputs: Any,
) -> Any:
    """The one place that calls a model.

    Args:
        model: a transformers model.
        capabilities: what `inspect_model` found.
        family: the model's row.
        cache: grows by the fed tokens.
        input_ids: [B, n], B being 1 but for the packs of a batch (`batch.py`).
        position_ids: [B, n] or [4, B, n].
        mask: None, a 2-D padding mask, a 4-D mask or a mapping of those.
        logits_to_keep: how many last positions get logits, or which.
        hidden: return the states of all layers too.
        inputs: media inputs and token kinds.
    """
    inputs[capabilities.cache_argument] = cache
    if hidden:
        inputs["output_hidden_states"] = True
    if capabilities.takes_positions:
        inputs["position_ids"] = position_ids + family.first_position
    if family.wraps:
        inputs = {**_no_pictures(capabilities, family, inputs), **inputs}
        if mask is None:  # its own default covers the fed tokens alone
            shape = (input_ids.shape[0], length(cache) + input_ids.shape[1])
            mask = torch.ones(shape, dtype=torch.long, device=input_ids.device)
    output = model(
        input_ids=input_ids,
        attention_mask=mask,
        use_cache=True,
        logits_to_keep=logits_to_keep,
        return_dict=True,
        **inputs,
    )
    return output.language_model_outputs if family.wraps else output


def _no_pictures(
    capabilities: Capabilities, family: Family, inputs: dict[str, Any]
) -> dict[str, Any]:
    """What a model that always wants pictures is told where none are run."""
    absent: dict[str, Any] = dict.fromkeys(family.media_inputs)
    if READY not in inputs and not any(name in inputs for name in family.media_inputs):
        rows = torch.zeros(1, 1, capabilities.hidden_size, device=capabilities.device)
        none = SimpleNamespace(pooler_output=rows, qformer_outputs=None, vision_outputs=None)
        absent[READY] = {"image": none}
    return absent


def forward_tree(
    model: Any,
    capabilities: Capabilities,
    family: Family,
    state: SequenceState,
    tree: PackedTree,
    hidden: bool = False,
) -> Any:
    """Run one pack; its nodes are then the last entries of the state's cache.

    Args:
        model: a transformers model.
        capabilities: what `inspect_model` found.
        family: its row.
        state: the sequence; the tree's first `state.pending` nodes are in its cache already (only
            where every layer sees the whole past). Tokens that it owes to the model's states run
            in front of the pack.
        tree: [n] nodes; n == 1 is the plain step, with stock's own mask and kernels.
        hidden: return the states of all layers too.

    Returns:
        The model's output for the nodes that were not in the cache; logits [1, m, V].
    """
    done, device = state.pending, capabilities.device
    new = len(tree) - done
    depths = torch.from_numpy(tree.depths[done:].astype(np.int64)).to(device)
    padding = _padding_with(state, len(tree))
    state.pack, state.undo = tree.tokens, None

    def run(mask: Any) -> Any:
        owed = len(state.owed)
        ids = np.concatenate([state.owed, tree.tokens[done:]]).astype(np.int64)
        before = torch.arange(-owed, 0, device=device)
        return call_model(
            model,
            capabilities,
            family,
            state.cache,
            input_ids=torch.from_numpy(ids)[None].to(device),
            position_ids=state.next_position + torch.cat([before, depths]),
            mask=mask,
            logits_to_keep=new,
            hidden=hidden,
            **step_inputs(state, owed + new),
        )

    if len(tree) == 1 or capabilities.states == "chains":
        if len(tree) > 1:
            if not is_chain(tree.parents):
                raise RuntimeError("a model whose states only move forward was given a tree")
            state.undo = Snapshot.of(state.cache)
        return run(padding)
    ancestors = ancestor_matrix(tree.ancestors, len(tree))[done:].to(device)
    if capabilities.full_attention and padding is None:
        return run(explicit_mask(capabilities, ancestors, state))
    with ExitStack() as active:
        active.enter_context(tree_active(ActiveTree(ancestors, depths, state.length)))
        if capabilities.states == "trees":
            state.undo = active.enter_context(states_active(StateTree(tree.parents, ancestors)))
        return run(padding)


def step_inputs(state: SequenceState, count: int) -> dict[str, Tensor]:
    """What `count` tokens of an answer bring along besides ids and positions. Not their kinds: they
    are text, and models that are told so build the masks of pictures at every step.
    """
    return {
        name: row.expand(-1, count, *[-1] * (row.ndim - 2))
        for name, row in state.step_inputs.items()
    }


def ancestor_matrix(ancestors: Words, size: int) -> Tensor:
    """[n, 2] 128-bit rows -> [n, n] bool, on the host."""
    octets = ancestors.astype("<u8", copy=False).view(np.uint8).reshape(size, 16)
    return torch.from_numpy(np.unpackbits(octets, axis=1, bitorder="little")[:, :size].view(bool))


def explicit_mask(capabilities: Capabilities, ancestors: Tensor, state: SequenceState) -> Any:
    """The pack's mask as full-attention layers take it: [1, 1, n, kv], bool for sdpa, 0 or the
    least float for eager, wrapped by layer type where the decoder wants a mapping.
    """
    size, start = ancestors.shape[1], state.length
    width = state.capacity if state.capacity is not None else start + size
    visible = torch.ones(1, 1, len(ancestors), width, dtype=torch.bool, device=ancestors.device)
    visible[..., start : start + size] = ancestors
    visible[..., start + size :] = False
    return as_the_model_takes(capabilities, visible)


def as_the_model_takes(capabilities: Capabilities, visible: Tensor) -> Any:
    """A bool mask [B, 1, n, kv], true where a token is seen, in the form that the model takes."""
    mask = visible
    if capabilities.attention == "eager":
        least = torch.finfo(capabilities.dtype).min
        mask = torch.zeros_like(visible, dtype=capabilities.dtype).masked_fill_(~visible, least)
    if capabilities.layer_types:
        return dict.fromkeys(capabilities.layer_types, mask)
    return mask


def _padding_with(state: SequenceState, size: int) -> Tensor | None:
    """[1, length + n] 2-D mask when the prompt was padded."""
    if state.padding is None:
        return None
    return torch.nn.functional.pad(state.padding, (0, size), value=True)
