"""The target's choice of one token, made as transformers' `generate()` makes it.

The verify walk asks once per committed token and in text order. So logits processors see the ids
that plain decoding would show them, stateful ones stay in step, and a generator hands out the
numbers that plain decoding would use: the same seed gives the same tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from eyespan.drafters._drawing import Drawing
from eyespan.errors import ConfigError, UnsupportedRequest
from eyespan.sequence import FIRST_ROOM
from eyespan.types import Ints, TokenLogprobs
from eyespan.verify import Doubles, inverse_draw

Shape = Callable[[Tensor, Tensor], Tensor]
"""(ids [1, P], scores [1, V] float32) -> scores [1, V], as transformers' LogitsProcessorList."""

Pick = Callable[[Tensor, int], int]
"""(shaped scores [1, V], ids so far) -> the token."""


class Choice(NamedTuple):
    """One choice, for whoever keeps a record.

    Attributes:
        logits: [V] of the target, in its own dtype.
        raw: [1, V] a float32 copy, which processors may have written to.
        scores: [1, V] shaped.
        token: the chosen one.
    """

    logits: Tensor
    raw: Tensor
    scores: Tensor
    token: int


class Plain(Protocol):
    """Knows the logits that plain decoding would have here (see `strict.py`)."""

    def near_tie(self, scores: Tensor) -> bool:
        """Whether the best two of [1, V] are too close to be told apart."""
        ...

    def logits(self, ids: Ints) -> Tensor:
        """[V] logits after `ids` [P], as one-token steps give them."""
        ...


class History:
    """Prompt and answer so far as the [1, P] tensor that processors and criteria are shown."""

    def __init__(self, input_ids: Tensor, limit: int) -> None:
        """Start with a prompt.

        Args:
            input_ids: [1, L] int64.
            limit: most ids that there will ever be.
        """
        self.length = input_ids.shape[1]
        self._limit = max(limit, self.length)
        self._make_room(input_ids)

    @property
    def ids(self) -> Tensor:
        """[1, P], a view."""
        return self._buffer[:, : self.length]

    def append(self, token: int) -> None:
        """Add a committed token."""
        if self.length == self._buffer.shape[1]:
            self._make_room(self._buffer)
        self._buffer[0, self.length] = token
        self.length += 1

    def follow(self, committed: Ints) -> Tensor:
        """Add what is missing of the committed ids [P]; returns them all, [1, P]."""
        for token in committed[self.length :]:
            self.append(int(token))
        return self.ids

    def _make_room(self, ids: Tensor) -> None:
        """Copy the ids to a longer buffer; a limit may be far beyond what any answer reaches."""
        known = ids.shape[1]
        self._buffer = ids.new_empty((1, min(self._limit, max(2 * known, known + FIRST_ROOM))))
        self._buffer[:, :known] = ids


class Chooser:
    """Chooses one request's tokens; implements `sequence.Draw`.

    Args:
        history: the request's ids.
        shape: processors and cuts, or None for the logits as they are.
        pick: how a token is taken from shaped scores.
        watch: told of every choice.
        plain: decides near ties, or None.
    """

    def __init__(
        self,
        history: History,
        shape: Shape | None = None,
        pick: Pick | None = None,
        watch: Callable[[Choice], None] | None = None,
        plain: Plain | None = None,
    ) -> None:
        self._history, self._shape, self._pick = history, shape, pick or greedy
        self._watch, self._plain = watch, plain

    def __call__(self, logits: Any, committed: Ints) -> int:
        """The token after `committed` [P] where the target's logits are [V]."""
        ids = self._history.follow(committed)
        given = torch.as_tensor(logits)
        raw, scores = self._shaped(ids, given)
        if self._plain is not None and self._plain.near_tie(scores):
            given = self._plain.logits(committed)
            raw, scores = self._shaped(ids, given)
        token = self._pick(scores, ids.shape[1])
        self._tell(Choice(given, raw, scores, token))
        return token

    def look(self, logits: Any, committed: Ints) -> Choice:
        """The same up to the choice, which somebody else makes and then passes to `note`."""
        given = torch.as_tensor(logits)
        raw, scores = self._shaped(self._history.follow(committed), given)
        return Choice(given, raw, scores, -1)

    def note(self, seen: Choice, token: int) -> None:
        """Tell who keeps a record what was chosen after `look`."""
        self._tell(seen._replace(token=token))

    def _tell(self, choice: Choice) -> None:
        if self._watch is not None:
            self._watch(choice)

    def _shaped(self, ids: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A float32 copy of the logits, and what the processors make of it."""
        raw = logits[None].to(ids.device, torch.float32, copy=True)
        if self._shape is None:
            return raw, raw
        shaped = self._shape(ids, raw)
        if not isinstance(shaped, Tensor) or shaped.shape != raw.shape:
            found = tuple(shaped.shape) if isinstance(shaped, Tensor) else type(shaped).__name__
            raise ConfigError(
                "logits_processors",
                found=f"they made {found} of scores of shape {tuple(raw.shape)}",
                needed="every processor returns scores of the shape that it is given",
                todo="Correct the processor.",
            )
        return raw, shaped


class Lots:
    """One request's side of verification by rejection: its distributions and its numbers.

    Args:
        chooser: processors, cuts and records.
        temperature: guesses are drawn at it too.
        generator: of the numbers that accept and reject; None is torch's global one.
        key: of the numbers that guesses are drawn with.
    """

    def __init__(
        self, chooser: Chooser, temperature: float, generator: torch.Generator | None, key: int
    ) -> None:
        self._chooser, self._temperature = chooser, temperature
        self._generator, self._key = generator, key
        self._seen: Choice | None = None

    def drawing(self, depth: int, chain: bool) -> Drawing:
        """How guesses of at most `depth` levels are drawn."""
        return Drawing(self._temperature, self._key, depth, chain)

    def probs(self, logits: Any, committed: Ints) -> Doubles:
        """[V] the target's distribution after `committed`, all options applied."""
        self._seen = self._chooser.look(logits, committed)
        probs: Doubles = _probs(self._seen.scores[0].double()).cpu().numpy()
        return probs

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        device = "cpu" if self._generator is None else self._generator.device
        drawn = torch.rand(1, generator=self._generator, device=device, dtype=torch.float64)
        return float(drawn)

    def told(self, token: int) -> None:
        """What was chosen after the last `probs`."""
        if self._seen is not None:
            self._chooser.note(self._seen, token)
            self._seen = None


def greedy(scores: Tensor, _position: int) -> int:
    """The best token, the first of equals."""
    return int(scores.argmax(-1))


def from_stream(generator: torch.Generator | None) -> Pick:
    """Draws as `generate(do_sample=True)` does.

    Args:
        generator: None is torch's global one, as stock uses it.
    """

    def pick(scores: Tensor, _position: int) -> int:
        return int(torch.multinomial(_probs(scores), 1, generator=generator))

    return pick


def _probs(scores: Tensor) -> Tensor:
    """The distribution [..., V] of scores that tokens are drawn from.

    Raises:
        UnsupportedRequest: no token may follow, or a score is no number: there is none.
    """
    probs = scores.softmax(-1)
    if not probs.max() > 0:  # what is no number makes all others none
        raise UnsupportedRequest(
            "drawing the next token",
            found="no token that may follow, or scores that are not numbers",
            needed="at least one token with a finite score, and none above all numbers",
            todo="Loosen what forbids or favours tokens, or pass remove_invalid_values=True.",
        )
    return probs


def by_position(seed: int) -> Pick:
    """Draws with a number that (seed, position) alone fix: inverse transform sampling with one
    Philox block a position, in float64.
    """

    def pick(scores: Tensor, position: int) -> int:
        bits = np.random.Philox(key=seed, counter=[0, 0, 0, position])
        number = np.random.Generator(bits).random(1)
        return int(inverse_draw(_probs(scores.double()).cpu().numpy(), number)[0])

    return pick


def new_generator(seed: int | None, device: Any) -> torch.Generator:
    """A generator of one request's own; without a seed, one that no other request shares."""
    generator = torch.Generator(device)
    generator.manual_seed(secrets.randbits(63) if seed is None else seed)
    return generator


def draft_key(seed: int | None, generator: torch.Generator | None) -> int:
    """Of a request's draft numbers: fixed by its seed, or taken from its own generator."""
    if seed is not None:
        return seed
    if generator is not None:
        return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return secrets.randbits(63)


class LogprobReader:
    """Reads log-probabilities of chosen tokens off the target's own logits, before any option
    shaped them, so that they do not depend on how a token was chosen.

    Args:
        top: alternatives to report at each token.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self.entries: list[TokenLogprobs] = []

    def __call__(self, choice: Choice) -> None:
        """Note one choice."""
        values = choice.logits.float().log_softmax(-1)
        top: tuple[tuple[int, float], ...] = ()
        if self._top:
            best, ids = values.topk(min(self._top, len(values)))
            top = tuple(zip(ids.tolist(), best.tolist(), strict=True))
        self.entries.append(TokenLogprobs(choice.token, float(values[choice.token]), top))
