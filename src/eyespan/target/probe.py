"""One small tree on the live model before anybody trusts it.

It catches what no inspection sees: an attention that ignores or misreads the mask, positions that
are not where they should be, states outside the cache, kernels whose result for one token depends
on its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from eyespan._core import pack
from eyespan.errors import UnsupportedTarget
from eyespan.target.base import Prompt, SequenceState, Target
from eyespan.types import Ints, Needs, PackedTree, Words

if TYPE_CHECKING:
    from eyespan.target.adapter import HuggingFaceTarget

_PARENTS = (-1, 0, 1, 1, 0, 4)
"""The root, two children of it, two under the first of those and one under the second."""

_CHAIN = (-1, 0, 1)
"""For models that verify chains only."""

_DEPTH = 2
_PROMPT = 12
_TOLERANCE = {torch.float32: 5e-4, torch.float16: 5e-3}
_TOLERANCE_COARSE = 3e-2
"""Largest allowed difference, as a share of the logits' spread; the coarse one is for bfloat16.
Measured on tiny models with a spread of about 16: 6e-6 in float32, 8e-2 in bfloat16; a mask that
is added instead of applied moves logits by 1 to 5."""


def check_needs(target: HuggingFaceTarget, needs: Needs) -> None:
    """Whether the target can hand a drafter what it reads; asked once, before any request.

    Raises:
        UnsupportedTarget: states, visual tokens or attention that nobody sees.
    """
    family = target.family
    missing = {
        "states of its layers": bool(needs.hidden_layers) and not family.tells_states,
        "visual tokens": needs.visual_tokens and not family.tells_visual_tokens,
    }
    for what, lacks in missing.items():
        if lacks:
            raise UnsupportedTarget(
                f"a drafter that reads {what} on '{target.info.name}'",
                found=f"{family.title} does not show them",
                needed="a model whose forward returns them is needed",
                todo="Use a drafter without weights, such as recap.",
            )
    if needs.visual_attention:  # only a forward tells whether attention passes by
        text = _text_ids(target)
        seeing = Needs(visual_attention=True)
        target.prefill(target.prompt_from_ids(text[:2].tolist()), seeing)[0].close()


def self_test(target: Target) -> None:
    """Compare a six-node tree with single steps after the same prompt; leaves nothing behind.

    Raises:
        UnsupportedTarget: a node's logits differ beyond rounding.
    """
    rng = np.random.default_rng(7)
    text = _text_ids(target)
    length = max(1, min(_PROMPT, target.info.max_context - _DEPTH - 1))
    parents = _PARENTS if target.info.drafts == "trees" else _CHAIN
    ids = rng.choice(text, length + len(parents))
    prompt, tree = ids[:length], _tree(ids[length:].astype(np.int32), parents)
    state, _ = target.prefill(target.prompt_from_ids(prompt.tolist()), Needs())
    packed = target.forward([state], [tree], Needs())[0].logits.clone()
    state.close()
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = _root_path(leaf, parents)
        state, _ = target.prefill(target.prompt_from_ids(prompt.tolist()), Needs())
        for node in path:
            _compare(target, state, tree, node, packed[node])
        state.close()


def _compare(
    target: Target, state: SequenceState, tree: PackedTree, node: int, packed: Tensor
) -> None:
    step = _tree(tree.tokens[node : node + 1], (-1,))
    alone = target.forward([state], [step], Needs())[0].logits[0]
    target.keep(state, np.empty(0, np.int32))
    gap = float((alone.float() - packed.float()).abs().max())
    allowed = allowed_gap(alone)
    if not gap <= allowed:  # written so that NaN fails too
        raise UnsupportedTarget(
            f"tree verification of '{target.info.name}'",
            found=f"a tree node's logits {gap:.2g} away from those of a single step",
            needed=f"at most {allowed:.2g} is needed at this precision",
            todo="Use stock generate() with this model, and report its type.",
        )


def allowed_gap(logits: Tensor) -> float:
    """How far other kernels may be from these logits."""
    spread = float(logits.float().max() - logits.float().min())
    return _TOLERANCE.get(logits.dtype, _TOLERANCE_COARSE) * spread


def text_prompt(target: Target, length: int) -> Prompt:
    """Some text of `length` tokens."""
    text = _text_ids(target)
    return target.prompt_from_ids(text[7 * np.arange(length) % len(text)])


def binary_tree(target: Target, size: int) -> PackedTree:
    """A binary tree of `size` nodes, a chain where the target takes nothing else."""
    text = _text_ids(target)
    tokens = text[np.arange(size) % len(text)].astype(np.int32)
    above = 2 if target.info.drafts == "trees" else 1
    parents = (np.arange(size - 1, dtype=np.int32) - 1) // above  # -1 // 2: node 0 is a root child
    return PackedTree(*pack(tokens[1:], parents.astype(np.int32), None, int(tokens[0])))


def _text_ids(target: Target) -> Ints:
    """Ids that are no media, ascending."""
    ids = np.arange(target.info.vocab_size, dtype=np.int32)
    return np.setdiff1d(ids, list(target.info.media_ids))


def _tree(tokens: Ints, parents: tuple[int, ...]) -> PackedTree:
    """A tree whose nodes are in packed order already."""
    size = len(tokens)
    paths = [_root_path(node, parents) for node in range(size)]
    ancestors: Words = np.zeros((size, 2), np.uint64)
    for node, path in enumerate(paths):
        for ancestor in path:
            ancestors[node, 0] |= np.uint64(1) << np.uint64(ancestor)
    return PackedTree(
        tokens=tokens.astype(np.int32),
        parents=np.array(parents, np.int32),
        depths=np.array([len(path) - 1 for path in paths], np.int32),
        ancestors=ancestors,
        order=np.arange(size - 1, dtype=np.int32),
    )


def _root_path(node: int, parents: tuple[int, ...]) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]
