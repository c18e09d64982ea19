"""Each row of a batch says what it says alone: families x pictures x drafters, ragged acceptance,
rows that join, end, fail and are cancelled at different times.
"""

from __future__ import annotations

import gc
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from eyespan.batching import Scheduler, Ticket
from eyespan.errors import BatchError, ConfigError, InputError, Overloaded
from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import (
    CHAINS,
    EVERY_SEEING,
    EVERY_TEXT,
    SEEING,
    OracleDrafter,
    RandomDrafter,
    packed,
    plain_answer,
    random_tree,
    root_path,
    tiny_images,
    tiny_prompt,
    tiny_target,
)
from eyespan.types import Needs, PackedTree

TOKENS = 24
QUICK = ("llama", "llava", "qwen2_5_vl", "gemma3", "lfm2")
"""One tensor as mask, M-RoPE with a mapping, windows, states; the rest is for slow runs."""
REST = tuple(family for family in (*EVERY_TEXT, *EVERY_SEEING) if family not in QUICK)
FAMILIES = [*QUICK, *(pytest.param(family, marks=pytest.mark.slow) for family in REST)]
LIMITS = (TOKENS, 9, 17, 1, TOKENS)


@cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


@cache
def prompts_of(family: str) -> tuple[Prompt, ...]:
    """Five prompts of different lengths with 1, 0, 2, 0 and 1 pictures where the family sees."""
    target, sees = target_of(family), family in EVERY_SEEING
    texts = (
        "abc abc, what is this? abc",
        "hi",
        "so so so what",
        "q",
        "and this? it goes on and on",
    )
    return tuple(
        tiny_prompt(target, family, images=count if sees else 0, text=text)
        for text, count in zip(texts, (1, 0, 2, 0, 1), strict=True)
    )


@cache
def alone(family: str) -> tuple[tuple[int, ...], ...]:
    """Plain decoding of each prompt, one token a forward."""
    target = target_of(family)
    return tuple(
        tuple(plain_answer(target, prompt, limit).tolist())
        for prompt, limit in zip(prompts_of(family), LIMITS, strict=True)
    )


def engine_of(family: str, drafter: str, budget: Any = "fixed") -> Engine:
    target = target_of(family)
    made: Any = {
        "random": lambda: RandomDrafter(target.info.vocab_size),
        "oracle": lambda: OracleDrafter(target, prompts_of(family)),
    }.get(drafter, lambda: drafter)()
    return Engine(target, made, budget=0 if drafter == "none" else budget)


@pytest.mark.parametrize("drafter", ["none", "recap", "random", "oracle"])
@pytest.mark.parametrize("family", FAMILIES)
def test_A42_each_row_says_what_it_says_alone(family: str, drafter: str) -> None:
    """Three rows for five prompts: the fourth joins while others are in mid-answer."""
    engine = engine_of(family, drafter)
    each = [{"max_new_tokens": limit} for limit in LIMITS]
    answers = engine.generate_many(prompts_of(family), each=each, max_rows=3)
    assert [answer.token_ids for answer in answers] == list(alone(family))
    assert all(not answer.plain_steps.get("drafter fault") for answer in answers)
    if drafter == "oracle" and family not in CHAINS:  # its likeliest chain is a decoy
        assert max(answer.tau for answer in answers) > 2  # an answer may end at once
        assert sum(answer.accepted for answer in answers) > len(answers)


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_auto_sizes_rows_together(family: str) -> None:
    engine = engine_of(family, "recap", "auto")
    each = [{"max_new_tokens": limit} for limit in LIMITS]
    answers = engine.generate_many(prompts_of(family), each=each)
    assert [answer.token_ids for answer in answers] == list(alone(family))


def forwards_of(model: Any, calls: list[tuple[int, ...]]) -> Any:
    """Notes the shape of the ids of every call."""
    return model.register_forward_pre_hook(
        lambda _module, _args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )


@pytest.mark.parametrize("rows", [1, 2])
def test_every_prompt_is_answered_where_all_rows_end_at_once(rows: int) -> None:
    """A round that left no row running once ended the whole call, and the rest were None."""
    engine = engine_of("llama", "none")
    together = engine.generate_many(prompts_of("llama"), max_new_tokens=2, max_rows=rows)
    apart = [engine.generate(prompt, max_new_tokens=2) for prompt in prompts_of("llama")]
    assert [one.token_ids for one in together] == [one.token_ids for one in apart]


def test_rows_share_one_forward() -> None:
    engine, calls = engine_of("llama", "none"), list[tuple[int, ...]]()
    hook = forwards_of(engine.target.model, calls)
    engine.generate_many(prompts_of("llama")[:3], max_new_tokens=5)
    hook.remove()
    assert [shape for shape in calls if shape[0] == 3] == [(3, 1)] * 4
    assert sum(shape[0] == 1 for shape in calls) == 3, "the prompts"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_a_nodes_logits_are_those_of_its_path(family: str, attention: str) -> None:
    """Random trees of different sizes, three rounds of ragged acceptance, against single rows."""
    target = tiny_target(family, attention=attention)
    rng = np.random.default_rng(3)
    prompts = [tiny_prompt(target, family, images=n, text="a b c"[: 1 + n]) for n in (0, 1, 2)]
    if family == "llama":
        prompts = [target.prompt_from_ids(list(range(65, 70 + 4 * n))) for n in range(3)]
    together = [target.prefill(prompt, Needs())[0] for prompt in prompts]
    single = [target.prefill(prompt, Needs())[0] for prompt in prompts]
    for _round in range(3):
        trees = [
            packed(random_tree(rng, size, 200, target.info.media_ids), int(rng.integers(65, 120)))
            for size in (9, 0, 4)
        ]
        outs = target.forward(together, trees, Needs())
        for state, twin, tree, out in zip(together, single, trees, outs, strict=True):
            (expected,) = target.forward([twin], [tree], Needs())
            assert out.logits.shape == (len(tree), target.info.vocab_size)
            torch.testing.assert_close(out.logits, expected.logits, atol=1e-4, rtol=0)
            path = _some_path(rng, tree)
            target.keep(state, path)
            target.keep(twin, path)
    for state, twin in zip(together, single, strict=True):
        for ours, theirs in zip(state.cache.layers, twin.cache.layers, strict=True):
            torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=0)
            torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=0)
    assert all(state.row is None for state in together)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_drafters_read_is_each_rows_own(attention: str) -> None:
    """Hidden states and attention on pictures, of rows with 1, 0 and 2 pictures."""
    target = tiny_target("llava", attention=attention)
    needs = Needs(hidden_layers=(0, -1), visual_attention=True)
    rng = np.random.default_rng(4)
    prompts = [tiny_prompt(target, "llava", images=n) for n in (1, 0, 2)]
    states = [target.prefill(prompt, Needs())[0] for prompt in prompts]
    trees = [packed(random_tree(rng, size, 200), 80) for size in (3, 0, 7)]
    for state, prompt, tree, out in zip(
        states, prompts, trees, target.forward(states, trees, needs), strict=True
    ):
        twin = target.prefill(prompt, Needs())[0]
        (expected,) = target.forward([twin], [tree], needs)
        for name in ("hidden", "visual_attention"):
            np.testing.assert_allclose(out.extras[name], expected.extras[name], atol=1e-4)
        assert (out.extras["visual_attention"] > 0) == (prompt.images > 0)
        state.close()


def _some_path(rng: np.random.Generator, tree: PackedTree) -> Any:
    leaf = int(rng.integers(len(tree)))
    return root_path(tree, leaf)


def test_a_sequence_may_leave_in_mid_round() -> None:
    """Asking for a row's own cache while its pack is pending takes the pack along."""
    target = target_of("llama")
    states = [target.prefill(prompt, Needs())[0] for prompt in prompts_of("llama")[:2]]
    twins = [target.prefill(prompt, Needs())[0] for prompt in prompts_of("llama")[:2]]
    tree = packed(random_tree(np.random.default_rng(1), 6, 200, frozenset()), 70)
    target.forward(states, [tree, tree], Needs())
    target.forward([twins[0]], [tree], Needs())
    assert states[0].cache.layers[0].keys.shape == twins[0].cache.layers[0].keys.shape
    for state in (states[0], twins[0]):
        target.keep(state, np.array([1], np.int32))
    for ours, theirs in zip(states[0].cache.layers, twins[0].cache.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=0)
    target.drop(states[1])
    assert states[1].cache.layers[0].keys.shape[-2] == states[1].length


def test_A03_only_real_ids_reach_the_embedding() -> None:
    """Shorter packs are filled up; what fills them is a token of the text."""
    engine, seen = engine_of("llava", "random"), list[torch.Tensor]()
    embed = engine.target.model.get_input_embeddings()
    hook = embed.register_forward_pre_hook(lambda _module, args: seen.append(args[0].clone()))
    engine.generate_many(prompts_of("llava"), max_new_tokens=8)
    hook.remove()
    ids = torch.cat([each.flatten() for each in seen])
    assert 0 <= int(ids.min()) <= int(ids.max()) < engine.target.info.vocab_size
    assert any(each.shape[0] > 1 for each in seen)


@pytest.mark.parametrize("drafter", ["none", "recap"])
@pytest.mark.parametrize("family", ["llama", "llava"])
def test_A25_seeds_are_each_rows_own(family: str, drafter: str) -> None:
    engine = engine_of(family, drafter)
    prompts = prompts_of(family)[:3]
    options: dict[str, Any] = {"temperature": 1.2, "top_k": 40, "max_new_tokens": 12}
    each = [{"seed": 5}, {"seed": 5, "repetition_penalty": 1.2}, {"temperature": 0}]
    together = engine.generate_many(prompts, each=each, **options)
    for prompt, own, answer in zip(prompts, each, together, strict=True):
        assert answer.token_ids == engine.generate(prompt, **{**options, **own}).token_ids
    samples = engine.generate_many(prompts[:1], n=3, seed=7, **options)
    solo = [engine.generate(prompts[0], seed=7 + j, **options).token_ids for j in range(3)]
    assert [sample.token_ids for sample in samples] == solo
    assert len(set(solo)) == 3
    free = engine.generate_many(prompts[:1], n=2, **options)
    assert free[0].token_ids != free[1].token_ids


class Counting:
    """A processor with a state: it forbids another id at every call."""

    def __init__(self, fail_at: int = 10**9) -> None:
        self.calls, self.fail_at = 0, fail_at

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("on purpose")
        scores[:, self.calls % 7 :: 7] -= 5
        return scores


class Failing(Counting):
    """A criterion that raises at some call."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        super().__call__(ids, torch.zeros(1, 7))
        return False


@pytest.mark.parametrize("drafter", ["none", "recap"])
def test_processors_stops_and_logprobs_are_each_rows_own(drafter: str) -> None:
    engine = engine_of("llama", drafter)
    prompts = prompts_of("llama")[:3]
    text = engine.generate(prompts[0], max_new_tokens=20).text
    options: dict[str, Any] = {"logprobs": 2, "max_new_tokens": 20, "stop": text[5:7]}
    shared = Counting()
    answers = engine.generate_many(prompts, logits_processors=[shared], **options)
    assert shared.calls == 0, "every answer has a copy of its own"
    for prompt, answer in zip(prompts, answers, strict=True):
        solo = engine.generate(prompt, logits_processors=[Counting()], **options)
        assert (answer.token_ids, answer.text, answer.finish) == (
            solo.token_ids,
            solo.text,
            solo.finish,
        )
        assert answer.logprobs is not None
        for mine, theirs in zip(answer.logprobs, solo.logprobs or (), strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_one_request_that_fails_leaves_the_others_alone() -> None:
    engine = engine_of("llava", "recap")
    each: list[dict[str, Any]] = [{} for _ in range(5)]
    each[1]["logits_processors"] = [Counting(fail_at=6)]
    each[2]["stopping_criteria"] = [Failing(fail_at=4)]
    each[3]["logits_processors"] = [Counting(fail_at=1)]
    each[4]["max_new_tokens"] = 0
    prompts: list[Any] = ["what is this?"] * 5
    pictures: list[Any] = [tiny_images(1), [], [], [], []]
    with pytest.raises(BatchError, match="4 failed, the first at index 1") as caught:
        engine.generate_many(prompts, pictures, each=each, max_new_tokens=12)
    good, *bad, last = caught.value.results
    solo = engine.generate(prompts[0], pictures[0], max_new_tokens=12)
    assert good.token_ids == solo.token_ids
    assert [str(each) for each in bad] == ["on purpose"] * 3
    assert isinstance(last, ConfigError)
    with pytest.raises(BatchError) as caught:
        engine.generate_many(["a", "b"], [[b"no picture"], tiny_images(1)], max_new_tokens=3)
    bad, fine = caught.value.results
    assert isinstance(bad, InputError)
    assert len(fine.token_ids) == 3


def test_a_failed_pass_ends_its_rows_and_no_later_request(monkeypatch: Any) -> None:
    engine = engine_of("llama", "none")
    passes = iter([None, None, MemoryError("no room")])
    real = engine.target.forward

    def forward(*args: Any) -> Any:
        if (error := next(passes, None)) is not None:
            raise error
        return real(*args)

    monkeypatch.setattr(engine.target, "forward", forward)
    with Scheduler(engine, max_rows=2) as scheduler:
        tickets = [scheduler.submit(p, max_new_tokens=8) for p in prompts_of("llama")[:4]]
        scheduler.drain()
    assert [isinstance(ticket.error, MemoryError) for ticket in tickets] == [True] * 2 + [False] * 2
    assert (
        tickets[2].generation.token_ids
        == engine.generate(prompts_of("llama")[2], max_new_tokens=8).token_ids
    )
    with pytest.raises(MemoryError):
        _ = tickets[0].generation


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_A36_a_cancelled_row_is_gone_within_one_step(family: str) -> None:
    engine = engine_of(family, "recap")
    ends: list[str] = []
    with Scheduler(engine, max_rows=2) as scheduler:
        tickets = [
            scheduler.submit(
                prompt, max_new_tokens=TOKENS, on_end=lambda t: ends.append(t.generation.finish)
            )
            for prompt in prompts_of(family)[:3]
        ]
        scheduler.step()
        assert (scheduler.running, scheduler.waiting) == (2, 1)
        state = tickets[0]._running.state
        tickets[0].cancel()
        said = len(tickets[0]._running.output_ids)
        tickets[2].cancel()
        scheduler.step()
        assert ends == ["cancelled", "cancelled"]
        assert len(tickets[0].generation.token_ids) == said
        assert tickets[2].generation.token_ids == ()
        assert state._cache is None
        assert state.row is None
        scheduler.drain()
    solo = engine.generate(prompts_of(family)[1], max_new_tokens=TOKENS)
    assert tickets[1].generation.token_ids == solo.token_ids


def test_nothing_is_left_of_a_batch() -> None:
    engine = engine_of("llama", "recap")
    scheduler = Scheduler(engine, max_rows=3)
    prompts = prompts_of("llama")
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "logprobs": 1}
    tickets = [scheduler.submit(prompt, **options) for prompt in prompts[:2]]
    failing = scheduler.submit(prompts[2], **options, logits_processors=[Counting(fail_at=4)])
    scheduler.step()
    scheduler.step()
    shared = engine.target._packs._shared
    alive = [weakref.ref(shared._cache), weakref.ref(shared._cache.layers[0].keys)]
    alive += [weakref.ref(ticket._running.state._cache) for ticket in (*tickets, failing)]
    alive += [weakref.ref(ticket._running.draw) for ticket in (*tickets, failing)]
    scheduler.drain()
    gc.collect()
    assert isinstance(failing.error, RuntimeError)
    assert [ref() for ref in alive] == [None] * len(alive)
    assert (shared._cache, shared._rows) == (None, [])


@pytest.mark.parametrize("granularity", ["token", "block"])
def test_chunks_of_a_row_are_its_text(granularity: Any) -> None:
    engine = engine_of("llama", "recap")
    texts: dict[int, str] = dict.fromkeys(range(3), "")
    with Scheduler(engine) as scheduler:
        tickets: list[Ticket] = []
        for at, prompt in enumerate(prompts_of("llama")[:3]):

            def said(chunk: Any, at: int = at) -> None:
                assert granularity == "block" or len(chunk.token_ids) <= 1
                texts[at] += chunk.text

            tickets.append(
                scheduler.submit(
                    prompt, on_chunk=said, granularity=granularity, max_new_tokens=TOKENS
                )
            )
        scheduler.drain()
    for at, ticket in enumerate(tickets):
        assert texts[at] == ticket.generation.text


def test_a_reader_that_raises_ends_its_own_request() -> None:
    engine = engine_of("llama", "none")

    def fails(_chunk: Any) -> None:
        raise BrokenPipeError("gone")

    with Scheduler(engine) as scheduler:
        one = scheduler.submit("hello", on_chunk=fails, max_new_tokens=5)
        two = scheduler.submit("hello", max_new_tokens=5, on_end=fails)
        scheduler.drain()
    assert isinstance(one.error, BrokenPipeError)
    assert len(two.generation.token_ids) == 5


def test_bounds() -> None:
    engine = engine_of("llama", "none")
    with Scheduler(engine, max_rows=1, max_waiting=2) as scheduler:
        for _ in range(2):
            scheduler.submit("hi", max_new_tokens=1)
        with pytest.raises(Overloaded, match="2 wait already"):
            scheduler.submit("hi", max_new_tokens=1)
    for rows in (0, -1, True, 10**9, "2"):
        with pytest.raises(ConfigError, match="max_rows"):
            Scheduler(engine, max_rows=rows)  # type: ignore[arg-type]
    for wrong in ({"n": 0}, {"n": 10**9}, {"images": [[]]}, {"each": [{}]}):
        with pytest.raises(ConfigError):
            engine.generate_many(["a", "b"], **wrong)  # type: ignore[arg-type]
    for one in ("a prompt", [{"role": "user", "content": "a"}]):
        with pytest.raises(ConfigError, match="one prompt"):
            engine.generate_many(one)
    with pytest.raises(ConfigError, match="seed"):
        engine.generate_many(["a", "b"], temperature=1.0, generator=torch.Generator())
    assert engine.generate_many([]) == []


@pytest.mark.parametrize("family", SEEING[:1])
def test_streams_run_beside_a_batch(family: str) -> None:
    """A stream that takes turns with a batch on one engine disturbs nobody."""
    engine = engine_of(family, "recap")
    prompts = prompts_of(family)
    stream = engine.stream(prompts[0], max_new_tokens=TOKENS)
    with Scheduler(engine) as scheduler:
        tickets = [scheduler.submit(prompt, max_new_tokens=TOKENS) for prompt in prompts[1:3]]
        while scheduler.step():
            next(stream, None)
    assert stream.finish().token_ids == alone(family)[0]
    for ticket, limit, expected in zip(tickets, LIMITS[1:], alone(family)[1:], strict=False):
        assert ticket.generation.token_ids[:limit] == expected
