"""Runs a case: makes its engine and asks it the way the case says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers

import eyespan
from eyespan.batching import Scheduler
from eyespan.budget import CostCurve
from eyespan.drafters import TRAINED, make_drafter
from eyespan.dropin import fallbacks
from eyespan.generation import Engine
from eyespan.rejection import Verification
from eyespan.target.base import Prompt
from eyespan.testing import OracleDrafter, RandomDrafter, random_checkpoint, tiny_images, tiny_video
from eyespan.types import Generation
from tests.grid.axes import FILMS, Case
from tests.grid.oracle import LOGPROBS, plain, plain_on, said_by_generate, stop_of, stop_on
from tests.grid.rows import Row, options_of, prompt_of, target_of
from tests.parity.steps import MANY

MEDIA = {"0": 0, "1": 1, "2": 2, "twins": 2, "video": 1, "mixed": 2}
"""Pictures and videos of a row."""

CURVE = CostCurve(sizes=(1, 2, 16, 64), ms=(10.0, 11.0, 14.0, 30.0))
"""What "auto" goes by, so that a case does the same wherever it runs."""

_FOLDER = tempfile.TemporaryDirectory(prefix="eyespan-grid-")


@dataclass(frozen=True, slots=True)
class Said:
    """One answer beside the plain one.

    Attributes:
        row, prompt: what was asked.
        ids: of our answer.
        expected: plain decoding's answer.
        whole: our answer, unless `generate()` gave nothing but ids.
    """

    row: Row
    prompt: Prompt
    ids: tuple[int, ...]
    expected: Generation
    whole: Generation | None = None


def drafter_of(case: Case, rows: list[Row]) -> Any:
    """A new drafter, so that a case says the same whatever ran before."""
    target, name = target_of(case.family, rows[0].ends), case.drafter
    vocab = target.info.vocab_size
    if name == "random":
        return RandomDrafter(vocab)
    if name == "oracle":
        return OracleDrafter(target, [prompt_of(row) for row in rows])
    options: dict[str, Any] = {}
    if name == "draft_model":
        options["draft_model"] = target_of("llama")
    if name == "viskip":
        options["wrapped"] = "recap"
    if name in TRAINED or name == "hybrid":
        head = "fovea" if name == "hybrid" else name
        folder = Path(_FOLDER.name) / f"{head}-{case.family}"
        if not folder.exists():
            random_checkpoint(head, target.weights(), folder, width=3, depth=4, nodes=12)
        options["checkpoint"] = str(folder)
    return make_drafter(name, vocab_size=vocab, **options)


def budget_of(case: Case) -> Any:
    """As an engine takes it."""
    return int(case.budget) if case.budget.isdigit() else case.budget


def engine_of(case: Case, rows: list[Row]) -> Engine:
    """A new engine."""
    target, way = target_of(case.family, rows[0].ends), _verification(case)
    return Engine(target, drafter_of(case, rows), budget=budget_of(case), verification=way)


def _verification(case: Case) -> Verification:
    return "rejection" if case.verification == "rejection" else "walk"


def answers(case: Case, rows: list[Row]) -> list[Said]:
    """Every answer that the case brings; those of a warm drafter are there too."""
    if case.way == "enabled":
        return _enabled(case, rows)
    return answers_of(case, rows, engine_of(case, rows))


def answers_of(case: Case, rows: list[Row], engine: Engine) -> list[Said]:
    """The same on an engine that is there."""
    ask = _chat if case.cache == "chat" else _WAYS[case.way]
    return ask(case, rows, engine)


def _enabled(case: Case, rows: list[Row]) -> list[Said]:
    (row,) = rows
    prompt, model = prompt_of(row), target_of(row.family).model
    drafter, way = drafter_of(case, rows), _verification(case)
    eyespan.enable(model, drafter, budget=budget_of(case), verification=way)
    try:
        said = [said_by_generate(row, prompt, stop_of(row)) for _ in range(2)]
        assert fallbacks(model) == {}
    finally:
        eyespan.disable(model)
    return [Said(row, prompt, ids, plain(row)) for ids in said]


def _asked(case: Case, row: Row, engine: Engine) -> tuple[Prompt, dict[str, Any]]:
    """A row's prompt on the case's kind of cache, and its options."""
    prompt = prompt_of(row)
    options = options_of(row, prompt, stop_of(row))
    if case.cache == "static":
        config, size = engine.target.model.config, len(prompt) + row.limit + 2
        prompt = replace(prompt, cache=transformers.StaticCache(config=config, max_cache_len=size))
    if case.cache == "kept":
        prompt = _resumed(row, prompt, engine)
    return prompt, options


def _resumed(row: Row, prompt: Prompt, engine: Engine) -> Prompt:
    """The prompt on what an answer to its beginning has left."""
    kept: list[Any] = []
    earlier = prompt_of(replace(row, text=MANY[:30], stop="length"))
    earlier = replace(earlier, keep=lambda cache, ids: kept.append((ids, cache)))
    engine.generate(earlier, max_new_tokens=3, **_some_choice(engine))
    if not kept:  # states owe tokens, and a chat reads such a turn anew
        return prompt
    ids, cache = kept[0]
    digests = [bytes([at]) for at in range(MEDIA[row.images])]
    target = engine.target
    prefix = target.prefix_after(earlier, ids, cache, pictures=digests, before=[])
    return target.resume(prompt, prefix, digests)


def _some_choice(engine: Engine) -> dict[str, Any]:
    """Of an earlier answer, which is any that the engine gives."""
    return {"temperature": 1.0, "seed": 3} if engine.rejection else {}


def _compared(row: Row, whole: Generation) -> Said:
    return Said(row, prompt_of(row), whole.token_ids, plain(row), whole)


def _alone(case: Case, rows: list[Row], engine: Engine) -> list[Said]:
    said = []
    for _ in range(2):
        prompt, options = _asked(case, rows[0], engine)
        said.append(_compared(rows[0], engine.generate(prompt, **options)))
    return said


def _stream(case: Case, rows: list[Row], engine: Engine) -> list[Said]:
    prompt, options = _asked(case, rows[0], engine)
    stream = engine.stream(prompt, granularity="token", logprobs=LOGPROBS, **options)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == stream.generation.text
    assert sum((chunk.token_ids for chunk in chunks), ()) == stream.generation.token_ids
    return [_compared(rows[0], stream.generation)]


def _ragged(case: Case, rows: list[Row], engine: Engine) -> list[Said]:
    asked = [_asked(case, row, engine) for row in rows]
    whole = engine.generate_many(
        [prompt for prompt, _ in asked], each=[options for _, options in asked]
    )
    return [_compared(*each) for each in zip(rows, whole, strict=True)]


def _joining(case: Case, rows: list[Row], engine: Engine) -> list[Said]:
    with Scheduler(engine, max_rows=2) as scheduler:
        tickets = []
        for row in rows:
            prompt, options = _asked(case, row, engine)
            tickets.append(scheduler.submit(prompt, logprobs=LOGPROBS, **options))
            scheduler.step()
        scheduler.drain()
    return [_compared(row, each.generation) for row, each in zip(rows, tickets, strict=True)]


def _chat(case: Case, rows: list[Row], engine: Engine) -> list[Said]:
    """The second turn of a conversation, from scratch and on the first one's cache."""
    row, target = rows[0], engine.target
    pictures = tiny_images(MEDIA[row.images] - (row.images in FILMS))
    if row.images == "twins":
        pictures = [tiny_images(1, seed=at)[0] for at in range(2)]
    videos = [eyespan.Video(tiny_video(), rate=2.0)] if row.images in FILMS else []
    chat, early = engine.chat(system="Be brief."), _some_choice(engine)
    chat.say("abc abc, what is this?", pictures, videos=videos, max_new_tokens=6, **early)
    asked = [*chat.messages, {"role": "user", "content": [{"type": "text", "text": row.text}]}]
    prompt = target.prepare(asked, pictures, videos)
    options = options_of(row, prompt, stop_on(row, prompt))
    if case.way == "stream":
        with chat.stream(row.text, granularity="token", logprobs=LOGPROBS, **options) as stream:
            whole = stream.finish()
    else:
        whole = chat.say(row.text, **options)
    return [Said(row, prompt, whole.token_ids, plain_on(row, prompt), whole)]


_WAYS: dict[str, Callable[[Case, list[Row], Engine], list[Said]]] = {
    "alone": _alone, "stream": _stream, "ragged": _ragged, "joining": _joining,
}  # fmt: skip
