"""For code that already has a transformers model: `enable`, `disable`, `custom_generate`.

`generate()` looks its decoding loop up as `type(model)._sample`; `enable` gives the model a
subclass of its own class whose `_sample` is ours, so streamers, stop strings, processors, stopping
criteria and pipelines keep working, and undoing it is one assignment. What is not honoured here
runs stock's own loop, counted and logged once per reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch

from eyespan.budget import Budget
from eyespan.drafters.base import Drafter
from eyespan.errors import EyespanError, UnsupportedRequest
from eyespan.generation import Engine
from eyespan.sequence import FIRST_ROOM, Draw, Running
from eyespan.target.base import TargetInfo
from eyespan.target.loading import load_target
from eyespan.types import Cut, Ints, Request

log = logging.getLogger("eyespan")

MAX_CALL_ENGINES = 4
"""Engines that one model's `custom_generate` calls keep, by their options."""


def enable(
    model: Any, drafter: str | Drafter = "recap", *, budget: Budget = "auto", **drafter_options: Any
) -> Any:
    """Make `model.generate()` speculate; returns the model. Enabling again replaces the drafter.

    Args:
        model: a live transformers model that generates text. It is in eval mode until `disable`;
            copies and pickles of it are plain models.
        drafter: a name of `eyespan.drafters.DRAFTERS`.
        budget: see `eyespan.load`.
        **drafter_options: fields of the drafter's config.

    Raises:
        ConfigError: unknown drafter, option or budget.
        UnsupportedTarget: the model cannot be verified in trees; it is left as it was.
    """
    earlier = _loop_of(model)
    if earlier is not None:
        earlier.engine.target.detach()
    try:
        loop = Speculation(model, drafter, budget, drafter_options)
    except BaseException:
        if earlier is not None:
            model.eval()
        raise
    plain = _plain_class(model)
    parts = {"_sample": _sample, "__reduce_ex__": _reduce}
    model.__class__ = type(
        plain.__name__, (plain,), {**parts, "_eyespan": loop, "_eyespan_plain": plain}
    )
    return model


def disable(model: Any) -> Any:
    """Undo `enable`, training flags included; harmless on a model that was never enabled. Returns
    the model.
    """
    loop = _loop_of(model)
    if loop is not None:
        loop.engine.target.detach()
    model.__class__ = _plain_class(model)
    return model


def fallbacks(model: Any) -> dict[str, int]:
    """Calls of an enabled model that ran stock's own loop, by reason."""
    loop = _loop_of(model)
    return {} if loop is None else dict(loop.fallbacks)


def custom_generate(
    model: Any,
    input_ids: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    drafter: str = "recap",
    budget: Budget = "auto",
    drafter_options: dict[str, Any] | None = None,
    **model_kwargs: Any,
) -> Any:
    """For one call: `model.generate(**inputs, custom_generate=eyespan.custom_generate)`.

    `generate()` keeps `streamer=` and `tokenizer=` to itself when it is given a callable; use
    `enable` where those are needed. The engine stays with the model between calls.

    Raises:
        ConfigError, UnsupportedTarget: see `enable`.
        UnsupportedRequest: beam search, which `generate()` passes on without a word.
    """
    if generation_config.num_beams > 1:
        raise UnsupportedRequest(
            f"num_beams={generation_config.num_beams}",
            found="beam search",
            needed="greedy decoding or sampling",
            todo="Leave custom_generate out of this call.",
        )
    options = drafter_options or {}
    key = (drafter, budget, repr(sorted(options.items())))
    known: _Calls = model.__dict__.setdefault("_eyespan_calls", _Calls())
    if key not in known:
        known[key] = Speculation(model, drafter, budget, options)
        if len(known) > MAX_CALL_ENGINES:
            del known[next(iter(known))]  # the oldest
    return known[key].run(
        model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
    )


class _Calls(dict[Any, "Speculation"]):
    """Engines of one model's `custom_generate` calls; a copy of the model starts without any."""

    def __reduce__(self) -> tuple[type[_Calls], tuple[()]]:
        return (_Calls, ())


def _loop_of(model: Any) -> Speculation | None:
    return getattr(type(model), "_eyespan", None)


def _plain_class(model: Any) -> type:
    return getattr(type(model), "_eyespan_plain", type(model))


def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The decoding loop of an enabled model; takes what transformers' own `_sample` takes."""
    return type(self)._eyespan.run(self, *args, **kwargs)


def _reduce(self: Any, protocol: Any) -> Any:
    """How an enabled model is copied and pickled: as the plain one, without the engine."""
    plain: Any = _plain_class(self)
    _, _, *state = plain.__reduce_ex__(self, protocol)
    return (object.__new__, (plain,), *state)


class Speculation:
    """An engine behind `generate()`.

    Attributes:
        engine: target, drafter and loop.
        fallbacks: calls that ran stock's loop, by reason.
    """

    def __init__(
        self, model: Any, drafter: str | Drafter, budget: Budget, drafter_options: dict[str, Any]
    ) -> None:
        target = load_target(model)
        try:
            self.engine = Engine(target, drafter, budget=budget, **drafter_options)
        except BaseException:
            target.detach()
            raise
        self.fallbacks: Counter[str] = Counter()

    def run(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode one `generate()` call; the ids are those of stock's loop."""
        try:
            self._check(model, input_ids, generation_config, synced_gpus, model_kwargs)
            # `generate()` has made criteria of stop strings by now; their tokenizer tags along
            inputs = {name: value for name, value in model_kwargs.items() if name != "tokenizer"}
            prompt = self.engine.target.prompt_from_generate(input_ids, inputs)
        except EyespanError as reason:
            self._fall_back(reason)
            return _plain_class(model)._sample(  # type: ignore[attr-defined]
                model,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus=synced_gpus,
                streamer=streamer,
                **model_kwargs,
            )
        answer = _Answer(input_ids, stopping_criteria, generation_config, streamer)
        running = Running(
            answer.request(prompt.ids, self.engine.target.info),
            on_token=answer.on_token,
            draw=_draw(logits_processor, generation_config, answer),
        )
        try:
            self.engine.decoder.start(running, prompt)
            while running.finish is None:
                self.engine.decoder.step([running])
        finally:
            if running.state is not None:
                self.engine.target.release(running.state)
        if streamer is not None:
            streamer.end()
        return answer.ids

    def _check(
        self, model: Any, input_ids: Any, config: Any, synced_gpus: bool, kwargs: dict[str, Any]
    ) -> None:
        """Refuse what this loop does not honour; the error's `found` names the reason."""
        reasons = {
            "a copy of the enabled model": model is not self.engine.target.model,
            "more than one sequence": input_ids.shape[0] != 1,
            "embeddings instead of ids": input_ids.shape[1] == 0 or "inputs_embeds" in kwargs,
            "a dictionary result": config.return_dict_in_generate,
            "chunked prefill": config.prefill_chunk_size is not None,
            "decoding without a cache": not kwargs.get("use_cache", True),
            "no length limit": config.max_length is None,
            "distributed generation": synced_gpus,
        }
        for reason, true in reasons.items():
            if true:
                raise UnsupportedRequest(
                    "speculation in generate()",
                    found=reason,
                    needed="one sequence with ids, a cache and a length limit",
                    todo="Stock's own loop answers this call.",
                )

    def _fall_back(self, reason: EyespanError) -> None:
        if reason.found not in self.fallbacks:
            log.warning("%s", reason)
        self.fallbacks[reason.found] += 1


class _Answer:
    """The growing answer as `generate()` shows it to criteria, processors and the streamer."""

    def __init__(self, input_ids: Any, criteria: Any, config: Any, streamer: Any) -> None:
        self._criteria, self._config, self._streamer = criteria, config, streamer
        self._length = input_ids.shape[1]
        self._limit = max(config.max_length, self._length + 1)
        self._make_room(input_ids)

    @property
    def ids(self) -> Any:
        """[1, P] prompt and answer so far."""
        return self._buffer[:, : self._length]

    def request(self, prompt_ids: Ints, info: TargetInfo) -> Request:
        """The request behind the call; an end id outside the vocabulary, as -1, ends nothing."""
        ends = self._config._eos_token_tensor
        ids = () if ends is None else ends.flatten().tolist()
        return Request(
            id="generate",
            prompt_ids=prompt_ids,
            media_ids=info.media_ids,
            eos_ids=frozenset(end for end in ids if 0 <= end < info.vocab_size),
            max_new_tokens=self._limit - self._length,
        )

    def on_token(self, token: int, _source: str) -> Cut | None:
        """Show a committed token around; stop where a criterion says so."""
        if self._length == self._buffer.shape[1]:
            self._make_room(self._buffer)
        self._buffer[0, self._length] = token
        self._length += 1
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        stopped = self._criteria(self.ids, None)
        return "stop" if bool(stopped.all()) else None

    def _make_room(self, ids: Any) -> None:
        """Copy the ids to a longer buffer; `max_length` may be far beyond any answer."""
        known = ids.shape[1]
        size = min(self._limit, max(2 * known, known + FIRST_ROOM))
        self._buffer = ids.new_empty((1, size))
        self._buffer[:, :known] = ids


def _draw(processors: Any, config: Any, answer: _Answer) -> Draw | None:
    """The target's choice as `generate()` makes it; None when that is a plain argmax.

    The verify walk calls it once per committed token, in order, so stateful processors and the
    random generator see what they would see in stock's loop.
    """
    if not config.do_sample and len(processors) == 0:
        return None

    def draw(logits: Any, _ids: Ints) -> int:
        scores = processors(answer.ids, logits[None].to(copy=True, dtype=torch.float32))
        if config.do_sample:
            return int(torch.multinomial(scores.softmax(-1), num_samples=1))
        return int(scores.argmax(-1))

    return draw
