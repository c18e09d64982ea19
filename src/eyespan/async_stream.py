"""A stream for asyncio: the event loop stays free while the model works in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING

from eyespan.types import Generation

if TYPE_CHECKING:
    from eyespan.answer import Chunk
    from eyespan.stream import Stream


class AsyncStream:
    """An answer being written: `async for chunk in engine.astream(...)`.

    Leaving its `async with` block, or cancelling the task that waits for a chunk, ends the request
    after the round that is running and frees everything. A loop that is left with `break` should
    stand in an `async with` block; otherwise the request ends when the object is collected.

    Args:
        begin: makes the stream; runs in the thread too, since pictures are read there.
        cancel: the stream's own event.
    """

    def __init__(self, begin: Callable[[], Stream], cancel: Event) -> None:
        self._begin, self._cancel = begin, cancel
        self._stream: Stream | None = None
        # One thread: rounds of a request never overlap, and closing waits for the running one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="eyespan")

    @property
    def generation(self) -> Generation:
        """The finished (or cancelled) answer.

        Raises:
            RuntimeError: the answer has not ended yet.
        """
        if self._stream is None:
            raise RuntimeError("the answer has not begun: iterate the stream first")
        return self._stream.generation

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        running = self._thread.submit(self._next)
        try:
            chunk = await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        if chunk is None:
            self._thread.shutdown(wait=False)
            raise StopAsyncIteration
        return chunk

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the request after the running round; closing twice is harmless."""
        self._cancel.set()
        try:
            closing: Future[None] = self._thread.submit(self._close)
        except RuntimeError:  # the thread is gone: the answer has ended
            return
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    def _next(self) -> Chunk | None:
        if self._stream is None:
            self._stream = self._begin()
        return next(self._stream, None)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
