"""One request's side of choosing tokens: from its options to the callables that the loop asks.

All state is the request's own (ids, processors, generator, grammar, second cache), so requests of
one batch cannot touch each other's choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from eyespan.draw import (
    Chooser,
    History,
    LogprobReader,
    Lots,
    Pick,
    by_position,
    draft_key,
    from_stream,
    greedy,
    new_generator,
)
from eyespan.errors import ConfigError, UnsupportedRequest
from eyespan.grammar import GrammarRun, Grammars
from eyespan.sampling import Sampling
from eyespan.sequence import Observer, OnToken, Running
from eyespan.strict import Shadow
from eyespan.target.base import Prompt, Target
from eyespan.types import Cut, Request, TokenLogprobs


class Choosing:
    """Options of one request, made ready; refuses bad ones before the first forward.

    Args:
        target: the model.
        sampling: the options.
        inputs: the prompt.
        request: its bounds.
        grammars: gives the engine's grammar compiler when one is needed.
        rejection: whether guesses are verified by rejection, which takes sampled requests alone.

    Raises:
        ConfigError, UnsupportedRequest: an option that cannot be honoured.
    """

    def __init__(
        self,
        target: Target,
        sampling: Sampling,
        inputs: Prompt,
        request: Request,
        grammars: Callable[[], Grammars],
        rejection: bool = False,
    ) -> None:
        if rejection:
            _check_rejection(sampling)
        self._rejection = rejection
        self.is_plain = sampling.is_plain
        self.is_greedy = replace(sampling, logprobs=None).is_plain
        self._target, self._sampling, self._request = target, sampling, request
        self._reader = None if sampling.logprobs is None else LogprobReader(sampling.logprobs)
        self._shadow: Shadow | None = None
        self._grammar: GrammarRun | None = None
        if sampling.response_format is not None:
            self._grammar = grammars().begin(sampling.response_format, len(inputs))
        max_length = len(inputs) + request.max_new_tokens
        self._history = History(inputs.input_ids, max_length)
        self._pick: Pick = greedy
        self._shape: Any = None
        self._generator: torch.Generator | None = None
        if not self.is_plain:
            if sampling.draws:
                self._generator = _generator(sampling, target.info.device)
                self._pick = _pick(sampling, self._generator)
            self._shape = _shape(target, sampling, inputs, request, self._grammar)

    def run(
        self, request: Request, *, on_token: OnToken, observer: Observer | None = None
    ) -> Running:
        """The request as the loop steps it."""
        told = self._with_criteria(on_token) if self._sampling.stopping_criteria else on_token
        running = Running(request, on_token=told, observer=observer)
        if self._sampling.strict:
            self._shadow = Shadow(self._target, running)
        if not self.is_plain:
            running.draw = chooser = Chooser(
                self._history, self._shape, self._pick, self._reader, self._shadow
            )
            if self._rejection:
                key = draft_key(self._sampling.seed, self._generator)
                temperature = self._sampling.temperature or 1.0
                running.lots = Lots(chooser, temperature, self._generator, key)
        if (grammar := self._grammar) is not None:
            running.prune = lambda draft: grammar.prune(draft, running.ids)
        return running

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """One entry a token so far; empty when they were not asked for."""
        return () if self._reader is None else self._reader.entries

    def report(self) -> dict[str, Any]:
        """What `Generation` says of it."""
        return {
            "logprobs": None if self._reader is None else tuple(self._reader.entries),
            "near_ties": self._shadow.near_ties if self._shadow else 0,
            "strict_forwards": self._shadow.forwards if self._shadow else 0,
        }

    def close(self) -> None:
        """Let go of everything but what `report` needs."""
        self._shape = self._grammar = None
        self._pick = greedy
        if self._shadow is not None:
            self._shadow.close()

    def _with_criteria(self, on_token: OnToken) -> OnToken:
        criteria, history = self._sampling.stopping_criteria, self._history

        def told(token: int, source: str) -> Cut | None:
            cut = on_token(token, source)
            history.append(token)
            stops = [bool(torch.as_tensor(stop(history.ids, None)).all()) for stop in criteria]
            return "stop" if cut is None and any(stops) else cut

        return told


def _shape(
    target: Target, sampling: Sampling, inputs: Prompt, request: Request, grammar: Any
) -> Any:
    from eyespan.target.shaping import make_processors

    return make_processors(
        sampling,
        prompt_ids=inputs.input_ids,
        padding=inputs.padding,
        eos_ids=sorted(request.eos_ids),
        max_length=len(inputs) + request.max_new_tokens,
        vocab_size=target.info.vocab_size,
        grammar=grammar,
    )


def _pick(sampling: Sampling, generator: torch.Generator) -> Pick:
    """How a token is drawn from its scores."""
    if sampling.rng == "position":
        return by_position(generator.initial_seed())
    return from_stream(generator)


def _check_rejection(sampling: Sampling) -> None:
    """Refuse what verification by rejection cannot honour."""
    asked = "verification='rejection'"
    if not sampling.draws:
        raise UnsupportedRequest(
            asked,
            found="a greedy request, whose tokens are not drawn",
            needed="sampling is needed, such as temperature=1",
            todo="Say a temperature, or leave verification at 'walk'.",
        )
    if sampling.rng == "position":
        raise UnsupportedRequest(
            asked,
            found="rng='position', which ties one number to one position of the text",
            needed="numbers in a stream are needed: a position takes as many as it has guesses",
            todo="Leave rng out, or leave verification at 'walk'.",
        )


def _generator(sampling: Sampling, device: str) -> torch.Generator:
    """The request's own random numbers."""
    generator = sampling.generator
    if generator is None:
        return new_generator(sampling.seed, device)
    if not isinstance(generator, torch.Generator) or generator.device.type != device.split(":")[0]:
        raise ConfigError(
            f"generator={generator!r:.60}",
            found="not a torch generator on the target's device",
            needed=f"torch.Generator({device!r})",
            todo="Pass such a generator, or a seed.",
        )
    return generator
