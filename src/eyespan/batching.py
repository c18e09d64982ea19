"""Many requests on one engine: a batch that requests join and leave while it runs.

    with Scheduler(engine, max_rows=8) as scheduler:
        tickets = [scheduler.submit(question, [picture]) for question, picture in work]
        while scheduler.step():
            pass
    print(tickets[0].generation.text)

A request waits until a row is free, then its prompt is read and its row takes part in every round
until it ends, fails or is cancelled. Rows share forwards and nothing else: tokens, numbers,
processors, limits and memory scopes are the request's own, so each answer is its solo run's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event, Lock
from time import perf_counter
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, NamedTuple

from eyespan.answer import Answer, Chunk
from eyespan.closing import Closing
from eyespan.counts import whole
from eyespan.errors import ConfigError, Overloaded
from eyespan.sampling import Sampling, fresh_options
from eyespan.target.base import Message, Prompt
from eyespan.target.images import Picture
from eyespan.types import Generation

if TYPE_CHECKING:
    from eyespan.generation import Engine

log = logging.getLogger("eyespan")

MAX_ROWS = 256
MAX_SAMPLES = 128
"""Most answers to one prompt."""


class Ticket(Answer):
    """A request given to a scheduler.

    Attributes:
        error: what ended it early (its picture, its processor, a failed pass), or None.
    """

    error: Exception | None = None
    _on_chunk: Callable[[Chunk], None] | None = None
    _on_end: Callable[[Ticket], None] | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, failed or was cancelled, and everything is freed."""
        return self._generation is not None

    @property
    def generation(self) -> Generation:
        """The finished (or cancelled) answer.

        Raises:
            RuntimeError: the answer has not ended yet.
            Exception: `error`, where there is one.
        """
        if self.error is not None:
            raise self.error
        return super().generation

    def cancel(self) -> None:
        """End it within one step; may be called from any thread."""
        if self._cancel is None:
            self._cancel = Event()
        self._cancel.set()

    def _watch(
        self,
        on_chunk: Callable[[Chunk], None] | None,
        on_end: Callable[[Ticket], None] | None,
    ) -> None:
        self._on_chunk, self._on_end = on_chunk, on_end
        self._reading = on_chunk is not None

    def _join(self) -> None:
        """Read the prompt; a failure is this request's own."""
        try:
            self._start()
        except Exception as error:
            self._finish(error)
        else:
            self._tell()

    def _tell(self) -> None:
        """Hand out what was committed; end where it is over."""
        try:
            self._hand_out(self._new_chunks())
            if self.is_over:
                self._hand_out(self._last_chunk())
        except Exception as error:
            self._finish(error)
        else:
            if self.is_over:
                self._finish()

    def _hand_out(self, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            if self._on_chunk is not None:
                self._on_chunk(chunk)

    def _finish(self, error: Exception | None = None) -> None:
        """End, by an error or not; its traceback stays readable and holds no tensors."""
        if error is not None:
            self._keep = None
        try:
            self._end()
        except Exception as unwritten:  # a full disk under its trace
            error = error or unwritten
        if error is not None:
            log.warning("request %s failed: %r", self._running.request.id, error)
            clear_frames(error.__traceback__)
            self.error = error
        if self._on_end is not None:
            try:
                self._on_end(self)
            except Exception:
                log.exception("on_end of request %s failed", self._running.request.id)
        self._on_chunk = self._on_end = None


class Scheduler(Closing["Scheduler"]):
    """Runs requests in one batch of bounded size. Any thread submits and cancels, one steps.

    Args:
        engine: whose target, drafter and lock are used; streams may run beside it.
        max_rows: requests that run at once; each holds a cache.
        max_waiting: requests that may wait for a row; each holds its pictures.

    Raises:
        ConfigError: a bound that is no positive number.
    """

    def __init__(self, engine: Engine, *, max_rows: int = 8, max_waiting: int = 1024) -> None:
        self._engine = engine
        self._max_rows = check_bound("max_rows", max_rows, MAX_ROWS)
        self._max_waiting = check_bound("max_waiting", max_waiting, 2**31)
        self._rows: list[Ticket] = []
        self._waiting: deque[Ticket] = deque()
        self._lock = Lock()  # guards the queue alone, so that submitting never waits for a pass

    @property
    def running(self) -> int:
        """Requests that have a row."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._waiting)

    @property
    def has_free_row(self) -> bool:
        """Whether one more request would begin with the next step."""
        return self.running + self.waiting < self._max_rows

    def submit(
        self,
        prompt: str | Sequence[Message] | Prompt,
        images: Sequence[Picture] = (),
        *,
        on_chunk: Callable[[Chunk], None] | None = None,
        on_end: Callable[[Ticket], None] | None = None,
        **options: Any,
    ) -> Ticket:
        """Check a request and let it wait for a row.

        Args:
            prompt: see `Engine.stream`.
            images: see `Engine.stream`.
            **options: see `Engine.stream`.
            on_chunk: told what the answer gained, from the thread that steps; what it raises
                ends this request.
            on_end: told once when the request has ended, failed or was cancelled.

        Raises:
            Overloaded: too many wait already.
            EyespanError: what `Engine.stream` refuses.
        """
        if self.waiting >= self._max_waiting:
            raise self._overloaded()
        ticket = self._engine._open(Ticket, prompt, images, **options)
        ticket._watch(on_chunk, on_end)
        with self._lock:
            if self.waiting >= self._max_waiting:
                raise self._overloaded()
            self._waiting.append(ticket)
        return ticket

    def step(self) -> bool:
        """One round: let requests go and come, run one pass over all rows, tell what was said.

        Returns:
            Whether any request is left.
        """
        for ticket in self._leaving():
            ticket._tell()
        self._rows = [ticket for ticket in self._rows if not ticket.done]
        while len(self._rows) < self._max_rows and (new := self._next()) is not None:
            new._join()
            if not new.done:
                self._rows.append(new)
        if self._rows:
            self._round()
            for ticket in self._rows:
                if not ticket.done:
                    ticket._tell()
            self._rows = [ticket for ticket in self._rows if not ticket.done]
        return bool(self._rows or self._waiting)

    def drain(self) -> None:
        """Step until nothing is left."""
        while self.step():
            pass

    def close(self) -> None:
        """Cancel everything and free it."""
        with self._lock:
            left, self._waiting = [*self._rows, *self._waiting], deque()
        self._rows = []
        for ticket in left:
            ticket.cancel()
            if not ticket.done:
                ticket._tell()

    def _leaving(self) -> list[Ticket]:
        """Requests that were cancelled, taken out of the queue where they wait."""
        with self._lock:
            gone = [ticket for ticket in self._waiting if ticket.is_over]
            if gone:
                self._waiting = deque(each for each in self._waiting if each not in gone)
        return gone + [ticket for ticket in self._rows if ticket.is_over]

    def _next(self) -> Ticket | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _round(self) -> None:
        """One pass over all rows. What one request's own code raises ends that request; what the
        target raises (memory, a lost device) ends all that were in the pass.
        """
        rows = self._rows
        failed = self._step([ticket._running for ticket in rows])
        if failed is None:
            return
        faults = [ticket._running.fault for ticket in rows]
        for ticket, fault in zip(rows, faults, strict=True):
            if not any(faults) or fault is not None:
                ticket._finish(fault or failed)

    def _step(self, batch: list[Any]) -> Exception | None:
        """A round on the engine; a frame of its own, so that a traceback can be cleared."""
        with self._engine.lock:
            started = perf_counter()
            try:
                self._engine.decoder.step(batch)
            except Exception as error:
                return error
            finally:
                spent = perf_counter() - started
                for ticket in self._rows:
                    ticket._seconds["decode"] += spent
        return None

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            "one more request",
            found=f"{self.waiting} wait already",
            needed=f"at most {self._max_waiting} may",
            todo="Try again later, or allow more with max_waiting.",
        )


def check_bound(name: str, value: object, most: int) -> int:
    """A count, validated.

    Raises:
        ConfigError: not a whole number from 1 to `most`.
    """
    bound = whole(value)
    if bound is None or not 0 < bound <= most:
        raise ConfigError(
            f"{name}={value!r:.40}",
            found="not a usable count",
            needed=f"a whole number from 1 to {most:,}",
            todo="Pass how many there may be.",
        )
    return bound


class Asked(NamedTuple):
    """One request of a list."""

    prompt: str | Sequence[Message] | Prompt
    images: Sequence[Picture]
    options: dict[str, Any]


def spread(
    prompts: Sequence[str | Sequence[Message] | Prompt],
    images: Sequence[Sequence[Picture]] | None,
    n: int,
    each: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
    sampling: Sampling,
    videos: Sequence[Sequence[Any]] | None = None,
) -> list[Asked]:
    """The single requests of `Engine.generate_many`, `n` to a prompt.

    Raises:
        ConfigError: lists of different lengths, one prompt instead of a list, or one generator
            for several requests.
    """
    n = check_bound("n", n, MAX_SAMPLES)
    if isinstance(prompts, (str, Prompt)) or (prompts and isinstance(prompts[0], Mapping)):
        raise ConfigError(
            "prompts",
            found="one prompt",
            needed="a list of prompts",
            todo="Wrap it in a list, or use `generate`.",
        )
    count = len(prompts)
    for name, given in (("images", images), ("videos", videos), ("each", each)):
        if given is not None and len(given) != count:
            raise ConfigError(
                f"{len(given)} entries of {name}",
                found=f"{count} prompts",
                needed="one entry for each prompt, empty ones where there is nothing",
                todo="Pass lists of equal length.",
            )
    for own in each or ():
        if not isinstance(own, Mapping):
            raise ConfigError(
                "each",
                found=f"a {type(own).__name__} among its entries",
                needed="a mapping of options for each prompt, empty ones where there is nothing",
                todo="Write each=[{...}, ...].",
            )
    asked = []
    for at, prompt in enumerate(prompts):
        filmed = {"videos": videos[at]} if videos is not None else {}
        own = {**options, **filmed, **(each[at] if each is not None else {})}
        base = own.get("sampling", sampling)
        seed, generator = (
            own.get(name, getattr(base, name, None)) for name in ("seed", "generator")
        )
        if generator is not None and count * n > 1:
            raise ConfigError(
                "generator",
                found=f"one for {count * n} answers",
                needed="numbers that do not depend on who else is in the batch",
                todo="Pass a seed; every answer then has a generator of its own.",
            )
        for sample in range(n):
            mine = fresh_options({**own, "sampling": base})
            if (first := whole(seed)) is not None:
                mine["seed"] = first + sample
            asked.append(Asked(prompt, images[at] if images is not None else (), mine))
    return asked
