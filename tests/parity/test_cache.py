"""What is kept of a pack continues as if it had been decoded token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from transformers.cache_utils import DynamicSlidingWindowLayer

from eyespan.errors import ContextError, UnsupportedRequest, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget, self_test
from eyespan.target.cache import check_cache
from eyespan.testing import VOCAB_SIZE, RandomDrafter, packed, random_tree, root_path, tiny_model
from eyespan.types import DraftTree, Needs
from tests.parity.steps import (
    FAMILIES_AND_IMAGES,
    WORST,
    gap,
    prompt_of,
    step,
    steps_after,
    target_of,
)

EMPTY = np.empty(0, np.int32)
NO = Needs()


def rounds(
    target: HuggingFaceTarget, prompt, count: int, size: int = 9, seed: int = 0
) -> tuple[list[int], torch.Tensor]:
    """Several rounds of random packs, a random path kept each time; tokens and last logits."""
    rng = np.random.default_rng(seed)
    state, _ = target.prefill(prompt, Needs())
    said: list[int] = []
    for _ in range(count):
        tree = packed(random_tree(rng, size, VOCAB_SIZE, range(8)), int(rng.integers(8, 264)))
        target.forward([state], [tree], Needs())
        path = root_path(tree, int(rng.integers(len(tree))))
        target.keep(state, path)
        said += tree.tokens[[0, *path]].tolist()
        assert state.length == len(prompt) + len(said)
    return said, step(target, state, 99)


@pytest.mark.parametrize(("family", "images"), FAMILIES_AND_IMAGES)
def test_kept_paths_continue_as_a_fresh_run(family: str, images: int) -> None:
    target = target_of(family)
    prompt = prompt_of(target, images)
    said, logits = rounds(target, prompt, count=4, seed=images)
    assert gap(logits, steps_after(target, prompt, [*said, 99])[-1]) < WORST


@pytest.mark.parametrize("length", [3, 11, 12, 13, 30])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_A15_windows_slide_over_kept_tokens(family: str, length: int) -> None:
    target = target_of(family)
    prompt = target.prompt_from_ids(list(range(40, 40 + length)))
    said, logits = rounds(target, prompt, count=8, seed=length)
    assert gap(logits, steps_after(target, prompt, [*said, 99])[-1]) < WORST


def test_a_contiguous_path_moves_nothing() -> None:
    target = target_of("llama")
    state, _ = target.prefill(prompt_of(target, 0), Needs())
    chain = DraftTree(np.array([40, 50, 60, 70], np.int32), np.arange(-1, 3, dtype=np.int32))
    target.forward([state], [packed(chain, 45)], Needs())
    before = [(layer.keys.data_ptr(), layer.keys.clone()) for layer in state.cache.layers]
    target.keep(state, np.array([1, 2], np.int32))
    for layer, (address, keys) in zip(state.cache.layers, before, strict=True):
        assert layer.keys.data_ptr() == address
        assert torch.equal(layer.keys, keys[..., : state.length, :])


@pytest.mark.parametrize(
    ("family", "images"),
    [("llama", 0), ("llava", 1), ("llava_next", 1), ("qwen2_5_vl", 2)],
)
def test_A16_a_static_cache_is_packed_and_kept_too(family: str, images: int) -> None:
    target = target_of(family)
    prompt = prompt_of(target, images)
    cache = transformers.StaticCache(config=target.model.config, max_cache_len=len(prompt) + 40)
    said, logits = rounds(target, replace(prompt, cache=cache), count=3)
    assert gap(logits, steps_after(target, prompt, [*said, 99])[-1]) < WORST


def test_A16_a_static_cache_says_how_many_nodes_still_fit() -> None:
    """Stock's own speculation overruns a static cache near its end."""
    target = target_of("llama")
    prompt = prompt_of(target, 0)
    cache = transformers.StaticCache(config=target.model.config, max_cache_len=len(prompt) + 9)
    state, _ = target.prefill(replace(prompt, cache=cache), NO)
    assert state.room == 9
    target.forward([state], [packed(random_tree(np.random.default_rng(0), 8, 200), 99)], NO)
    target.keep(state, EMPTY)
    assert state.room == 8
    assert target.prefill(prompt, NO)[0].room is None
    with pytest.raises(UnsupportedRequest, match="a static cache"):
        target.prompt_from_generate(prompt.input_ids, {"cache": cache})


@pytest.mark.parametrize("drafter", ["none", "recap", "random"])
def test_an_answer_ends_where_its_static_cache_does(drafter: str) -> None:
    """Nothing was counted before: a pack or a plain step ran over the end in mid-answer."""
    target = target_of("llama")
    prompt = prompt_of(target, 0)
    plain = Engine(target, "none").generate(prompt, max_new_tokens=20)
    made = RandomDrafter(VOCAB_SIZE) if drafter == "random" else drafter
    engine = Engine(target, made, budget="fixed")
    for slots in (0, 1, 6):
        config = target.model.config
        static = transformers.StaticCache(config=config, max_cache_len=len(prompt) + slots)
        answer = engine.generate(replace(prompt, cache=static), max_new_tokens=20)
        assert (answer.token_ids, answer.finish) == (plain.token_ids[: slots + 1], "length")
        assert not answer.plain_steps.get("drafter fault")
    short = transformers.StaticCache(config=config, max_cache_len=len(prompt) - 1)
    with pytest.raises(ContextError, match=f"static cache has {len(prompt) - 1} slots"):
        engine.generate(replace(prompt, cache=short))


@pytest.mark.parametrize("family", ["llama", "mistral", "llava"])
def test_a_released_cache_is_stocks_own(family: str) -> None:
    """`generate()` continues from the cache handed back and says what it says on its own."""
    target = target_of(family)
    prompt = target.prompt_from_ids(list(range(40, 65)))
    state, _ = target.prefill(prompt, Needs())
    tree = packed(random_tree(np.random.default_rng(0), 9, VOCAB_SIZE, range(8)), 45)
    target.forward([state], [tree], Needs())
    path = root_path(tree, 7)
    target.keep(state, path)
    cache = target.release(state)
    assert not any(
        layer.record_past for layer in cache.layers if type(layer) is DynamicSlidingWindowLayer
    )
    ids = torch.cat([prompt.input_ids, torch.tensor([[*tree.tokens[[0, *path]], 99]])], dim=1)
    options = {"max_new_tokens": 6, "do_sample": False}
    alone = target.model.generate(ids, **options)
    continued = target.model.generate(ids, **options, cache=cache)
    assert torch.equal(alone, continued)


def alien_configs() -> dict[str, object]:
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
    }
    return {
        "KimiLinearDeltaAttention": transformers.KimiLinearConfig(**sizes, pad_token_id=0),
        "MambaMixer": transformers.MambaConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, state_size=4
        ),
        "layers of an unknown kind": transformers.MiniMaxConfig(**sizes, num_local_experts=2),
    }


@pytest.mark.parametrize("found", list(alien_configs()))
def test_states_of_unknown_classes_are_refused_at_load(found: str) -> None:
    model = transformers.AutoModelForCausalLM.from_config(alien_configs()[found])
    with pytest.raises(UnsupportedTarget, match=f"recurrent states in {found}"):
        HuggingFaceTarget(model)


def test_caches_that_cannot_drop_one_token_are_refused() -> None:
    config = target_of("mistral").model.config
    static = transformers.StaticCache(config=config, max_cache_len=64)
    with pytest.raises(UnsupportedTarget, match="StaticSlidingWindowLayer"):
        check_cache(static, "tiny")
    with pytest.raises(UnsupportedTarget, match="offloaded DynamicCache"):
        check_cache(transformers.DynamicCache(config=config, offloading=True), "tiny")
    config = target_of("qwen3_next").model.config
    static = transformers.StaticCache(config=config, max_cache_len=64)
    with pytest.raises(UnsupportedTarget, match="StaticCache"):
        check_cache(static, "tiny", "trees")
    config = target_of("mistral").model.config
    dynamic = transformers.DynamicCache(config=config)
    both = transformers.EncoderDecoderCache(dynamic, dynamic)
    with pytest.raises(UnsupportedTarget, match="EncoderDecoderCache"):
        check_cache(both, "tiny")


def test_the_self_test_finds_a_model_whose_tokens_lean_on_their_neighbours() -> None:
    """A scale shared by all tokens of a pass: nothing in the config tells."""
    model = tiny_model("llama")
    target = HuggingFaceTarget(model)
    self_test(target)

    def shared_scale(module, args, output):
        return output * (1 + 0.1 * output.abs().amax() / 8)

    handle = model.model.layers[0].mlp.register_forward_hook(shared_scale)
    with pytest.raises(UnsupportedTarget, match="tree node"):
        self_test(target)
    handle.remove()
    self_test(target)
