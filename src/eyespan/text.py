"""Text that grows with its ids and is never broken: not inside a character, not inside a stop
string, and the same however many ids arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from eyespan.errors import ConfigError

MAX_STOPS = 64
MAX_STOP_LENGTH = 1000


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

    Each push decodes a window that begins at the last safe boundary, so its cost does not grow
    with the text. Text is held back while it ends in half a character or could begin a stop. With
    stop strings, push one id at a time: the answer ends at the id that completes one.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: tuple[str, ...] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._ids: list[int] = []
        self._window = 0  # decoding starts here: one released token before `_read` as context
        self._read = 0  # ids before this one have given their text
        self._held: list[Piece] = []
        self.released = ""
        self.stopped = False

    def push(self, ids: Iterable[int], origin: str) -> list[Piece]:
        """Add ids of one origin; returns what can be shown now. After a stop that is nothing."""
        self._ids += ids
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if after.endswith("\ufffd") or len(after) <= len(before):
            return []  # half a character, or a token without text of its own
        self._window, self._read = self._read, len(self._ids)
        self._held.append(Piece(after[len(before) :], origin))
        return self._release(final=False)

    def finish(self) -> list[Piece]:
        """Release what was held back: no further id can complete a character or a stop."""
        if self.stopped:
            return []
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if len(after) > len(before):
            self._held.append(Piece(after[len(before) :], "target"))
            self._window = self._read = len(self._ids)
        return self._release(final=True)

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
