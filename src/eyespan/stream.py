"""An answer that is stepped by whoever reads it: chunks, then the finished `Generation`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from eyespan.answer import Answer, Chunk
from eyespan.closing import Closing
from eyespan.types import Generation


class Stream(Answer, Closing["Stream"]):
    """An answer being written: iterate it for chunks; `generation` is there once it has ended.

    Closing it early (or leaving its `with` block) cancels the request and frees everything.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what `Answer` takes; nothing runs before the first chunk is asked for."""
        super().__init__(*args, **kwargs)
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

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

    def _run(self) -> Generator[Chunk, None, None]:
        try:
            self._start()
            yield from self._new_chunks()
            while not self.is_over:
                with self._timed("decode"):
                    self._engine.decoder.step([self._running])
                yield from self._new_chunks()
            yield from self._last_chunk()
        except GeneratorExit:  # closed between two rounds: its cache is whole
            raise
        except BaseException:
            self._keep = None
            raise
        finally:
            self._end()
