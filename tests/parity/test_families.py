"""Every family of the table: packed trees (or chains) against single steps, what is kept of them,
and whole answers against stock `generate()`.
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import eyespan
from eyespan.drafters import make_drafter
from eyespan.dropin import fallbacks
from eyespan.errors import InputError, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget, self_test
from eyespan.target.base import Prompt
from eyespan.testing import (
    CHAINS,
    EVERY_SEEING,
    EVERY_TEXT,
    VOCAB_SIZE,
    WINDOW,
    OracleDrafter,
    RandomDrafter,
    packed,
    random_tree,
    root_path,
    tiny_images,
    tiny_model,
    tiny_prompt,
)
from eyespan.types import DraftTree, Needs, PackedTree
from tests.parity.steps import (
    EVERY_CASE,
    MANY,
    WORST,
    WRAPPED,
    answer,
    gap,
    marked,
    step,
    steps_after,
    target_of,
)

NO = Needs()
TOKENS = 20
WINDOWED = (
    "mistral",
    "gemma3_text",
    "qwen2_windows",
    "olmo3",
    "cohere2",
    "llama4_text",
    "gemma2",
    "gpt_oss",
    "gemma3n_text",
)


@cache
def prompt_of(family: str, images: int, videos: int) -> Prompt:
    return tiny_prompt(target_of(family), family, images, videos, text=MANY)


@cache
def stock(family: str, images: int, videos: int) -> tuple[int, ...]:
    """What `model.generate()` answers."""
    prompt = prompt_of(family, images, videos)
    out = target_of(family).model.generate(
        input_ids=prompt.input_ids, **prompt.media, max_new_tokens=TOKENS, do_sample=False
    )
    return tuple(out[0, len(prompt) :].tolist())


def a_draft(target: HuggingFaceTarget, seed: int, size: int = 9) -> PackedTree:
    """A random tree, or a chain where the target takes nothing else."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, size, VOCAB_SIZE, range(9))
    if target.info.drafts == "chains":
        tree = DraftTree(tree.tokens[:5], np.arange(-1, 4, dtype=np.int32))
    return packed(tree, int(rng.integers(9, VOCAB_SIZE)))


def check_draft(target: HuggingFaceTarget, prompt: Prompt, seed: int = 0, rounds: int = 2) -> None:
    """Several rounds, a random path kept in each: every node of every round says what a fresh run
    over the same tokens says, and so does a last step.
    """
    rng = np.random.default_rng(seed)
    state, _ = target.prefill(prompt, NO)
    said: list[int] = []
    for at in range(rounds):
        tree = a_draft(target, 10 * seed + at)
        out = target.forward([state], [tree], NO)[0]
        leaf = int(rng.integers(len(tree)))
        for node in {leaf, len(tree) - 1}:
            path = [0, *root_path(tree, node)]
            alone = steps_after(target, prompt, [*said, *tree.tokens[path]])
            for here, logits in zip(path, alone[len(said) :], strict=True):
                assert gap(out.logits[here], logits) < WORST
        kept = root_path(tree, leaf)
        target.keep(state, kept)
        said += tree.tokens[[0, *kept]].tolist()
    assert gap(step(target, state, 99), steps_after(target, prompt, [*said, 99])[-1]) < WORST
    state.close()


@pytest.mark.parametrize(("family", "images", "videos"), marked(EVERY_CASE))
def test_drafts_say_what_single_steps_say(family: str, images: int, videos: int) -> None:
    check_draft(target_of(family), prompt_of(family, images, videos))


@pytest.mark.parametrize("family", EVERY_SEEING)
def test_the_picture_matters(family: str) -> None:
    """The control of all cases above: other pixels, other logits, so the pictures were read."""
    target, prompt = target_of(family), prompt_of(family, 2, 0)
    torch.manual_seed(0)
    other = {
        key: value + torch.randn_like(value) if value.is_floating_point() else value
        for key, value in prompt.media.items()
    }
    logits = [target.prefill(each, NO)[1].logits for each in (prompt, replace(prompt, media=other))]
    assert gap(*logits) > 0.05


@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2"])
def test_states_of_siblings_would_show(family: str) -> None:
    """The control of hybrid trees: nodes on a chain's mask are far off those on a tree's."""
    target, prompt = target_of(family), prompt_of(family, 0, 0)
    tree = packed(DraftTree(np.array([40, 50, 60], np.int32), np.full(3, -1, np.int32)), 70)
    chain = packed(DraftTree(tree.tokens[1:], np.arange(-1, 2, dtype=np.int32)), 70)
    last = []
    for each in (tree, chain):
        state, _ = target.prefill(prompt, NO)
        last.append(target.forward([state], [each], NO)[0].logits[3])
    assert gap(*last) > 0.1


def budgets() -> list[Any]:
    """All cases at three budgets; the quick ones are each family's fullest case at the largest."""
    return [
        pytest.param(*case.values, budget, marks=case.marks if budget == 63 else [pytest.mark.slow])
        for case in marked(EVERY_CASE)
        for budget in (1, 4, 63)
    ]


@pytest.mark.parametrize(("family", "images", "videos", "budget"), budgets())
def test_A08_recap_is_lossless(family: str, images: int, videos: int, budget: int) -> None:
    target, prompt = target_of(family), prompt_of(family, images, videos)
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size, nodes=budget)
    engine = Engine(target, drafter, budget="fixed")
    for _ in range(2):  # the second answer starts with a warm memory
        running = answer(engine, prompt, TOKENS)
        assert tuple(running.output_ids) == stock(family, images, videos)
    assert running.counters.drafted > 0
    assert not running.counters.plain_steps.get("drafter fault")


@pytest.mark.parametrize(("family", "images", "videos"), marked(EVERY_CASE))
def test_A08_random_and_perfect_guesses_are_lossless(family: str, images: int, videos: int) -> None:
    target, prompt = target_of(family), prompt_of(family, images, videos)
    for drafter in (RandomDrafter(VOCAB_SIZE), OracleDrafter(target, [prompt], TOKENS)):
        running = answer(Engine(target, drafter, budget="fixed"), prompt, TOKENS)
        assert tuple(running.output_ids) == stock(family, images, videos)
        assert running.counters.drafted > 0
    if target.info.drafts == "trees":  # a chain takes the oracle's decoy, which scores higher
        assert running.counters.forwards < len(running.output_ids)


@pytest.mark.parametrize(
    ("family", "images", "videos"), marked(case for case in EVERY_CASE if case[0] not in WRAPPED)
)
def test_generate_of_an_enabled_model(family: str, images: int, videos: int) -> None:
    """`generate()` has encoded the pictures by the time it calls our loop."""
    model, prompt = target_of(family).model, prompt_of(family, images, videos)
    eyespan.enable(model, drafter="recap", budget="fixed")
    try:
        out = model.generate(
            input_ids=prompt.input_ids, **prompt.media, max_new_tokens=TOKENS, do_sample=False
        )
        assert tuple(out[0, len(prompt) :].tolist()) == stock(family, images, videos)
        assert fallbacks(model) == {}
    finally:
        eyespan.disable(model)


@pytest.mark.parametrize("family", WINDOWED)
def test_A15_windows_below_at_and_above_prompt_and_draft(family: str) -> None:
    target = target_of(family)
    for length in (3, WINDOW - 6, WINDOW - 1, WINDOW + 1):
        prompt = target.prompt_from_ids(list(range(40, 40 + length)))
        check_draft(target, prompt, seed=length)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", "llama4_text", "qwen3_next", "mllama"])
def test_either_attention(family: str, attention: str) -> None:
    target = target_of(family, attention)
    prompt = tiny_prompt(target, family, 2 if family in EVERY_SEEING else 0, text=MANY)
    check_draft(target, prompt)


PADDED = ("qwen3_next", "lfm2", "falcon_h1", "mamba2", "gpt_oss", "llama4_text", "gemma3")


@pytest.mark.parametrize("family", PADDED)
def test_left_padding_changes_nothing(family: str) -> None:
    target = target_of(family)
    ids = torch.arange(40, 70)[None]
    plain = target.prompt_from_ids(ids)
    pads = torch.zeros(1, 5, dtype=torch.long)
    mask = torch.cat([pads, torch.ones_like(ids)], 1)
    padded = target.prompt_from_generate(
        torch.cat([pads, ids], 1),
        {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)},
    )
    tree, outs = a_draft(target, 2), []
    for prompt in (plain, padded):
        state, _ = target.prefill(prompt, NO)
        step(target, state, 77)
        target.forward([state], [tree], NO)
        target.keep(state, root_path(tree, 2))
        outs.append(step(target, state, 78))
    assert gap(*outs) < WORST


@pytest.mark.parametrize("family", CHAINS)
def test_A17_owed_tokens_ride_along_or_are_paid(family: str) -> None:
    """Rejections in a row: what the states are owed never costs a forward of its own until it is
    long, and a released cache owes nothing.
    """
    target = target_of(family)
    prompt = prompt_of(family, 0, 0)
    state, _ = target.prefill(prompt, NO)
    calls = []
    handle = target.model.register_forward_pre_hook(lambda *_: calls.append(1))
    said, rounds = [], 30
    for at in range(rounds):
        tree = a_draft(target, at)
        target.forward([state], [tree], NO)
        target.keep(state, np.empty(0, np.int32))
        said.append(int(tree.tokens[0]))
    handle.remove()
    assert rounds < len(calls) <= rounds + 2
    assert len(state.owed) > 0
    assert gap(step(target, state, 99), steps_after(target, prompt, [*said, 99])[-1]) < WORST
    tree = a_draft(target, 99)
    target.forward([state], [tree], NO)
    cache = target.release(state)
    if family != "mamba2":  # a cache of states alone does not say where it stands
        ids = torch.tensor([[*prompt.ids, *said, 99, tree.tokens[0], 98]])
        options = {"max_new_tokens": 5, "do_sample": False}
        continued = target.model.generate(ids, **options, cache=cache)
        assert torch.equal(continued, target.model.generate(ids, **options))


@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2", "falcon_h1"])
def test_a_released_cache_of_states_is_stocks_own(family: str) -> None:
    target = target_of(family)
    prompt = prompt_of(family, 0, 0)
    state, _ = target.prefill(prompt, NO)
    tree = a_draft(target, 1)
    target.forward([state], [tree], NO)
    path = root_path(tree, 2)
    target.keep(state, path)
    cache = target.release(state)
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)
    ids = torch.tensor([[*prompt.ids, *tree.tokens[[0, *path]], 99]])
    options = {"max_new_tokens": 6, "do_sample": False}
    continued = target.model.generate(ids, **options, cache=cache)
    assert torch.equal(continued, target.model.generate(ids, **options))


def test_two_hybrids_at_once_keep_their_own_states() -> None:
    """The wrapped kernels are module-wide; what they record belongs to one forward."""
    target = target_of("qwen3_next")
    prompts = [target.prompt_from_ids(list(range(40, 40 + n))) for n in (5, 20)]
    states = [target.prefill(prompt, NO)[0] for prompt in prompts]
    trees = [a_draft(target, seed) for seed in (3, 4)]
    target.forward(states, trees, NO)
    for prompt, state, tree in zip(prompts, states, trees, strict=True):
        path = root_path(tree, len(tree) - 1)
        target.keep(state, path)
        said = [*tree.tokens[[0, *path]], 99]
        assert gap(step(target, state, 99), steps_after(target, prompt, said)[-1]) < WORST


def test_stock_decoding_of_a_hybrid_is_unchanged_by_our_use() -> None:
    model = tiny_model("qwen3_next")
    ids, options = torch.arange(40, 60)[None], {"max_new_tokens": 8, "do_sample": False}
    before = model.generate(ids, **options)
    self_test(HuggingFaceTarget(model))
    self_test(HuggingFaceTarget(model))  # wrapped once, however often it is asked
    assert torch.equal(model.generate(ids, **options), before)


@pytest.mark.parametrize("family", EVERY_TEXT + EVERY_SEEING)
def test_A05_media_ids_are_known(family: str) -> None:
    """A media id that a row forgets would be drafted and end the answer in the next forward."""
    target = target_of(family)
    prompt = prompt_of(family, 2 if family in EVERY_SEEING else 0, 0)
    words = set(target.tokenizer(MANY)["input_ids"]) | set(
        target.tokenizer("user: \nassistant:")["input_ids"]
    )
    assert set(prompt.ids.tolist()) - words <= target.info.media_ids


def test_the_table_in_the_docs_is_fresh() -> None:
    root = Path(__file__).parents[2]
    page = runpy.run_path(str(root / "scripts" / "write_families.py"))["page"]
    assert (root / "docs" / "families.md").read_text() == page(target_of)


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "falcon_h1", "gemma3n_text", "mllama"])
def test_a_forked_state_goes_its_own_way(family: str) -> None:
    """Strict decoding keeps a second cache beside the first; states must not be shared."""
    target = target_of(family)
    prompt = prompt_of(family, 2 if family in EVERY_SEEING else 0, 0)
    state, _ = target.prefill(prompt, NO)
    tree = a_draft(target, 5)
    target.forward([state], [tree], NO)
    target.keep(state, np.empty(0, np.int32))  # chains now owe the root to their states
    fork = state.fork()
    said = [int(tree.tokens[0])]
    mine, theirs = step(target, state, 40), step(target, fork, 50)
    assert gap(mine, steps_after(target, prompt, [*said, 40])[-1]) < WORST
    assert gap(theirs, steps_after(target, prompt, [*said, 50])[-1]) < WORST
    again = step(target, fork, 60)
    assert gap(again, steps_after(target, prompt, [*said, 50, 60])[-1]) < WORST


@pytest.mark.parametrize("family", ["mamba2", "lfm2_vl"])
def test_the_measured_budget_knows_chains_and_states(family: str) -> None:
    """Costs are measured on what the target takes, and bound to nothing else."""
    target, prompt = target_of(family), prompt_of(family, 0, 0)
    engine = Engine(target, "recap", budget="auto")
    assert tuple(answer(engine, prompt, TOKENS).output_ids) == stock(family, 0, 0)


def test_a_draft_model_with_states_is_refused() -> None:
    """It would have to forget whole drafts, which a state cannot."""
    drafter: Any = make_drafter(
        "draft_model", vocab_size=VOCAB_SIZE, draft_model=tiny_model("lfm2")
    )
    with pytest.raises(UnsupportedTarget, match="cannot forget a whole draft"):
        drafter.bind(target_of("llama"))


@pytest.mark.parametrize("family", WRAPPED)
def test_a_wrapped_language_model(family: str) -> None:
    """`enable` says where to go, and pictures for which the processor has no place are refused."""
    target = target_of(family)
    with pytest.raises(UnsupportedTarget, match="the language model inside it"):
        eyespan.enable(target.model)
    assert type(target.model).__name__.endswith("ForConditionalGeneration")
    assert target.family.most_images == 1


def test_blip2_through_its_processor() -> None:
    target = target_of("blip2")
    prompt = target.prepare(MANY, tiny_images(1))
    out = target.model.generate(
        input_ids=prompt.input_ids, **prompt.media, max_new_tokens=TOKENS, do_sample=False
    )
    engine = Engine(target, "recap", budget=8)
    answer = engine.generate(MANY, tiny_images(1), max_new_tokens=TOKENS)
    assert list(answer.token_ids) == out[0, len(prompt) :].tolist()
    with pytest.raises(InputError, match="has places for 1"):
        engine.generate(MANY, tiny_images(2))


@pytest.mark.parametrize("kind", ["Blip2Config", "InstructBlipConfig"])
def test_a_wrapped_encoder_decoder_is_refused_by_reason(kind: str) -> None:
    small = {"d_model": 16, "d_ff": 16, "d_kv": 4, "num_layers": 1, "num_heads": 2}
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2}
    config = getattr(transformers, kind)(
        vision_config={**tower, **heads, "image_size": 28, "patch_size": 14},
        qformer_config={**tower, **heads, "vocab_size": 20},
        text_config=transformers.T5Config(vocab_size=VOCAB_SIZE, **small),
        image_token_index=3,
    )
    model = transformers.AutoModelForImageTextToText.from_config(config)
    with pytest.raises(UnsupportedTarget, match="an encoder-decoder model"):
        HuggingFaceTarget(model)
