"""`load()` and the engine that people hold: generate, stream, decode plainly, close."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import count, groupby
from pathlib import Path
from threading import Event, Lock
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

from eyespan.budget import Budget
from eyespan.cost import cost_curve
from eyespan.drafters import make_drafter
from eyespan.drafters.base import Bound, Drafter
from eyespan.engine import Decoder
from eyespan.errors import ConfigError, ContextError
from eyespan.policy import Policy
from eyespan.sequence import Running
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Message, Prompt
from eyespan.target.images import Picture, open_pictures
from eyespan.target.loading import load_target
from eyespan.target.probe import self_test
from eyespan.text import Piece, TextStream, check_stops
from eyespan.trace import Trace, TraceRecord
from eyespan.types import Cut, Generation, Request

MAX_NEW_TOKENS = 1_000_000


class Chunk(NamedTuple):
    """What one round added to an answer.

    Attributes:
        text: text that is now final; may lag behind the ids while a character or a possible
            stop string is incomplete.
        token_ids: ids committed this round.
        pieces: `text` cut by where its tokens came from.
    """

    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[Piece, ...]


def load(
    model: Any,
    drafter: str = "recap",
    dtype: Any = None,
    device: Any = None,
    budget: Budget = "auto",
    **drafter_options: Any,
) -> Engine:
    """Load a model and a drafter.

    Args:
        model: "demo", a folder, a hub id, or a live transformers model.
        drafter: a name of `eyespan.drafters.DRAFTERS`; "none" decodes plainly.
        dtype: torch dtype or its name; None is float32 on a CPU, the checkpoint's own elsewhere.
        device: torch device or its name; None is CUDA when there is one.
        budget: "auto" (never knowingly slower than plain decoding), "fixed" (the method's
            published tree size) or the most nodes that "auto" may use.
        **drafter_options: fields of the drafter's config.

    Raises:
        ConfigError: unknown drafter, option or budget.
        InputError: the model folder lacks a part.
        UnsupportedTarget: the model cannot be verified in trees.
    """
    target = load_target(model, dtype=dtype, device=device)
    return Engine(target, drafter, budget=budget, **drafter_options)


class Engine:
    """A target, a drafter and the loop. Threads may share it; rounds run one at a time.

    Args:
        target: what `load_target` returned.
        drafter: a name, or a drafter object.
        budget: see `load`.
        **drafter_options: fields of the drafter's config, when `drafter` is a name.

    Raises:
        ConfigError, UnsupportedTarget: see `load`.
    """

    def __init__(
        self,
        target: HuggingFaceTarget,
        drafter: str | Drafter = "recap",
        *,
        budget: Budget = "auto",
        **drafter_options: Any,
    ) -> None:
        self.target = target
        self.drafter = (
            make_drafter(drafter, vocab_size=target.info.vocab_size, **drafter_options)
            if isinstance(drafter, str)
            else drafter
        )
        if isinstance(self.drafter, Bound):
            self.drafter.bind(target)
        policy = Policy(budget, self.drafter)
        if policy.ask > 0:
            self_test(target)
        if policy.auto:
            policy = Policy(budget, self.drafter, cost_curve(target, self.drafter.needs))
        self.policy = policy
        self.decoder = Decoder(target, self.drafter, policy)
        self._lock = Lock()
        self._numbers = count()

    def generate(
        self,
        prompt: str | Sequence[Message],
        images: Sequence[Picture] = (),
        **options: Any,
    ) -> Generation:
        """Answer a prompt; takes what `stream` takes and returns when the answer is whole."""
        with self.stream(prompt, images, **options) as stream:
            return stream.finish()

    def stream(
        self,
        prompt: str | Sequence[Message],
        images: Sequence[Picture] = (),
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        scope: str | None = None,
        trace: str | Path | Trace | None = None,
        cancel: Event | None = None,
    ) -> Stream:
        """Answer a prompt while it is written.

        Args:
            prompt: a user's text, or chat messages in the transformers format.
            images: files or pictures, in the order of the prompt's placeholders (before the text
                when the prompt is a plain string).
            max_new_tokens: exact upper bound; cut further where the model's context ends.
            stop: strings that end the answer and are not part of it.
            scope: memory scope; requests learn from each other only inside one scope.
            trace: a file to write (anew), or an open `Trace` that takes many requests.
            cancel: set it from anywhere to end the answer after the current round.

        Raises:
            InputError, ContextError, ConfigError, OutputError: before the first forward.
        """
        started = perf_counter()
        _check_max_new_tokens(max_new_tokens)
        stops = check_stops(stop)
        _check_scope(scope)
        inputs = self.target.prepare(prompt, open_pictures(images))
        request = self._request(inputs, max_new_tokens, scope)
        sink = Trace(trace) if isinstance(trace, (str, Path)) else trace
        return Stream(
            self,
            request,
            inputs,
            stops,
            encode=perf_counter() - started,
            trace=sink,
            close_trace=sink is not trace,
            cancel=cancel,
        )

    def reset(self) -> None:
        """Forget what the drafter shares between requests."""
        with self._lock:
            self.drafter.reset()

    def _request(self, inputs: Prompt, max_new_tokens: int, scope: str | None) -> Request:
        info, length = self.target.info, len(inputs.ids)
        if length >= info.max_context:
            raise ContextError(
                f"a prompt of {length} tokens",
                found="it fills the model's context",
                needed=f"less than {info.max_context} tokens",
                todo="Shorten the prompt, or use fewer or smaller images.",
            )
        return Request(
            id=f"r{next(self._numbers)}",
            prompt_ids=inputs.ids,
            media_ids=info.media_ids,
            eos_ids=info.eos_ids,
            max_new_tokens=min(max_new_tokens, info.max_context - length),
            scope=scope,
        )


class Stream:
    """An answer being written: iterate it for chunks; `generation` is there once it has ended.

    Closing it early (or leaving its `with` block) cancels the request and frees everything.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        inputs: Prompt,
        stops: tuple[str, ...],
        *,
        encode: float,
        trace: Trace | None,
        close_trace: bool,
        cancel: Event | None,
    ) -> None:
        self._engine, self._cancel = engine, cancel
        self._text = TextStream(engine.target.decode, stops)
        self._watching = bool(stops)
        self._unread: list[tuple[int, str]] = []  # committed (id, source), text not made yet
        self._pieces: list[Piece] = []
        self._trace, self._close_trace = trace, close_trace
        self._record = TraceRecord(engine, request) if trace else None
        self._running = Running(request, on_token=self._on_token, observer=self._record)
        self._seconds = {"encode": encode, "prefill": 0.0, "decode": 0.0}
        self._shown = 0
        self._reading = True
        self._generation: Generation | None = None
        self._chunks = self._run(inputs)

    @property
    def generation(self) -> Generation:
        """The finished (or cancelled) answer.

        Raises:
            RuntimeError: the answer has not ended yet.
        """
        if self._generation is None:
            raise RuntimeError("the answer has not ended: iterate the stream or close it first")
        return self._generation

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def finish(self) -> Generation:
        """Run to the end without looking at chunks; text is then decoded once."""
        self._reading = False
        for _ in self._chunks:
            pass
        return self.generation

    def close(self) -> None:
        """End the request: what was committed stays, its cache is freed."""
        self._chunks.close()
        if self._generation is None:
            self._end()

    def _run(self, inputs: Prompt) -> Generator[Chunk, None, None]:
        decoder, running = self._engine.decoder, self._running
        try:
            with self._timed("prefill"):
                decoder.start(running, inputs)
            yield self._chunk()
            while running.finish is None and not (self._cancel and self._cancel.is_set()):
                with self._timed("decode"):
                    decoder.step([running])
                yield self._chunk()
            self._read(by_source=self._reading)
            rest = (*self._pieces, *self._text.finish())
            if rest:
                yield Chunk("".join(piece.text for piece in rest), (), rest)
        finally:
            self._end()

    def _on_token(self, token: int, source: str) -> Cut | None:
        if not self._watching:
            self._unread.append((token, source))
            return None
        self._pieces += self._text.push([token], source)
        return "stop" if self._text.stopped else None

    def _read(self, *, by_source: bool) -> None:
        """Make text of the unread ids: source by source for a reader, else in one go."""
        for source, run in groupby(self._unread, key=lambda pair: pair[1] if by_source else ""):
            self._pieces += self._text.push([token for token, _ in run], source)
        self._unread.clear()

    def _chunk(self) -> Chunk:
        if self._reading:
            self._read(by_source=True)
        pieces, self._pieces = tuple(self._pieces), []
        ids = tuple(int(token) for token in self._running.output_ids[self._shown :])
        self._shown += len(ids)
        return Chunk("".join(piece.text for piece in pieces), ids, pieces)

    def _timed(self, stage: str) -> _Timed:
        return _Timed(self._seconds, stage, self._engine._lock)

    def _end(self) -> None:
        """Build the result and let go of everything else."""
        running, counters = self._running, self._running.counters
        if running.state is not None:
            running.state.close()
            running.state = running.session = None
        self._read(by_source=False)
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
            plain_steps=dict(counters.plain_steps),
        )
        if self._record and self._trace:
            try:
                self._trace.write(self._record.lines(self._generation))
            finally:
                if self._close_trace:
                    self._trace.close()


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


def _check_scope(scope: object) -> None:
    if scope is not None and not isinstance(scope, str):
        raise ConfigError(
            f"scope={scope!r:.40}",
            found="not a name",
            needed="text, or None for the engine's own scope",
            todo="Pass the name of a memory that requests may share.",
        )


def _check_max_new_tokens(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_NEW_TOKENS:
        raise ConfigError(
            f"max_new_tokens={value!r}",
            found="not a usable number of tokens",
            needed=f"a whole number from 1 to {MAX_NEW_TOKENS:,}",
            todo="Pass how long the answer may become.",
        )
