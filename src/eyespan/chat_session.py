"""Conversations that read every turn once: the cache of earlier turns is kept where the next prompt
begins with the same tokens, for plain and speculative decoding alike.

A conversation is its messages. Every prompt is made from all of them, as if nothing had been kept,
and answers are those of `engine.generate(messages, images)`; what was kept only saves reading
(`target/prefix.py` says how much). So an edit of an earlier turn needs no care: the beginning that
still fits stays, the rest is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

from eyespan.chat_stream import ChatStream, Told
from eyespan.closing import Closing
from eyespan.counts import whole
from eyespan.errors import ConfigError, InputError, UnsupportedRequest
from eyespan.sampling import fresh_options
from eyespan.target.features import FeatureMemory
from eyespan.target.images import Picture, open_pictures, picture_digest
from eyespan.target.video import Clip, Film, Video
from eyespan.types import Generation

if TYPE_CHECKING:
    from PIL.Image import Image

    from eyespan.generation import Engine
    from eyespan.target.prefix import Prefix

_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Said:
    """One message.

    Attributes:
        role: "system", "user" or "assistant".
        text: what was said.
        pictures: opened; they stand before the text.
        videos: sampled; they stand between the two.
        digests: one for each picture, then one for each video.
    """

    role: str
    text: str
    pictures: tuple[Image, ...] = ()
    videos: tuple[Clip, ...] = ()
    digests: tuple[bytes, ...] = field(default=(), repr=False)

    def message(self) -> dict[str, Any]:
        """In the transformers format."""
        parts: list[dict[str, str]] = [{"type": "image"} for _ in self.pictures]
        parts += [{"type": "video"} for _ in self.videos]
        return {"role": self.role, "content": [*parts, {"type": "text", "text": self.text}]}


class Chat(Closing["Chat"]):
    """A conversation with an engine's model; see `Engine.chat`. One thread uses it, and one answer
    is written at a time.

    Attributes:
        id: unique in this process; requests carry it.
    """

    def __init__(self, engine: Engine, system: str | None, options: dict[str, Any]) -> None:
        """See `Engine.chat`."""
        self._engine, self._options = engine, options
        self._said: tuple[Said, ...] = ()
        if system is not None:
            _check_text(system)
            self._said = (Said("system", system),)
        self._start()

    def _start(self) -> None:
        self.id = f"c{next(_NUMBERS)}"
        self._prefix: Prefix | None = None
        self._features: FeatureMemory | None = FeatureMemory()
        self._busy = Lock()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far, in the transformers format; a copy."""
        return [said.message() for said in self._said]

    @property
    def pictures(self) -> list[Image]:
        """The pictures of `messages`, in order."""
        return [picture for said in self._said for picture in said.pictures]

    @property
    def videos(self) -> list[Clip]:
        """The videos of `messages`, in order."""
        return [clip for said in self._said for clip in said.videos]

    def turn_videos(self, turn: int) -> list[Clip]:
        """The videos of one turn; see `edit` for how turns are counted.

        Raises:
            ConfigError: there is no such turn.
        """
        return list(self._said[self._place(turn)].videos)

    def turn_pictures(self, turn: int) -> list[Image]:
        """The pictures of one turn; see `edit` for how turns are counted.

        Raises:
            ConfigError: there is no such turn.
        """
        return list(self._said[self._place(turn)].pictures)

    @property
    def turns(self) -> int:
        """Questions that were answered."""
        return sum(said.role == "user" for said in self._said)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the next prompt may stand on."""
        return 0 if self._prefix is None else len(self._prefix)

    def say(
        self,
        text: str,
        images: Sequence[Picture] = (),
        *,
        at: int | None = None,
        videos: Sequence[Film | Video | Clip] = (),
        **options: Any,
    ) -> Generation:
        """Say something and wait for the whole answer; takes what `stream` takes."""
        with self.stream(text, images, at=at, videos=videos, **options) as answer:
            return answer.finish()

    def stream(
        self,
        text: str,
        images: Sequence[Picture] = (),
        *,
        at: int | None = None,
        videos: Sequence[Film | Video | Clip] = (),
        **options: Any,
    ) -> ChatStream:
        """Say something and read the answer while it is written.

        The conversation grows when the answer ends. Closed early, it keeps what was written; with
        nothing written yet, or after an error, it is as it was before.

        Args:
            text: what to say.
            images: pictures that stand before it.
            at: the turn, counted from 0 (or from the end, -1), that is said anew; it and all after
                it are dropped. None is a new turn.
            videos: videos that stand between the pictures and the text.
            **options: of `Engine.stream`, on top of the chat's own.

        Raises:
            UnsupportedRequest: another answer is still being written, or the chat is closed.
            InputError, ContextError, ConfigError, OutputError: before the first forward, and the
                conversation is as it was.
        """
        before = self._said if at is None else self._said[: self._place(at)]
        _check_text(text)
        pictures = tuple(open_pictures(images))
        clips = tuple(self._engine.target.open_videos(videos))
        if not text.strip() and not pictures and not clips:
            raise InputError(
                "a turn of a chat",
                found="no text and no image",
                needed="at least one of them is needed",
                todo="Say something.",
            )
        digests = (*map(picture_digest, pictures), *(clip.digest() for clip in clips))
        said = Said("user", text, pictures, clips, digests)
        return self._answer(before, said, options)

    def edit(
        self,
        turn: int,
        text: str,
        images: Sequence[Picture] | None = None,
        videos: Sequence[Film | Video | Clip] | None = None,
        **options: Any,
    ) -> Generation:
        """Say something else at an earlier turn: it and all after it are dropped, and it is
        answered anew.

        Args:
            turn: counted from 0, or from the end (-1 is the last).
            text: what to say instead.
            images: None keeps the turn's own.
            videos: None keeps the turn's own.
            **options: see `stream`.

        Raises:
            ConfigError: there is no such turn.
        """
        if images is None:
            images = self.turn_pictures(turn)
        if videos is None:
            videos = self.turn_videos(turn)
        return self.say(text, images, at=turn, videos=videos, **options)

    def rewind(self, turn: int) -> None:
        """Drop a turn and all after it; see `edit` for how turns are counted.

        Raises:
            ConfigError: there is no such turn.
            UnsupportedRequest: an answer is still being written.
        """
        with self._alone():
            self._said = self._said[: self._place(turn)]

    def fork(self) -> Chat:
        """A second conversation with the same past, which goes its own way. The memory of the past
        is shared until either grows.

        Raises:
            UnsupportedRequest: an answer is still being written.
        """
        with self._alone():
            second = Chat(self._engine, None, dict(self._options))
            second._said = self._said
            second._prefix = None if self._prefix is None else self._prefix.fork()
            second._features = self._memory.fork()
            return second

    def reset(self) -> None:
        """Forget everything but the system's message.

        Raises:
            UnsupportedRequest: an answer is still being written.
        """
        with self._alone():
            self._said = tuple(said for said in self._said if said.role == "system")
            self._start()

    def close(self) -> None:
        """Free the cache and the pictures. An answer that is still being written is not part of the
        conversation any more; its own cache goes with it.
        """
        self._said = ()
        self._prefix = self._features = None

    @property
    def _memory(self) -> FeatureMemory:
        if self._features is None:
            raise UnsupportedRequest(
                "a turn of a chat",
                found="the chat is closed",
                needed="an open one is needed",
                todo="Begin another with engine.chat().",
            )
        return self._features

    def _alone(self) -> _Busy:
        """Hold the conversation, which takes one answer at a time."""
        self._memory  # noqa: B018 - refuses a closed chat
        if not self._busy.acquire(blocking=False):
            raise UnsupportedRequest(
                "a second use of one chat",
                found="an answer is still being written",
                needed="a conversation goes one turn at a time",
                todo="Read the stream to its end or close it; or fork() the chat before.",
            )
        return _Busy(self._busy)

    def _place(self, turn: int) -> int:
        """Where a turn stands among the messages."""
        places = [at for at, said in enumerate(self._said) if said.role == "user"]
        place = whole(turn)
        if place is None or not -len(places) <= place < len(places):
            raise ConfigError(
                f"turn {turn!r:.40} of a chat",
                found=f"it has {len(places)}",
                needed=f"a whole number from {-len(places)} to {len(places) - 1}"
                if places
                else "a chat with at least one turn",
                todo="Count user turns from 0, or from the end.",
            )
        return places[place]

    def _answer(self, before: tuple[Said, ...], said: Said, options: dict[str, Any]) -> ChatStream:
        """Open a stream over the whole conversation."""
        asked = (*before, said)
        target = self._engine.target
        memory = self._memory
        with self._alone() as busy:
            pictures = [picture for each in asked for picture in each.pictures]
            digests = tuple(digest for each in asked for digest in each.digests)
            clips = [clip for each in asked for clip in each.videos]
            prompt = target.prepare([each.message() for each in asked], pictures, clips)
            if self._prefix is not None and not self._reads_all:
                prompt = target.resume(prompt, self._prefix, digests)
            told = Told(prompt, digests, () if self._prefix is None else self._prefix.marks)
            prompt = replace(
                prompt,
                features=memory,
                conversation=self.id,
                keep=None if self._reads_all else told,
            )
            stream = self._engine.stream(prompt, **{**fresh_options(self._options), **options})
            busy.stay()
        return ChatStream(self, stream, asked, told)

    @property
    def _reads_all(self) -> bool:
        """Whether the drafter reads states of the whole prompt, so that all of it must be run."""
        needs = self._engine.drafter.needs
        return bool(needs.hidden_layers) or needs.visual_tokens

    def _began(self) -> None:
        """The answer takes the cache over, so that two of them never stand in memory."""
        self._prefix = None

    def _ended(self, asked: tuple[Said, ...], told: Told, generation: Generation | None) -> None:
        """An answer has ended; None where it was an error or never began."""
        if self._features is not None and generation is not None:
            self._said = (*asked, Said("assistant", generation.text))
            if told.kept is not None:
                ids, cache = told.kept
                marks = [mark for mark in told.marks if mark.tokens <= generation.reused]
                self._prefix = self._engine.target.prefix_after(
                    told.prompt, ids, cache, pictures=told.digests, before=marks
                )
        self._busy.release()


class _Busy:
    """Gives a chat free again, unless the answer goes on."""

    def __init__(self, lock: Lock) -> None:
        self._lock: Lock | None = lock

    def stay(self) -> None:
        """Leave it taken."""
        self._lock = None

    def __enter__(self) -> _Busy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InputError(
            "a chat",
            found=f"a {type(text).__name__} instead of text",
            needed="text is needed; pictures go into images=",
            todo="Pass a string.",
        )
