"""One request's answer while it grows: committed tokens become chunks, then a `Generation`.

Whoever steps it is somebody else: a `Stream` steps its own answer, a `Scheduler` those of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from threading import Event, Lock
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from eyespan.errors import unknown_name
from eyespan.target.base import Prompt
from eyespan.target.cache import length as cached_tokens
from eyespan.text import Piece, TextStream
from eyespan.trace import Trace, TraceRecord
from eyespan.types import Cut, Generation, Request, TokenLogprobs

if TYPE_CHECKING:
    from eyespan.choosing import Choosing
    from eyespan.generation import Engine

Granularity: TypeAlias = Literal["token", "block"]


class Chunk(NamedTuple):
    """What was added to an answer: by one round, or by one token (`granularity`).

    Attributes:
        text: text that is now final; may lag behind the ids while a character or a possible
            stop string is incomplete.
        token_ids: ids committed.
        pieces: `text` cut by where its tokens came from.
        logprobs: one entry a token where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[Piece, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class _Said(NamedTuple):
    """A committed token, where it came from and, where stop strings watch, its text."""

    id: int
    source: str
    pieces: list[Piece] | None


class Answer:
    """What one request has said so far. One thread at a time works on it.

    Args:
        engine: that runs the request.
        request: its bounds.
        inputs: its prompt.
        stops: strings that end it.
        choosing: how its tokens are chosen.
        encode: seconds that making the inputs took.
        trace: takes the request's lines when it ends, or None.
        close_trace: close the trace then.
        cancel: ends the answer after the round in which it was set.
        by_token: a chunk a token instead of one a round.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        inputs: Prompt,
        stops: tuple[str, ...],
        choosing: Choosing,
        *,
        encode: float,
        trace: Trace | None,
        close_trace: bool,
        cancel: Event | None,
        by_token: bool,
    ) -> None:
        self._engine, self._cancel = engine, cancel
        self._text = TextStream(engine.target.decode, stops)
        self._watching = bool(stops)
        self._by_token = by_token
        self._said: list[_Said] = []  # committed, no chunk holds them yet
        self._trace, self._close_trace = trace, close_trace
        greedy = choosing.is_greedy
        self._record = TraceRecord(engine, request, greedy=greedy) if trace else None
        self._choosing = choosing
        self._running = choosing.run(request, on_token=self._on_token, observer=self._record)
        self._seconds = {"encode": encode, "prefill": 0.0, "decode": 0.0}
        self._shown = 0
        self._keep = inputs.keep
        self._reused = 0 if inputs.cache is None else cached_tokens(inputs.cache)
        self._reading = True
        self._generation: Generation | None = None
        self._inputs: Prompt | None = inputs

    @property
    def generation(self) -> Generation:
        """The finished (or cancelled) answer.

        Raises:
            RuntimeError: the answer has not ended yet.
        """
        if self._generation is None:
            raise RuntimeError("the answer has not ended: iterate the stream or close it first")
        return self._generation

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be committed: it has ended, or was cancelled."""
        return self._running.finish is not None or bool(self._cancel and self._cancel.is_set())

    def _start(self) -> None:
        """Read the prompt, once; commits the first token."""
        inputs, self._inputs = self._inputs, None
        if inputs is None:
            raise RuntimeError("the prompt has been read already")
        with self._timed("prefill"):
            self._engine.decoder.start(self._running, inputs)

    def _on_token(self, token: int, source: str) -> Cut | None:
        """With stop strings text is made token by token, else when a chunk or the end needs it."""
        pieces = self._text.push([token], source) if self._watching else None
        self._said.append(_Said(token, source, pieces))
        return "stop" if self._text.stopped else None

    def _new_chunks(self) -> Iterator[Chunk]:
        """What the last round added, for a reader."""
        while self._reading and self._said:
            count = 1 if self._by_token else len(self._said)
            said, self._said = self._said[:count], self._said[count:]
            pieces = self._pieces(said)
            logprobs = self._choosing.logprobs[self._shown : self._shown + count]
            self._shown += count
            ids = tuple(token.id for token in said)
            yield Chunk("".join(piece.text for piece in pieces), ids, pieces, tuple(logprobs))

    def _pieces(self, said: list[_Said]) -> tuple[Piece, ...]:
        """The text of committed tokens, cut by source."""
        pieces: list[Piece] = []
        for source, run in groupby(said, key=lambda token: token.source):
            tokens = list(run)
            if self._watching:
                pieces += [piece for token in tokens for piece in token.pieces or ()]
            else:
                pieces += self._text.push([token.id for token in tokens], source)
        return tuple(pieces)

    def _last_chunk(self) -> Iterator[Chunk]:
        """Text that was held back until the end."""
        if self._reading and (rest := tuple(self._text.finish())):
            yield Chunk("".join(piece.text for piece in rest), (), rest)

    def _timed(self, stage: str) -> _Timed:
        return _Timed(self._seconds, stage, self._engine.lock)

    def _end(self) -> None:
        """Build the result and let go of everything else."""
        running, counters = self._running, self._running.counters
        if running.state is not None:
            self._leave_cache()
            running.state = running.session = None
        self._choosing.close()
        running.draw = running.prune = running.fault = None  # an error's traceback holds frames
        self._inputs = None
        self._text.push([token.id for token in self._said if token.pieces is None], "target")
        self._text.finish()
        self._generation = Generation(
            text=self._text.released,
            token_ids=tuple(int(token) for token in running.output_ids),
            finish=running.finish or "cancelled",
            forwards=counters.forwards,
            drafted=counters.drafted,
            accepted=counters.accepted,
            accepted_by_depth=tuple(counters.accepted_by_depth),
            drafted_by_depth=tuple(counters.drafted_by_depth),
            seconds=dict(self._seconds),
            stage_ms=dict(counters.stage_ms),
            stage_cpu_ms=dict(counters.stage_cpu_ms),
            plain_steps=dict(counters.plain_steps),
            reused=self._reused,
            **self._choosing.report(),
        )
        if self._record and self._trace:
            try:
                self._trace.write(self._record.lines(self._generation))
            finally:
                if self._close_trace:
                    self._trace.close()

    def _leave_cache(self) -> None:
        """Hand the cache to whoever goes on with it, or free it. Never by a forward: garbage
        collection may get here in the middle of another request's round, where the lock is taken.
        """
        running, keep = self._running, self._keep
        state, self._keep = running.state, None
        if keep is None or state.pending or len(state.owed):
            state.close()
            return
        ids = running.ids[: state.length].copy()
        keep(self._engine.target.release(state), ids)


class _Timed:
    """Holds the engine's lock and adds the time inside to one stage."""

    def __init__(self, seconds: dict[str, float], stage: str, lock: Lock) -> None:
        self._seconds, self._stage, self._lock = seconds, stage, lock

    def __enter__(self) -> None:
        self._lock.acquire()
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._stage] += perf_counter() - self._started
        self._lock.release()


def check_granularity(value: object) -> None:
    """Refuse what is no granularity.

    Raises:
        ConfigError: neither "token" nor "block".
    """
    if value not in ("token", "block"):
        raise unknown_name("granularity", str(value), ("token", "block"))
