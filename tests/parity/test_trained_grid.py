"""The text stays the target's wherever trained heads have something of their own to get wrong: what
they keep of pictures, caps on it, caches of drafts, batches that draft in one forward, answers that
are sampled, cut off or continued in a conversation; and a head of another target never runs.

Random weights, so that next to nothing is accepted. A third of drafters and situations, on one
family each, is run by default; the whole grid is slow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

import eyespan
from eyespan.batching import Scheduler
from eyespan.drafters import TRAINED
from eyespan.dropin import fallbacks
from eyespan.errors import UnsupportedTarget
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.testing import SEEING, random_checkpoint, tiny_images, tiny_prompt, tiny_target

FAMILIES = (*SEEING, "internvl", "qwen3_vl", "llava_onevision", "smolvlm")
NAMES = (*TRAINED, "hybrid")
SMALL = {"width": 3, "depth": 3, "nodes": 9}
SHAPES: dict[str, dict[str, Any]] = {"eagle3": {"draft_vocab_size": 90}, "vispec": {"slots": 3}}
LIMIT = 12

target_of = cache(tiny_target)


@cache
def plain_of(family: str) -> Engine:
    return Engine(target_of(family), "none", budget=0)


def drafting(name: str, target: HuggingFaceTarget, folder: Path, **options: Any) -> Engine:
    """An engine whose head has random weights for this very target."""
    head = "fovea" if name == "hybrid" else name
    fields = {**SMALL, **SHAPES.get(head, {})}
    path = random_checkpoint(head, target.weights(), folder / head, **fields)
    return Engine(target, name, budget="fixed", checkpoint=path, **options)


def same(engine: Engine, family: str, text: str, count: int, **options: Any) -> eyespan.Generation:
    """An answer about some pictures, compared with plain decoding's."""
    options = {"max_new_tokens": LIMIT, **options}
    found, plain = (
        one.generate(tiny_prompt(one.target, family, count, text=text), **options)
        for one in (engine, plain_of(family))
    )
    assert found.token_ids == plain.token_ids
    assert "drafter fault" not in found.plain_steps
    return found


def no_picture(name: str, family: str, folder: Path) -> None:
    assert same(drafting(name, target_of(family), folder), family, "What is it?", 0).drafted > 5


def pictures(name: str, family: str, folder: Path) -> None:
    engine = drafting(name, target_of(family), folder)
    for count in (1, 4):
        assert same(engine, family, "And these?", count).drafted > 5


def picture_beyond_the_cap(name: str, family: str, folder: Path) -> None:
    """Of pictures with more visual tokens than a memory holds, some are kept."""
    cap = {"memory_limit": 3, "k_min": 2, "k_max": 2} if name in ("fovea", "hybrid") else {}
    engine = drafting(name, target_of(family), folder, **cap)
    assert same(engine, family, "What is it?", 1).drafted > 5
    assert same(engine, family, "And now?", 3).drafted > 5
    if cap:
        prompt = tiny_prompt(engine.target, family, 1)
        with engine.stream(prompt, max_new_tokens=LIMIT) as stream:
            next(iter(stream))
            session: Any = stream._running.session
            session = session.inner[1] if name == "hybrid" else session
            assert session.context.condition["keys"].shape[1] == 3


def batch(name: str, family: str, folder: Path) -> None:
    """Requests with and without pictures join and leave while others run; drafts of all of them
    come out of one forward.
    """
    engine = drafting(name, target_of(family), folder)
    target = target_of(family)
    asks = [(f"Number {at}?", at % 3, 4 + 5 * (at % 3)) for at in range(5)]
    with Scheduler(engine, max_rows=3) as scheduler:
        tickets = []
        for text, count, limit in asks:
            while not scheduler.has_free_row:
                scheduler.step()
            prompt = tiny_prompt(target, family, count, text=text)
            tickets.append(scheduler.submit(prompt, max_new_tokens=limit))
        while scheduler.step():
            pass
    for ticket, (text, count, limit) in zip(tickets, asks, strict=True):
        prompt = tiny_prompt(target, family, count, text=text)
        plain = plain_of(family).generate(prompt, max_new_tokens=limit)
        assert ticket.generation.token_ids == plain.token_ids
        assert "drafter fault" not in ticket.generation.plain_steps


def sampled(name: str, family: str, folder: Path) -> None:
    engine = drafting(name, target_of(family), folder)
    for seed in (1, 2):
        options = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": seed}
        same(engine, family, "Say something.", 2, **options)


def cancelled(name: str, family: str, folder: Path) -> None:
    """What was streamed until then is the text's beginning, and the next request is untouched."""
    engine = drafting(name, target_of(family), folder)
    prompt = tiny_prompt(engine.target, family, 1)
    whole = plain_of(family).generate(prompt, max_new_tokens=LIMIT).token_ids
    cancel = Event()
    prompt = tiny_prompt(engine.target, family, 1)
    with engine.stream(prompt, max_new_tokens=LIMIT, cancel=cancel) as stream:
        next(iter(stream))
        cancel.set()
        cut = stream.finish()
    assert cut.token_ids == whole[: len(cut.token_ids)]
    assert len(cut.token_ids) < LIMIT
    same(engine, family, "What is this?", 1)


def conversation(name: str, family: str, folder: Path) -> None:
    """Every turn reads the whole conversation, whose states a head needs."""
    family = family if family in SEEING else SEEING[len(family) % len(SEEING)]
    told, asked = (
        engine.chat(max_new_tokens=LIMIT)
        for engine in (drafting(name, target_of(family), folder), plain_of(family))
    )
    turns = (("What is this?", 1), ("And that?", 0), ("Look here.", 2))
    for at, (text, count) in enumerate(turns):
        said = told.say(text, tiny_images(count, seed=at))
        assert said.token_ids == asked.say(text, tiny_images(count, seed=at)).token_ids
        assert "drafter fault" not in said.plain_steps
        assert said.reused == 0


def kept_prefix(name: str, family: str, folder: Path) -> None:
    """A given cache's tokens are not run again, so a head never sees their states."""
    target = target_of(family)
    head = "fovea" if name == "hybrid" else name
    path = random_checkpoint(head, target.weights(), folder, **{**SMALL, **SHAPES.get(head, {})})
    texts = [torch.tensor([target.tokenizer(text)["input_ids"]]) for text in ("abc abc?", "And?")]
    found: list[list[int]] = []
    for enabled in (False, True):
        if enabled:
            eyespan.enable(target.model, drafter=name, budget="fixed", checkpoint=path)
        said, cache = texts[0], None
        for text in (texts[1], None):
            out = target.model.generate(
                said, cache=cache, max_new_tokens=8, return_dict_in_generate=True,
                attention_mask=torch.ones_like(said), do_sample=False,
            )  # fmt: skip
            cache = out.cache
            said = out.sequences if text is None else torch.cat([out.sequences, text], dim=1)
        found.append(said[0].tolist())
        assert not fallbacks(target.model)
        eyespan.disable(target.model)
    assert found[0] == found[1]


SITUATIONS: tuple[Callable[[str, str, Path], None], ...] = (
    no_picture,
    pictures,
    picture_beyond_the_cap,
    batch,
    sampled,
    cancelled,
    conversation,
    kept_prefix,
)


def family_for(name: str, situation: str) -> str:
    """One of all families, always the same."""
    return random.Random(f"{name} {situation}").choice(FAMILIES)


SAMPLED = [
    pytest.param(name, situation, id=f"{name}-{situation.__name__}")
    for row, name in enumerate(NAMES)
    for column, situation in enumerate(SITUATIONS)
    if (row + column) % 3 == 0
]
"""Every drafter in two or three situations, every situation with two drafters."""


@pytest.mark.parametrize(("name", "situation"), SAMPLED)
def test_the_text_is_the_targets(
    name: str, situation: Callable[[str, str, Path], None], tmp_path: Path
) -> None:
    situation(name, family_for(name, situation.__name__), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_the_targets_on_every_family(
    name: str, situation: Callable[[str, str, Path], None], family: str, tmp_path: Path
) -> None:
    situation(name, family, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_head_of_another_target_is_refused_before_the_first_forward(
    name: str, tmp_path: Path
) -> None:
    """Other weights of the same shape, and another shape; the model is left as it was."""
    head = "fovea" if name == "hybrid" else name
    path = random_checkpoint(head, target_of("llava").weights(), tmp_path)
    for family, seed, found in (("llava", 1, "a weight of its head is"), ("qwen2_5_vl", 0, " is ")):
        target = tiny_target(family, seed=seed)
        ran: list[Any] = []
        target.model.register_forward_pre_hook(lambda *call, ran=ran: ran.append(call))
        with pytest.raises(UnsupportedTarget) as refused:
            Engine(target, name, checkpoint=path)
        assert not ran
        said = str(refused.value)
        assert f"drafter '{head}' from '{path}' on 'tiny {family}'" in said
        assert found in said
        assert "it was trained for 'tiny llava'" in said
        assert "docs/train.md" in said
        plain_class = type(target.model)
        with pytest.raises(UnsupportedTarget):
            eyespan.enable(target.model, drafter=name, checkpoint=path)
        assert type(target.model) is plain_class
