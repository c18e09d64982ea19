"""Every node of a packed forward says what a plain run over its root path says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import VOCAB_SIZE, draft_trees, packed, random_tree, root_path
from eyespan.types import DraftTree, Needs, PackedTree
from tests.parity.steps import (
    FAMILIES_AND_IMAGES,
    WORST,
    gap,
    prompt_of,
    step,
    steps_after,
    target_of,
)

WINDOW = 12


def leaves(tree: PackedTree) -> list[int]:
    return sorted(set(range(len(tree))) - set(tree.parents.tolist()))


def worst_gap(target: HuggingFaceTarget, prompt: Prompt, tree: PackedTree) -> float:
    """Largest difference over all nodes; also checks that rows lead with the argmax."""
    state, _ = target.prefill(prompt, Needs())
    out = target.forward([state], [tree], Needs())[0]
    assert (out.row_ids[:, 0] == out.logits.argmax(-1).numpy()).all()
    worst = 0.0
    for leaf in leaves(tree):
        path = [0, *root_path(tree, leaf)]
        alone = steps_after(target, prompt, tree.tokens[path])
        for node, logits in zip(path, alone, strict=True):
            worst = max(worst, gap(out.logits[node], logits))
            assert out.row_ids[node, 0] == logits.argmax()
    return worst


def a_tree(seed: int, size: int = 11) -> PackedTree:
    return packed(random_tree(np.random.default_rng(seed), size, VOCAB_SIZE, range(8)), 70)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("family", "images"), FAMILIES_AND_IMAGES)
def test_A19_nodes_equal_single_steps(family: str, images: int, attention: str) -> None:
    target = target_of(family, attention)
    assert worst_gap(target, prompt_of(target, images), a_tree(images)) < WORST


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", [3, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 40])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_A15_windows_count_positions_and_not_slots(
    family: str, length: int, attention: str
) -> None:
    """Windows counted on packed slots let a node see too little; see the field's many reports."""
    target = target_of(family, attention)
    assert target.info.masks == "hook"
    prompt = target.prompt_from_ids(list(range(40, 40 + length)))
    assert worst_gap(target, prompt, a_tree(length)) < WORST


@settings(max_examples=20, deadline=None)
@given(tree=draft_trees(max_size=30, vocab_size=VOCAB_SIZE))
def test_A19_any_tree(tree: DraftTree) -> None:
    target = target_of("llama")
    assert worst_gap(target, prompt_of(target, 0), packed(tree, 70)) < WORST


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_the_hook_says_what_the_explicit_mask_says(family: str, attention: str) -> None:
    target = target_of(family, attention)
    hooked = HuggingFaceTarget(target.model, target.processor)
    hooked._capabilities = replace(hooked._capabilities, full_attention=False)
    prompt, tree = prompt_of(target, 1 if family != "llama" else 0), a_tree(5)
    outs = []
    for each in (target, hooked):
        state, _ = each.prefill(prompt, Needs())
        outs.append(each.forward([state], [tree], Needs())[0].logits)
    assert gap(*outs) < WORST


def test_the_comparison_notices_a_mask_without_branches() -> None:
    """The control: a chain's mask over the same nodes must be far off."""
    target = target_of("llama")
    tree = packed(DraftTree(np.array([40, 50, 60], np.int32), np.full(3, -1, np.int32)), 70)
    chain = packed(DraftTree(tree.tokens[1:], np.arange(-1, 2, dtype=np.int32)), 70)
    prompt = prompt_of(target, 0)
    assert worst_gap(target, prompt, tree) < WORST
    with pytest.raises(AssertionError):
        assert worst_gap(target, prompt, replace(tree, ancestors=chain.ancestors)) < WORST


def test_A19_duplicate_guesses_stand_side_by_side() -> None:
    target = target_of("llama")
    parents = np.array([-1, -1, 0, 1, 3], np.int32)
    tree = packed(DraftTree(np.array([40, 40, 50, 50, 50], np.int32), parents), 70)
    assert worst_gap(target, prompt_of(target, 0), tree) < WORST


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_A09_interleaved_requests_keep_their_own_positions(family: str) -> None:
    """Qwen-VL models store the last prefill's position offset on the model; read raw, another
    request's picture would shift this one's positions ("is is is").
    """
    target = target_of(family)
    prompts = [prompt_of(target, images) for images in (1, 2, 0)]
    tokens, tree = [40, 50, 60], a_tree(3)
    alone = [steps_after(target, prompt, tokens)[-1] for prompt in prompts]
    states = [target.prefill(prompt, Needs())[0] for prompt in prompts]
    for token in tokens:
        together = [step(target, state, token) for state in states]
    for one, other in zip(alone, together, strict=True):
        assert gap(one, other) < WORST
    outs = target.forward(states, [tree] * 3, Needs())
    for prompt, out in zip(prompts, outs, strict=True):
        path = [0, *root_path(tree, leaves(tree)[0])]
        expected = steps_after(target, prompt, [*tokens, *tree.tokens[path]])[-1]
        assert gap(out.logits[path[-1]], expected) < WORST


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2_5_vl"])
def test_left_padding_changes_nothing(family: str) -> None:
    target = target_of(family)
    ids = np.arange(40, 60)
    plain = target.prompt_from_ids(ids.tolist())
    mask = np.concatenate([np.zeros(5), np.ones(20)]).astype(np.int64)
    positions = np.maximum(mask.cumsum() - 1, 0)
    as_tensor = plain.input_ids.new_tensor
    rows = as_tensor(positions).expand((*plain.position_ids.shape[:-1], 25))
    padded = target.prompt_from_generate(
        as_tensor(np.concatenate([np.zeros(5, np.int64), ids]))[None],
        {"attention_mask": as_tensor(mask)[None], "position_ids": rows, "use_cache": True},
    )
    tree = a_tree(2)
    outs = []
    for prompt in (plain, padded):
        state, _ = target.prefill(prompt, Needs())
        step(target, state, 77)
        outs.append(target.forward([state], [tree], Needs())[0].logits)
    assert gap(*outs) < WORST


def test_forward_insists_on_keep() -> None:
    target = target_of("llama")
    state, _ = target.prefill(prompt_of(target, 0), Needs())
    target.forward([state], [a_tree(0)], Needs())
    with pytest.raises(RuntimeError, match="keep"):
        target.forward([state], [a_tree(0)], Needs())
