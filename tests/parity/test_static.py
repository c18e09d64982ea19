"""Compiled passes say what uncompiled ones say, whatever a tree, a length or a request is.

The backend of most tests runs what torch has traced as it is and counts how often it traces, which
is where compile times would go: seconds instead of tens of them. `slow` ones generate real kernels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from threading import Event
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import eyespan
from eyespan.bench.stock import stock_ids
from eyespan.budget import Budget
from eyespan.demo import held_out
from eyespan.errors import UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget, static
from eyespan.target.attention import row_watched
from eyespan.testing import (
    VOCAB_SIZE,
    RandomDrafter,
    packed,
    random_checkpoint,
    random_tree,
    root_path,
    tiny_prompt,
    tiny_target,
)
from eyespan.types import Ints, Needs, PackedTree
from tests.parity.steps import WORST, gap, target_of

WIDTHS = (1, 4, 8)
HIDDEN = Needs(hidden_layers=(0, -1))


class Traces:
    """A backend that runs the graph as it is, and counts graphs."""

    def __init__(self, refuse: int | None = None) -> None:
        self.made = 0
        self.refuse = refuse

    def __call__(self, graph: Any, inputs: list[Tensor]) -> Any:
        self.made += 1
        if self.made == self.refuse:
            raise RuntimeError("no kernel for this")
        return graph.forward


@lru_cache
def compiled(family: str, attention: str | None = None) -> tuple[HuggingFaceTarget, Traces]:
    traces = Traces()
    target = tiny_target(family, attention=attention)
    target.compile_passes(backend=traces, widths=WIDTHS).ready(WIDTHS[-1])
    assert traces.made == len(WIDTHS)
    return target, traces


def a_tree(rng: np.random.Generator, size: int) -> PackedTree:
    return packed(random_tree(rng, size - 1, VOCAB_SIZE, range(8)), int(rng.integers(40, 90)))


def a_path(rng: np.random.Generator, tree: PackedTree) -> Ints:
    return root_path(tree, int(rng.integers(0, len(tree))))


@pytest.mark.parametrize(
    ("family", "images", "attention"),
    [
        ("qwen2_5_vl", 1, None),
        ("llava", 1, "eager"),
        pytest.param("llava_next", 2, None, marks=pytest.mark.slow),
        pytest.param("smolvlm", 1, None, marks=pytest.mark.slow),
        pytest.param("qwen3_vl", 1, None, marks=pytest.mark.slow),
        pytest.param("gpt2", 0, None, marks=pytest.mark.slow),
        pytest.param("llama", 0, "eager", marks=pytest.mark.slow),
    ],
)
def test_any_tree_at_any_length(family: str, images: int, attention: str | None) -> None:
    """Packs around every width, paths of all kinds kept, over three windows; no graph is made
    anew, and what is in the cache afterwards is what uncompiled passes put there.
    """
    fast, traces = compiled(family, attention)
    slow = target_of(family, attention)
    prompt = tiny_prompt(fast, family, images)
    rng = np.random.default_rng(len(family))
    both = (fast, slow)
    states = [each.prefill(prompt, HIDDEN)[0] for each in both]
    until = min(states[0].length + 150, fast.info.max_context - 12)
    while states[0].length < until:
        tree = a_tree(rng, int(rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 12])))
        path = a_path(rng, tree)
        one, other = (
            target.forward([state], [tree], HIDDEN)[0]
            for target, state in zip(both, states, strict=True)
        )
        assert gap(one.logits, other.logits) < WORST
        assert np.abs(one.extras["hidden"] - other.extras["hidden"]).max() < WORST
        for target, state in zip(both, states, strict=True):
            target.keep(state, path)
    assert traces.made == len(WIDTHS)
    assert [state.places is not None for state in states] == [True, False]
    caches = [target.release(state) for target, state in zip(both, states, strict=True)]
    for mine, theirs in zip(*(cache.layers for cache in caches), strict=True):
        assert gap(mine.keys, theirs.keys) < WORST
        assert gap(mine.values, theirs.values) < WORST


def engine(target: HuggingFaceTarget, drafter: str, budget: Budget, **options: Any) -> Engine:
    made = RandomDrafter(VOCAB_SIZE, seed=3) if drafter == "random" else drafter
    return Engine(target, made, budget=budget, **options)


@pytest.mark.parametrize(
    ("drafter", "budget"),
    [("none", 0), ("recap", "fixed"), ("recap", 3), ("recap", 4), ("random", "fixed")],
)
def test_the_words_are_plain_decodings(
    drafter: str, budget: Budget, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    target, _ = compiled("qwen2_5_vl")
    plain = Engine(target_of("qwen2_5_vl"), "none", budget=0)
    fast = engine(target, drafter, budget)
    for images in (0, 1):
        prompt = tiny_prompt(target, "qwen2_5_vl", images)
        wanted = plain.generate(prompt, max_new_tokens=90).token_ids
        for _ in range(2):  # the second time with a memory, and in buffers that were used before
            assert fast.generate(prompt, max_new_tokens=90).token_ids == wanted
        seeded: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.9, "seed": 5}
        drawn = plain.generate(prompt, **seeded).token_ids
        assert fast.generate(prompt, **seeded).token_ids == drawn


def test_trained_heads_read_states_of_compiled_passes(tmp_path: Any) -> None:
    target, _ = compiled("llava", "eager")
    checkpoint = random_checkpoint("fovea", target.weights(), tmp_path)
    plain = Engine(target_of("llava", "eager"), "none", budget=0)
    fast = Engine(target, "fovea", budget="fixed", checkpoint=checkpoint)
    prompt = tiny_prompt(target, "llava", 1)
    answer = fast.generate(prompt, max_new_tokens=30)
    assert answer.token_ids == plain.generate(prompt, max_new_tokens=30).token_ids
    assert "drafter fault" not in answer.plain_steps
    assert answer.drafted


def test_to_the_end_of_a_context() -> None:
    """Learned positions: a filling node that stood behind the context would be an error."""
    target = tiny_target("gpt2")
    traces = Traces()
    target.compile_passes(backend=traces, widths=(1, 8))
    ids = list(range(40, 60))
    prompt = target.prompt_from_ids((ids * 60)[: target.info.max_context - 21])
    fast = engine(target, "random", "fixed").generate(prompt, max_new_tokens=100)
    plain = Engine(target_of("gpt2"), "none", budget=0).generate(prompt, max_new_tokens=100)
    assert fast.token_ids == plain.token_ids


def test_two_requests_in_turns_and_one_that_is_cancelled() -> None:
    """Each has buffers of its own; those of an ended one serve the next."""
    target, _ = compiled("qwen2_5_vl")
    fast = engine(target, "recap", "fixed")
    plain = Engine(target_of("qwen2_5_vl"), "none", budget=0)
    prompts = [tiny_prompt(target, "qwen2_5_vl", images) for images in (1, 0)]
    wanted = [plain.generate(prompt, max_new_tokens=40).token_ids for prompt in prompts]
    stop = Event()
    with fast.stream(prompts[0], max_new_tokens=40, cancel=stop) as cut:
        next(iter(cut))
        streams = [fast.stream(prompt, max_new_tokens=40) for prompt in prompts]
        for _ in range(60):
            for stream in streams:
                next(stream, None)
        assert [stream.finish().token_ids for stream in streams] == wanted
        stop.set()
        assert cut.finish().finish == "cancelled"
    assert fast.generate(prompts[0], max_new_tokens=40).token_ids == wanted[0]
    assert len(target._packs.compiled._pool._free) <= 2  # type: ignore[union-attr]


def test_batches_conversations_and_copies_run_on_the_same_caches() -> None:
    target, _ = compiled("qwen2_5_vl")
    fast = engine(target, "random", "fixed")
    plain = Engine(target_of("qwen2_5_vl"), "none", budget=0)
    prompts = [tiny_prompt(target, "qwen2_5_vl", 0, text=text) for text in ("What?", "Who is it?")]
    alone = [plain.generate(prompt, max_new_tokens=30).token_ids for prompt in prompts]
    assert [each.token_ids for each in fast.generate_many(prompts, max_new_tokens=30)] == alone

    rng = np.random.default_rng(0)
    state = target.prefill(prompts[0], Needs())[0]
    target.forward([state], [tree := a_tree(rng, 6)], Needs())
    target.keep(state, root_path(tree, 3))
    copy = state.fork()
    tree = a_tree(rng, 7)
    first = target.forward([state], [tree], Needs())[0].logits
    target.keep(state, root_path(tree, 5))  # must not move anything of the copy
    second = target.forward([copy], [tree], Needs())[0].logits
    assert gap(first, second) < WORST

    first_turn = target.prompt_from_ids([*prompts[0].ids.tolist()])
    answer = plain.generate(first_turn, max_new_tokens=20).token_ids
    kept: list[Any] = []
    told = replace(first_turn, keep=lambda cache, ids: kept.append((cache, ids)))
    assert fast.generate(told, max_new_tokens=20).token_ids == answer
    cache, ids = kept[0]
    longer = target.prompt_from_ids([*ids.tolist(), 50, 51])
    wanted = plain.generate(longer, max_new_tokens=20).token_ids
    assert fast.generate(replace(longer, cache=cache), max_new_tokens=20).token_ids == wanted


@pytest.mark.parametrize(
    ("family", "words"),
    [("mistral", "windows"), ("qwen3_5_text", "states"), ("mllama", "pictures")],
)
def test_models_without_compiled_passes_are_refused(family: str, words: str) -> None:
    with pytest.raises(UnsupportedTarget, match=f"compiled passes of.*{words}"):
        tiny_target(family).compile_passes(backend="eager")


def test_no_compiler_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config, cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()
    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(UnsupportedTarget, match="no C\\+\\+ compiler"):
        tiny_target("llama").compile_passes()
    cpp_builder.cpp_compiler_search.cache_clear()


def test_what_cannot_be_compiled_is_told_or_runs_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plain step has to be had; a wider pass that is not leaves its packs to a wider one or to
    the uncompiled path.
    """
    target = tiny_target("llama").compile_passes(backend=Traces(refuse=1), widths=(1, 4))
    with pytest.raises(UnsupportedTarget, match="no kernel for this"):
        target.ready(4)
    assert not target.info.passes
    target.compile_passes(backend=Traces(refuse=2), widths=(1, 4))
    said: list[str] = []
    monkeypatch.setattr(static.log, "warning", lambda text, *parts: said.append(text % parts))
    fast = engine(target, "random", 3)
    assert ["passes of 4 stay uncompiled" in line for line in said] == [True]
    prompt = target.prompt_from_ids(list(range(40, 50)))
    plain = Engine(target_of("llama"), "none", budget=0)
    wanted = plain.generate(prompt, max_new_tokens=30).token_ids
    assert fast.generate(prompt, max_new_tokens=30).token_ids == wanted


def test_other_logits_are_refused() -> None:
    def wrong(graph: Any, inputs: list[Tensor]) -> Any:
        def run(*args: Any) -> Any:
            return tuple(each + 1 for each in graph.forward(*args))

        return run

    with pytest.raises(UnsupportedTarget, match="away from an uncompiled pass"):
        tiny_target("llama").compile_passes(backend=wrong, widths=(1,)).ready(1)


def test_a_watcher_of_attention_does_not_stop_the_compiler() -> None:
    """Its hook on attention functions stays installed in the process, for every model."""
    target = tiny_target("llama")
    with row_watched([target.model], 0):
        pass
    target.compile_passes(backend=Traces(), widths=(1,)).ready(1)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "recap", "fovea"])
def test_real_kernels_on_the_demo(drafter: str) -> None:
    fast = eyespan.load("demo", drafter, compiled=True, budget="fixed" if drafter != "none" else 0)
    for sample in held_out(2):
        prompt = fast.target.prepare(sample.turns[0].question, [sample.image])
        wanted = stock_ids(fast.target, prompt, 60)
        assert fast.generate(prompt, max_new_tokens=60).token_ids == wanted
