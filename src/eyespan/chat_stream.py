"""An answer of a conversation while it is written: read like any stream; when it is over, the
conversation is told once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eyespan.answer import Chunk
from eyespan.closing import Closing
from eyespan.stream import Stream
from eyespan.types import Generation, Ints

if TYPE_CHECKING:
    from eyespan.chat_session import Chat, Said
    from eyespan.target.base import Prompt
    from eyespan.target.prefix import Mark


class Told:
    """Waits for the cache of an answer."""

    def __init__(self, prompt: Prompt, digests: tuple[bytes, ...], marks: Sequence[Mark]) -> None:
        # pixels and the cache are the stream's
        self.prompt = replace(prompt, media={}, cache=None)
        self.digests, self.marks = digests, marks
        self.kept: tuple[Ints, Any] | None = None

    def __call__(self, cache: Any, ids: Ints) -> None:
        self.kept = (ids, cache)


class ChatStream(Closing["ChatStream"]):
    """An answer of a chat being written; used like a `Stream`. Dropping it closes it."""

    def __init__(self, chat: Chat, stream: Stream, asked: tuple[Said, ...], told: Told) -> None:
        self._turn = _Turn(chat, stream, asked, told)
        # a stream and its generator refer to each other: only this object's end is seen at once
        self._closer = weakref.finalize(self, self._turn.close)
        self._closer.atexit = False

    @property
    def generation(self) -> Generation:
        """The finished (or cancelled) answer.

        Raises:
            RuntimeError: the answer has not ended yet.
        """
        return self._turn.stream.generation

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        chunk: Chunk = self._turn.run(next)
        return chunk

    def finish(self) -> Generation:
        """Run to the end without looking at chunks."""
        generation: Generation = self._turn.run(Stream.finish)
        self._turn.end(generation)
        return generation

    def close(self) -> None:
        """End the answer here: what was written stays part of the conversation."""
        self._closer()


class _Turn:
    """What a `ChatStream` runs; tells the chat once when it is over."""

    def __init__(self, chat: Chat, stream: Stream, asked: tuple[Said, ...], told: Told) -> None:
        self.stream = stream
        self._chat: Chat | None = chat
        self._asked, self._told = asked, told
        self._began = False

    def run(self, step: Callable[[Stream], Any]) -> Any:
        """Advance the stream."""
        if not self._began and self._chat is not None:
            self._began = True
            self._chat._began()
        try:
            return step(self.stream)
        except StopIteration:
            self.end(self.stream.generation)
            raise
        except KeyboardInterrupt:  # its reader has had enough: what was written stays
            self.close()
            raise
        except BaseException:
            self.end(None)
            raise

    def close(self) -> None:
        """End early."""
        self.stream.close()
        generation = self.stream.generation
        self.end(generation if generation.token_ids else None)

    def end(self, generation: Generation | None) -> None:
        """Tell the chat, once."""
        if self._chat is not None:
            chat, self._chat = self._chat, None
            chat._ended(self._asked, self._told, generation)
            self._told.kept = None
