"""Text that grows with its ids and is never broken: not inside a character, not inside a stop
string, and the same however many ids arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from eyespan.errors import ConfigError

MAX_STOPS = 64
MAX_STOP_LENGTH = 1000
LONGEST_CHARACTER = 4
"""Most ids that one character can take: the bytes of its longest UTF-8 form."""


class Piece(NamedTuple):
    """A stretch of finished text and where its token came from ("target" or a draft's origin)."""

    text: str
    origin: str


def check_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings of a request, validated.

    Raises:
        ConfigError: an empty string, more than 64, or one of over 1,000 characters.
    """
    if isinstance(stop, str) or not isinstance(stop, Iterable):
        stops: tuple[Any, ...] = () if stop is None else (stop,)
    else:
        stops = tuple(stop)
    for text in stops:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH:
            raise ConfigError(
                f"stop string {text!r:.40}",
                found="it is empty, too long or not text",
                needed=f"1 to {MAX_STOP_LENGTH} characters each",
                todo="Drop it or shorten it.",
            )
    if len(stops) > MAX_STOPS:
        raise ConfigError(
            "stop strings",
            found=f"{len(stops)} of them",
            needed=f"at most {MAX_STOPS}",
            todo="Pass fewer.",
        )
    return stops


class TextStream:
    """Turns ids into text as they come and finds stop strings.

    Args:
        decode: ids -> text, special tokens left out.
        stops: strings that end the text; none of them is ever released.

    A push decodes a few ids only: those whose text is not final yet, behind the last few that are.
    Text is held back while it ends in half a character or could begin a stop. With stop strings,
    push one id at a time: the answer ends at the id that completes one.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: tuple[str, ...] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._context: list[int] = []  # ids whose text is final; some decoders look back at them
        self._known = ""  # their text
        self._pending: list[int] = []  # ids whose text is not
        self._held: list[Piece] = []
        self.released = ""
        self.stopped = False

    def push(self, ids: Iterable[int], origin: str) -> list[Piece]:
        """Add ids of one origin; returns what can be shown now. After a stop that is nothing."""
        fresh = list(ids)
        if len(fresh) > 1 and "\ufffd" in self._decode([*self._context, *self._pending, *fresh]):
            for token in fresh:  # broken bytes: where they end may depend on when one looks
                self._add([token], origin)
        elif fresh:
            self._add(fresh, origin)
        return self._release(final=False)

    def finish(self) -> list[Piece]:
        """Release what was held back: no further id can complete a character or a stop."""
        if self.stopped:
            return []
        if self._pending:
            self._settle(len(self._pending), self._text(len(self._pending)), "target")
        return self._release(final=True)

    def _add(self, ids: list[int], origin: str) -> None:
        """Take ids in and settle those that no later id can change."""
        self._pending += ids
        if self._settle_if_whole(len(self._pending), origin):
            return
        if not self._decode([self._pending[-1]] * 2):  # no text, as special tokens have none
            del self._pending[-1]
        while len(self._pending) > LONGEST_CHARACTER:
            # What has not become a character by now never will: let go of its first part, which
            # ends where one more id brings one more sign. What follows may be whole.
            count = 1
            while count < LONGEST_CHARACTER and len(self._text(count + 1)) == len(
                self._text(count)
            ):
                count += 1
            self._settle(count, self._text(count), origin, keep_context=True)
            left = range(len(self._pending), 0, -1)
            any(self._settle_if_whole(count, origin) for count in left)

    def _settle_if_whole(self, count: int, origin: str) -> bool:
        """Settle the first pending ids unless they end in half a character or bring no text."""
        text = self._text(count)
        if not text.startswith(self._known):  # a decoder that takes back a run of bytes as a whole
            self._context, self._known = [], ""
            text = self._text(count)
        if len(text) <= len(self._known) or text.endswith("\ufffd"):
            return False
        self._settle(count, text, origin)
        return True

    def _text(self, count: int) -> str:
        """Text of the context and the first `count` pending ids."""
        return self._decode([*self._context, *self._pending[:count]])

    def _settle(self, count: int, text: str, origin: str, *, keep_context: bool = False) -> None:
        """The `text` of the context and the first `count` pending ids is final."""
        if len(text) > len(self._known):
            self._held.append(Piece(text[len(self._known) :], origin))
        settled, self._pending = self._pending[:count], self._pending[count:]
        if keep_context:
            return
        for size in range(1, min(len(settled), 2 * LONGEST_CHARACTER)):
            self._context, self._known = settled[-size:], self._decode(settled[-size:])
            if self._known and "\ufffd" not in self._known:  # begins and ends between characters
                return
        self._context, self._known = settled, self._decode(settled)

    def _release(self, *, final: bool) -> list[Piece]:
        text = "".join(piece.text for piece in self._held)
        hits = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if hits:
            self.stopped = True
            return self._take(min(hits))
        return self._take(len(text) if final else len(text) - self._possible_stop(text))

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        best = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), best, -1):
                if text.endswith(stop[:n]):
                    best = n
                    break
        return best

    def _take(self, length: int) -> list[Piece]:
        """Cut the first `length` held characters loose, whole pieces first."""
        out: list[Piece] = []
        while self._held and length > 0:
            piece = self._held.pop(0)
            if len(piece.text) > length:
                self._held.insert(0, Piece(piece.text[length:], piece.origin))
                piece = Piece(piece.text[:length], piece.origin)
            length -= len(piece.text)
            out.append(piece)
        self.released += "".join(piece.text for piece in out)
        return out
