"""A conversation's answers are those of the whole conversation asked from scratch."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from PIL import Image

from eyespan import Generation
from eyespan.chat_session import Chat
from eyespan.errors import ConfigError, ContextError, InputError, UnsupportedRequest
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.testing import SEEING, tiny_images, tiny_model, tiny_target, tiny_tokenizer
from tests.parity.steps import target_of

ASCII = {"type": "regex", "regex": "[a-e ]{6,20}"}
"""Answers whose text is tokenised again as the model wrote it."""


@cache
def engine_of(family: str, drafter: str = "recap", **options: Any) -> Engine:
    return Engine(target_of(family), drafter, budget="fixed", **options)


def scratch(chat: Chat, **options: Any) -> Generation:
    """The last answer, from all messages before it."""
    plain = Engine(chat._engine.target, "none", budget=0)
    asked = chat.messages[:-1]
    return plain.generate(asked, chat.pictures, **{**chat._options, **options})


def talk(chat: Chat, *turns: tuple[str, list[Image.Image]], **options: Any) -> list[Generation]:
    """Say all of them, each answer compared."""
    said = []
    for text, images in turns:
        said.append(chat.say(text, images, **options))
        assert said[-1].token_ids == scratch(chat, **options).token_ids
        assert chat.messages[-1]["content"][0]["text"] == said[-1].text
    return said


TURNS = (
    ("abc abc, what is this?", 1),
    ("And what is that?", 0),
    ("Now look at this one. abc abc", 2),
    ("abc abc, thank you.", 0),
)


@pytest.mark.parametrize("drafter", ["none", "recap"])
@pytest.mark.parametrize("family", [*SEEING, "llama", "gpt2", "mistral"])
def test_every_answer_is_that_of_the_whole_conversation(family: str, drafter: str) -> None:
    pictures = iter(tiny_images(8))
    chat = engine_of(family, drafter).chat(system="Be brief.", max_new_tokens=16)
    turns = [
        (text, [next(pictures) for _ in range(count if family in SEEING else 0)])
        for text, count in TURNS
    ]
    said = talk(chat, *turns)
    assert said[0].reused == 0
    if family != "mistral":  # its window has moved on, unless answers stand as they were written
        assert all(one.reused > before for one, before in zip(said[1:], (40, 80, 120), strict=True))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2_5_vl"])
def test_all_that_was_said_is_reused_where_the_template_keeps_it(family: str) -> None:
    pictures = tiny_images(2) if family == "qwen2_5_vl" else []
    target = tiny_target(family)
    shown = target.processor.chat_template
    target.processor.chat_template = shown.replace("{{ m['role'] }}: ", "{{ m['role'] }}:")
    chat = Engine(target, budget="fixed").chat(max_new_tokens=20, response_format=ASCII)
    first = chat.say("abc abc?", pictures[:1])
    held = chat.cached_tokens
    second = chat.say("abc, and this?", pictures[1:])
    assert second.token_ids == scratch(chat).token_ids
    assert second.reused == held
    prompt = chat._engine.target.prepare(chat.messages[:1], chat.pictures[: len(pictures[:1])])
    assert held >= len(prompt) + len(first.token_ids) - 2


class Tower:
    """Counts the pictures that a vision tower sees."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        base = engine.target.model.base_model
        plain = base.get_image_features

        def counted(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(plain).bind(*args, **kwargs).arguments
            self.seen.append(len(given.get("image_grid_thw", given["pixel_values"])))
            return plain(*args, **kwargs)

        counted.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
        monkeypatch.setattr(base, "get_image_features", counted)
        monkeypatch.setitem(engine.target._encoder._towers, "image", counted)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_only_new_pictures_are_encoded(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, pictures = engine_of(family), tiny_images(3)
    tower = Tower(engine, monkeypatch)
    chat = engine.chat(max_new_tokens=4)
    chat.say("One.", pictures[:1])
    chat.say("No picture.")
    chat.say("Two more.", pictures[1:])
    chat.say("The first again.", pictures[:1])
    assert tower.seen == [1, 2]
    chat.edit(0, "Again, all anew, with the same.")
    assert tower.seen == [1, 2]


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
@pytest.mark.parametrize("drafter", ["none", "recap"])
def test_an_edit_rolls_back(family: str, drafter: str) -> None:
    chat = engine_of(family, drafter).chat(max_new_tokens=12)
    pictures = tiny_images(3) if family == "qwen2_5_vl" else [None] * 3
    images = [[picture] if picture else [] for picture in pictures]
    talk(chat, ("abc abc?", images[0]), ("Second.", images[1]), ("Third.", []))

    edited = chat.edit(1, "Something else.")
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    assert chat.messages[2]["content"][-1]["text"] == "Something else."
    assert len(chat.pictures) == sum(map(len, images[:2]))
    assert edited.token_ids == scratch(chat).token_ids
    assert edited.reused > 20

    chat.rewind(-1)
    assert chat.turns == 1
    (again,) = talk(chat, ("Second.", images[1]))
    assert again.reused > 20

    if images[0]:
        other = chat.edit(0, "abc abc?", images[2])
        assert other.token_ids == scratch(chat).token_ids
        assert other.reused < 12
    with pytest.raises(ConfigError, match=r"turn \d of a chat: it has \d"):
        chat.edit(chat.turns, "no such turn")


def test_another_picture_of_the_same_size_is_another_picture() -> None:
    """Its placeholders are the same ids; only its pixels tell."""
    chat = engine_of("qwen2_5_vl").chat(max_new_tokens=8)
    first = chat.say("What is it?", tiny_images(1, seed=1))
    held = chat.cached_tokens
    other = chat.edit(0, "What is it?", tiny_images(1, seed=2))
    assert other.token_ids == scratch(chat).token_ids
    assert other.reused < held / 2
    assert chat.edit(0, "What is it?", tiny_images(1, seed=1)).token_ids == first.token_ids


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl"])
def test_forks_go_their_own_way(family: str) -> None:
    chat = engine_of(family).chat(system="Be brief.", max_new_tokens=12)
    pictures = tiny_images(2) if family == "qwen2_5_vl" else []
    talk(chat, ("abc abc?", pictures[:1]))
    fork = chat.fork()
    (one,) = talk(chat, ("Left. abc", pictures[1:]))
    (two,) = talk(fork, ("Right. abc", []))
    assert min(one.reused, two.reused) > 20
    talk(chat, ("Left again.", []))
    fork.close()
    talk(chat, ("And again.", []))
    assert chat.turns == 4


def test_a_conversation_to_the_end_of_the_context() -> None:
    """Every turn is exact up to the limit; the turn that does not fit changes nothing."""
    engine = engine_of("llama")
    chat = engine.chat(max_new_tokens=40)
    limit = engine.target.info.max_context
    for turn in range(100):
        before = chat.messages
        try:
            said = chat.say(f"abc abc, turn {turn}.")
        except ContextError:
            break
        if turn % 4 == 0 or said.finish == "length":
            assert said.token_ids == scratch(chat).token_ids
    assert turn >= 5
    assert chat.messages == before
    assert chat.cached_tokens > limit / 2
    assert chat.edit(1, "abc").reused > 20


def test_a_stream_that_is_left_keeps_what_was_written() -> None:
    chat = engine_of("llama").chat(max_new_tokens=40)
    talk(chat, ("abc abc?", []))
    with chat.stream("abc, go on") as answer:
        chunk = next(answer)
    assert answer.generation.finish == "cancelled"
    assert chat.messages[-1]["content"][0]["text"] == answer.generation.text
    assert answer.generation.token_ids[: len(chunk.token_ids)] == chunk.token_ids
    (said,) = talk(chat, ("And then?", []))
    assert said.reused > 30


def test_a_dropped_stream_gives_the_chat_free() -> None:
    chat = engine_of("llama").chat(max_new_tokens=40)
    gc.disable()  # what is at stake is the end of the last reference, not of a cycle
    try:
        for _ in chat.stream("abc abc?"):
            break
        assert chat.turns == 1
        chat.stream("never read")
        assert chat.turns == 1
        talk(chat, ("And then?", []))
    finally:
        gc.enable()


def test_one_answer_at_a_time() -> None:
    chat = engine_of("llama").chat(max_new_tokens=40)
    chat.say("abc abc?")
    messages = chat.messages
    answer = chat.stream("abc")
    next(answer)
    for use in (
        lambda: chat.say("and"),
        lambda: chat.edit(0, "and"),
        lambda: chat.rewind(0),
        chat.fork,
        chat.reset,
    ):
        with pytest.raises(UnsupportedRequest, match="an answer is still being written"):
            use()
    assert chat.messages == messages
    answer.close()
    answer.close()
    assert chat.say("and").reused > 0


def test_bad_input_changes_nothing() -> None:
    chat = engine_of("llava").chat(max_new_tokens=8)
    talk(chat, ("abc abc?", tiny_images(1)))
    held, messages = chat.cached_tokens, chat.messages
    for bad in (
        lambda: chat.say(""),
        lambda: chat.say(3),  # type: ignore[arg-type]
        lambda: chat.say("<image>"),
        lambda: chat.say("abc", ["missing.png"]),
        lambda: chat.say("abc", max_new_tokens=0),
        lambda: chat.say("abc", top_q=1),
        lambda: chat.edit(7, "abc"),
        lambda: chat.edit(True, "abc"),
    ):
        with pytest.raises((InputError, ConfigError)):
            bad()
        assert (chat.cached_tokens, chat.messages) == (held, messages)
    talk(chat, ("abc", []))


def test_an_error_in_the_midst_of_an_answer_takes_the_turn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of("llama")
    chat = engine.chat(max_new_tokens=40)
    talk(chat, ("abc abc?", []))
    messages, rounds = chat.messages, iter([False, True])
    forward = type(engine.target).forward

    def failing(self: Any, *args: Any) -> Any:
        if next(rounds, False):
            raise RuntimeError("out of memory")
        return forward(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.target), "forward", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            chat.say("abc")
    assert chat.messages == messages
    assert chat.cached_tokens == 0
    (said,) = talk(chat, ("abc", []))
    assert said.reused == 0


def test_a_drafter_that_reads_the_whole_prompt_gets_it() -> None:
    """Its states are not in the cache."""
    chat = engine_of("qwen2_5_vl", root_fallback="semantic").chat(max_new_tokens=8)
    said = talk(chat, ("abc abc?", tiny_images(1)), ("abc", []))
    assert [one.reused for one in said] == [0, 0]
    assert chat.cached_tokens == 0


def test_contexts_of_a_conversation_live_on() -> None:
    """RECAP's C and G, by the chat's own name: forks and resets begin with empty ones."""
    chat = engine_of("llama", conversation=True).chat(max_new_tokens=8)
    talk(chat, ("abc abc?", []), ("abc", []))
    drafter: Any = chat._engine.drafter
    assert list(drafter._last) == [(None, chat.id)]
    fork = chat.fork()
    talk(fork, ("abc", []))
    assert list(drafter._last) == [(None, chat.id), (None, fork.id)]


def test_sampled_answers_are_the_same_too() -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "seed": 5, "max_new_tokens": 12}
    chat = engine_of("qwen2_5_vl").chat()
    talk(chat, ("abc abc?", tiny_images(1)), ("Again.", []), **options)


def caches_of(chat: Chat) -> Iterator[Any]:
    assert chat._prefix is not None
    for layer in chat._prefix.cache.layers:
        yield layer
        yield layer.keys


@pytest.mark.parametrize("how", ["close", "reset", "drop", "left"])
def test_closing_frees_everything(how: str) -> None:
    chat = engine_of("qwen2_5_vl").chat(max_new_tokens=8)
    chat.say("abc?", tiny_images(1))
    chat.say("abc")
    held = [weakref.ref(each) for each in caches_of(chat)]
    features = [weakref.ref(each.pooled) for each in chat._features._store.values()]  # type: ignore[union-attr]
    assert all(ref() is not None for ref in (*held, *features))
    gc.disable()
    try:
        if how == "left":  # an answer takes the cache over and is left in its midst
            answer = chat.stream("abc")
            next(answer)
            chat.close()
            answer.close()
        elif how == "drop":
            del chat
        else:
            getattr(chat, how)()
        alive = [ref for ref in (*held, *features) if ref() is not None]
        assert not alive
    finally:
        gc.enable()
    if how == "close":
        with pytest.raises(UnsupportedRequest, match="closed"):
            chat.say("abc")


def test_answers_of_one_chat_do_not_stay_in_memory() -> None:
    """A result holds no cache, and the cache before an answer goes with the answer."""
    chat = engine_of("llama").chat(max_new_tokens=8)
    chat.say("abc?")
    old = [weakref.ref(layer.keys) for layer in chat._prefix.cache.layers]  # type: ignore[union-attr]
    said = chat.stream("abc")
    said.finish()
    gc.collect()
    assert all(ref() is None for ref in old)


def test_a_chat_needs_a_template() -> None:
    target = HuggingFaceTarget(tiny_model("llama"), tiny_tokenizer())
    target.tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        Engine(target, "none", budget=0).chat()
