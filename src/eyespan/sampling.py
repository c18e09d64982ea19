"""How a request's tokens are chosen: one frozen value, checked before anything runs.

Names and meanings are transformers' own wherever it has the option, so that a call of `generate()`
can be carried over word for word; `presence_penalty`, `frequency_penalty`, `logit_bias`,
`logprobs`, `rng`, `strict` and `response_format` are ours. What is chosen never depends on a
drafter: options act on the target's logits, once per committed token and in text order.
"""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NoReturn, TypeAlias

from eyespan.counts import real, whole
from eyespan.errors import ConfigError, unknown_name

Rng: TypeAlias = Literal["stream", "position"]

MAX_LOGPROBS = 20
"""Most alternatives that can be asked for at each token."""

MAX_BIASED = 10_000
"""Most entries of one bias, ban or word list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the target's token is chosen. The default is greedy.

    Attributes:
        temperature: 0 is greedy; None is 0, or 1 where another sampling option is given.
        top_k, top_p, min_p, top_h, typical_p, epsilon_cutoff, eta_cutoff: transformers' cuts of
            the distribution, in its order. They mean nothing to greedy decoding.
        seed: of this request's own random numbers; None draws a fresh one. A seed repeats stock's
            `torch.manual_seed(seed); generate(do_sample=True)`.
        generator: a torch generator on the target's device instead of a seed.
        rng: "stream" draws from the generator as `generate()` does; "position" keys the number to
            (seed, position in the text), so that it depends on nothing that ran before.
        repetition_penalty, no_repeat_ngram_size, encoder_repetition_penalty,
            encoder_no_repeat_ngram_size, min_length, min_new_tokens, bad_words_ids, sequence_bias,
            suppress_tokens, begin_suppress_tokens, forced_bos_token_id, forced_eos_token_id,
            exponential_decay_length_penalty, remove_invalid_values, renormalize_logits,
            watermarking_config, prefix_allowed_tokens_fn: as in transformers.
        presence_penalty: subtracted from the logit of every id that the answer already holds.
        frequency_penalty: the same, times how often it does.
        logit_bias: id -> number added to its logit.
        logits_processors: callables (ids [1, P], scores [1, V]) -> scores [1, V], called once per
            committed token, in order, after the options above and before the cuts; they may keep
            state. One object serves one request.
        stopping_criteria: callables (ids [1, P], None) -> true where the answer ends.
        logprobs: alternatives to report at each token, 0 for the token alone, None for nothing.
        strict: decide near ties as plain decoding would (half precision, see `strict.py`).
        response_format: a grammar that the answer follows, see `grammar.py`.
        guidance_scale: refused, since it needs a second answer without the prompt's condition.

    Raises:
        ConfigError: a value of another kind or outside its range, or options that exclude another.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_h: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    seed: int | None = None
    generator: Any = None
    rng: Rng = "stream"
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_repetition_penalty: float | None = None
    encoder_no_repeat_ngram_size: int | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None
    logit_bias: Mapping[int, float] | None = None
    sequence_bias: Mapping[tuple[int, ...], float] | None = None
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    watermarking_config: Any = None
    prefix_allowed_tokens_fn: Callable[[int, Any], Sequence[int]] | None = None
    logits_processors: Sequence[Callable[[Any, Any], Any]] = ()
    stopping_criteria: Sequence[Callable[..., Any]] = ()
    logprobs: int | None = None
    strict: bool = False
    response_format: Mapping[str, Any] | None = None
    guidance_scale: float | None = None

    def __post_init__(self) -> None:
        for name, (kind, low, high) in _RANGES.items():
            number = _number(name, getattr(self, name), kind, low, high)
            object.__setattr__(self, name, number)
        if self.temperature:
            _number("temperature", self.temperature, float, 1e-6, 100)
        for name in _CALLABLES:
            _check_callables(name, getattr(self, name))
        for name in _LISTS:
            _check_size(name, getattr(self, name))
        for name in _BIASES:
            _check_biases(name, getattr(self, name))
        allowed = self.prefix_allowed_tokens_fn
        if allowed is not None and not callable(allowed):
            _refuse_callables("prefix_allowed_tokens_fn", allowed, "a callable (batch, ids)")
        if self.rng not in ("stream", "position"):
            raise unknown_name("rng", str(self.rng), ("stream", "position"))
        for clash, asked, found, todo in self._clashes():
            if clash:
                raise ConfigError(asked, found=found, needed="one of the two alone", todo=todo)
        if self.guidance_scale not in (None, 1):
            raise ConfigError(
                f"guidance_scale={self.guidance_scale}",
                found="classifier-free guidance, which writes a second answer beside the first",
                needed="an answer whose every token depends on its own forward alone",
                todo="Use stock generate() for guidance.",
            )

    def _clashes(self) -> tuple[tuple[bool, str, str, str], ...]:
        own = self.generator is not None
        return (
            (own and self.seed is not None, "seed", "a generator beside it", "Pass one of them."),
            (
                own and self.rng == "position",
                "rng='position'",
                "a generator, whose numbers come in a stream",
                "Pass a seed instead.",
            ),
            (
                self.strict and self.draws,
                "strict",
                "sampling, which has no near ties to decide",
                "Leave temperature at 0, or leave strict out.",
            ),
            (
                self.strict and bool(self.logits_processors or self.watermarking_config),
                "strict",
                "processors that may keep state and would see a token twice",
                "Leave one of them out.",
            ),
        )

    @classmethod
    def of(cls, options: Mapping[str, Any], base: Sampling | None = None) -> Sampling:
        """A value from keyword options.

        Raises:
            ConfigError: an unknown name (the closest is suggested) or a bad value.
        """
        if not isinstance(base, (Sampling, type(None))):
            raise ConfigError(
                f"sampling={base!r:.60}",
                found=f"a {type(base).__name__}",
                needed="a Sampling is needed",
                todo="Write sampling=eyespan.Sampling(...), or pass its fields by name.",
            )
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise unknown_name("option", name, known)
        return replace(base or cls(), **options)

    def fresh(self) -> Sampling:
        """The same options with processors and criteria whose states are another request's own."""
        states = {name: getattr(self, name) for name in STATEFUL}
        return replace(self, **copy.deepcopy(states)) if any(states.values()) else self

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn at random instead of taking the best one."""
        if self.temperature is not None:
            return self.temperature > 0
        cuts = (
            self.top_k, self.top_p, self.min_p, self.top_h,
            self.typical_p, self.epsilon_cutoff, self.eta_cutoff,
        )  # fmt: skip
        return any(value is not None for value in cuts)

    @property
    def is_plain(self) -> bool:
        """Whether the choice is the best logit and nothing of it is reported."""
        return not self.draws and all(
            (value := getattr(self, field.name)) is None or value is False or value == ()
            for field in fields(self)
            if field.name not in _DRAW_ONLY
        )


def fresh_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of one among several requests: what may have a state is copied, so that every answer
    starts anew.
    """
    own = dict(options)
    own |= {name: copy.deepcopy(own[name]) for name in STATEFUL if name in own}
    if isinstance(base := own.get("sampling"), Sampling):
        own["sampling"] = base.fresh()
    return own


STATEFUL = ("logits_processors", "stopping_criteria")
"""Options that may keep state."""

_DRAW_ONLY = {
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "seed", "generator", "rng", "guidance_scale", "stopping_criteria",
}  # fmt: skip

_MANY = 1 << 30
_RANGES: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 100),
    "top_k": (int, 0, _MANY),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "top_h": (float, 0, 1),
    "typical_p": (float, 0, 1),
    "epsilon_cutoff": (float, 0, 1),
    "eta_cutoff": (float, 0, 1),
    "seed": (int, 0, (1 << 63) - 1),
    "repetition_penalty": (float, 1e-6, 1e6),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "no_repeat_ngram_size": (int, 0, _MANY),
    "encoder_repetition_penalty": (float, 1e-6, 1e6),
    "encoder_no_repeat_ngram_size": (int, 0, _MANY),
    "min_length": (int, 0, _MANY),
    "min_new_tokens": (int, 0, _MANY),
    "logprobs": (int, 0, MAX_LOGPROBS),
    "guidance_scale": (float, -1e6, 1e6),
}
_CALLABLES = ("logits_processors", "stopping_criteria")
_LISTS = (
    "bad_words_ids", "logit_bias", "sequence_bias", "suppress_tokens", "begin_suppress_tokens",
    "logits_processors", "stopping_criteria",
)  # fmt: skip
_BIASES = ("logit_bias", "sequence_bias")


def _number(name: str, value: Any, kind: type, low: float, high: float) -> float | None:
    """The number of an option, validated; None where it is not given."""
    if value is None:
        return None
    number: float | None = whole(value)
    if number is None and kind is float:
        number = real(value)
    if number is None or not low <= number <= high:
        raise ConfigError(
            f"{name}={value!r:.40}",
            found="not such a number" if number is None else "out of range",
            needed=f"a {'whole ' if kind is int else ''}number from {low} to {high}",
            todo="Change it or leave it out.",
        )
    return number


def _check_callables(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(map(callable, value)):
        _refuse_callables(name, value, "a list of callables (ids, scores)")


def _refuse_callables(name: str, value: Any, needed: str) -> NoReturn:
    raise ConfigError(
        f"{name}={value!r:.60}",
        found="nothing that can be called so",
        needed=f"{needed}, as transformers has it",
        todo="Change it or leave it out.",
    )


def _check_biases(name: str, value: Any) -> None:
    """A mapping to numbers: where one is not a number, every token's score would be none."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name}={value!r:.60}",
            found=f"a {type(value).__name__}",
            needed="a mapping from ids to numbers",
            todo="Write {id: number, ...}.",
        )
    for key, add in value.items():
        numeric = isinstance(add, numbers.Real) and not isinstance(add, bool)
        if not numeric or not add < math.inf:  # what is no number is not below it either
            raise ConfigError(
                f"{name} of {key!r:.40}",
                found=f"{add!r:.40}",
                needed="a number; minus infinity forbids a token",
                todo="Change it or leave it out.",
            )


def _check_size(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, Mapping)):
        raise ConfigError(
            f"{name}={value!r:.60}",
            found=f"a value of type {type(value).__name__}",
            needed="a list or a mapping",
            todo="See eyespan.Sampling.",
        )
    if len(value) > MAX_BIASED:
        raise ConfigError(
            name,
            found=f"{len(value):,} entries",
            needed=f"at most {MAX_BIASED:,}",
            todo="Pass fewer.",
        )
