"""Streams: chunks by token or by round, asyncio, cancelling, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from threading import Event
from typing import Any

import pytest
import torch

import eyespan
from eyespan.errors import ConfigError
from eyespan.stream import Stream
from tests.parity.choosing import PROMPT, TOKENS, ask, engine_of

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 1},
    "stop": {"stop": ["\ue000", "K"]},
}


def stream_of(drafter: str = "oracle", **options: Any) -> Stream:
    return engine_of("llama", drafter).stream(PROMPT, **{"max_new_tokens": TOKENS, **options})


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("drafter", ["none", "oracle"])
def test_A35_granularity_changes_the_chunks_not_the_text(name: str, drafter: str) -> None:
    whole = ask("llama", drafter, **OPTIONS[name])
    for granularity in ("token", "block"):
        stream = stream_of(drafter, granularity=granularity, **OPTIONS[name])
        chunks = list(stream)
        assert "".join(chunk.text for chunk in chunks) == whole.text == stream.generation.text
        assert tuple(t for chunk in chunks for t in chunk.token_ids) == whole.token_ids
        for chunk in chunks:
            assert chunk.text == "".join(piece.text for piece in chunk.pieces)
        sizes = [len(chunk.token_ids) for chunk in chunks]
        if granularity == "token":
            assert set(sizes[:-1]) <= {1}
            assert sizes[-1] <= 1
        else:
            assert len([size for size in sizes if size]) == whole.forwards


@pytest.mark.parametrize("left_after", [None, 1, 2])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("drafter", ["none", "recap", "random", "oracle"])
def test_A38_a_streams_counts_are_those_of_its_tokens(
    drafter: str, name: str, left_after: int | None
) -> None:
    """What is billed: every committed token once, however many came at a time, and nothing that was
    only guessed; also where the reader leaves.
    """
    stream = stream_of(drafter, granularity="token", **OPTIONS[name])
    for at, _ in enumerate(stream, 1):
        if at == left_after:
            stream.close()
            break
    made = stream.generation
    whole = ask("llama", "none", **OPTIONS[name])
    assert made.token_ids == whole.token_ids[: len(made.token_ids)]
    assert left_after is not None or made.token_ids == whole.token_ids
    # the prefill and every pass bring a token of the target's own, but where a guess ended it all
    own = len(made.token_ids) - made.accepted
    assert own in (made.forwards, made.forwards - 1)
    assert made.accepted == sum(made.accepted_by_depth) <= made.drafted
    assert all(map(int.__le__, made.accepted_by_depth, made.drafted_by_depth))
    assert drafter != "none" or (made.drafted, made.accepted) == (0, 0)


def test_a_stream_that_is_left_in_mid_block_keeps_what_was_committed() -> None:
    stream = stream_of(granularity="token")
    for _ in range(3):
        next(stream)
    stream.close()
    whole = ask("llama", "oracle")
    done = stream.generation
    assert done.finish == "cancelled"
    assert done.token_ids == whole.token_ids[: len(done.token_ids)]
    assert done.text == engine_of("llama", "oracle").target.decode(done.token_ids)


def test_A36_cancelling_ends_within_one_step() -> None:
    cancel = Event()
    stream = stream_of("none", cancel=cancel)
    next(stream)
    cancel.set()
    assert sum(len(chunk.token_ids) for chunk in stream) == 0
    assert (stream.generation.finish, stream.generation.forwards) == ("cancelled", 1)


@pytest.mark.parametrize("way", ["finish", "close", "error", "abandon"])
@pytest.mark.parametrize("strict", [False, True])
def test_A36_nothing_is_left_of_an_ended_request(way: str, strict: bool) -> None:
    class Fails:
        def __init__(self) -> None:
            self.left = 4

        def __call__(self, ids: Any, scores: Any) -> bool:
            self.left -= 1
            if self.left < 0 and way == "error":
                raise RuntimeError("on purpose")
            return False

    stream: Stream | None = stream_of(strict=strict, stopping_criteria=[Fails()], logprobs=2)
    next(stream)
    state = stream._running.state
    alive = [weakref.ref(state.cache), weakref.ref(state.cache.layers[0].keys)]
    alive.append(weakref.ref(stream._running.draw))
    if strict:
        shadow = stream._choosing._shadow._state
        alive += [weakref.ref(shadow.cache), weakref.ref(shadow.cache.layers[0].keys)]
        del shadow
    del state
    if way == "finish":
        result: Any = stream.finish()
    elif way == "close":
        stream.close()
    elif way == "error":
        with pytest.raises(RuntimeError, match="on purpose"):
            stream.finish()
    if way == "abandon":
        stream = None
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)
    if way == "finish":
        assert not any(isinstance(thing, torch.Tensor) for thing in reachable(result))
    assert ask("llama", "oracle").finish == "length", "the next request is served"


def reachable(value: Any) -> list[Any]:
    """Everything that a result holds."""
    if isinstance(value, (str, int, float, type(None))):
        return []
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, (tuple, list)):
        inside = list(value)
    else:
        inside = [getattr(value, name) for name in type(value).__slots__]
    return [value, *(thing for one in inside for thing in reachable(one))]


def test_asyncio_gets_the_same_chunks() -> None:
    async def read() -> tuple[list[Any], Any]:
        stream = engine_of("llama", "oracle").astream(PROMPT, max_new_tokens=TOKENS)
        return [chunk async for chunk in stream], stream.generation

    chunks, result = asyncio.run(read())
    assert chunks == list(stream_of())
    assert result.token_ids == ask("llama", "oracle").token_ids


def test_asyncio_answers_side_by_side() -> None:
    async def read(prompt: str) -> Any:
        async with engine_of("llama", "recap").astream(prompt, max_new_tokens=TOKENS) as stream:
            async for _ in stream:
                pass
        return stream.generation

    async def both() -> list[Any]:
        return await asyncio.gather(*(read(prompt) for prompt in ("one", "two two", "three")))

    for prompt, result in zip(("one", "two two", "three"), asyncio.run(both()), strict=True):
        alone = engine_of("llama", "none").generate(prompt, max_new_tokens=TOKENS)
        assert result.token_ids == alone.token_ids


def test_A36_a_cancelled_task_ends_its_request_within_a_step() -> None:
    streams: list[eyespan.AsyncStream] = []

    async def read(first: asyncio.Event) -> None:
        streams.append(engine_of("llama", "none").astream(PROMPT, max_new_tokens=400))
        async for _ in streams[0]:
            first.set()

    async def leave() -> None:
        first = asyncio.Event()
        task = asyncio.create_task(read(first))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    result = streams[0].generation
    assert result.finish == "cancelled"
    assert 0 < len(result.token_ids) < 400
    assert not engine_of("llama", "none").lock.locked()


def test_asyncio_refuses_bad_input_with_the_first_chunk() -> None:
    async def read() -> None:
        async for _ in engine_of("llama", "none").astream(PROMPT, temperature=-1):
            pass

    with pytest.raises(ConfigError, match="temperature"):
        asyncio.run(read())


def test_closing_early_and_twice_is_harmless() -> None:
    async def read() -> None:
        stream = engine_of("llama", "none").astream(PROMPT)
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(RuntimeError):
            stream.generation  # noqa: B018

    asyncio.run(read())
