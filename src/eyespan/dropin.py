"""For code that already has a transformers model: `enable`, `disable`, `custom_generate`.

`generate()` looks its decoding loop up as `type(model)._sample`; `enable` gives the model a
subclass of its own class whose `_sample` is ours, so streamers, stop strings, processors, stopping
criteria and pipelines keep working, and undoing it is one assignment (`dropin_call.py` is the
loop). What is not honoured runs stock's own loop, counted and logged once per reason.
"""

from __future__ import annotations

from typing import Any

from eyespan.budget import Budget
from eyespan.drafters.base import Drafter
from eyespan.dropin_call import Speculation
from eyespan.errors import UnsupportedRequest
from eyespan.rejection import Verification

MAX_CALL_ENGINES = 4
"""Engines that one model's `custom_generate` calls keep, by their options."""


def enable(
    model: Any,
    drafter: str | Drafter = "recap",
    *,
    budget: Budget = "auto",
    verification: Verification = "walk",
    **drafter_options: Any,
) -> Any:
    """Make `model.generate()` speculate; returns the model. Enabling again replaces the drafter.

    Args:
        model: a live transformers model that generates text. It is in eval mode until `disable`;
            copies and pickles of it are plain models.
        drafter: a name of `eyespan.drafters.DRAFTERS`.
        budget: see `eyespan.load`.
        verification: see `eyespan.load`. By rejection, greedy calls run stock's own loop.
        **drafter_options: fields of the drafter's config.

    Raises:
        ConfigError: unknown drafter, option or budget.
        UnsupportedTarget: the model cannot be verified in trees; it is left as it was.
    """
    earlier = _loop_of(model)
    if earlier is not None:
        earlier.engine.target.detach()
    try:
        loop = Speculation(
            model, _plain_class(model), drafter, budget, drafter_options, verification
        )
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
    verification: Verification = "walk",
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
    key = (drafter, budget, verification, repr(sorted(options.items())))
    known: _Calls = model.__dict__.setdefault("_eyespan_calls", _Calls())
    if key not in known:
        plain = _plain_class(model)
        known[key] = Speculation(model, plain, drafter, budget, options, verification)
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
