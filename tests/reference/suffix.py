"""Twin of cpp/src/suffix_automaton: compare the end of the text with every place before it."""

from __future__ import annotations

from collections.abc import Sequence

BARRIER = -1


class SuffixText:
    """A list of tokens and barriers."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.text: list[int] = []

    def _push(self, symbol: int) -> None:
        if len(self.text) == self.max_tokens:
            self.text = self.text[-(self.max_tokens // 2) :]
            if self.text[0] == BARRIER:
                del self.text[0]
        self.text.append(symbol)

    def append(self, token: int) -> None:
        self._push(token)

    def barrier(self) -> None:
        if self.text and self.text[-1] != BARRIER:
            self._push(BARRIER)

    def extend(self, tokens: Sequence[int], media: frozenset[int]) -> None:
        for token in tokens:
            if token in media:
                self.barrier()
            else:
                self.append(token)

    def match(
        self,
        occurrence: str,
        extra: Sequence[int] = (),
        media: frozenset[int] = frozenset(),
        room: int = 0,
    ) -> tuple[int, int]:
        """(length, end) of the longest suffix that ends earlier in the text.

        When too little follows its earliest occurrence, the end is that of a shorter suffix.
        """
        whole = [*self.text, *(BARRIER if token in media else token for token in extra)]
        best = 0, -1
        first_ends: list[int] = []  # of suffixes, the longest last
        ends = list(range(len(self.text) if extra else len(self.text) - 1))
        for length in range(1, len(whole) + 1):
            token = whole[-length]
            ends = [end for end in ends if end + 1 >= length and whole[end + 1 - length] == token]
            if token == BARRIER or not ends:
                break
            best = length, (max if occurrence == "latest" else min)(ends)
            first_ends.append(min(ends))
        if occurrence == "earliest" and best[0]:
            return best[0], self._with_room(first_ends, room, len(extra))
        return best

    def _with_room(self, first_ends: list[int], room: int, behind: int) -> int:
        """The first end, longest suffix first, that `room` tokens follow; else the last."""
        barriers = [at for at, token in enumerate(self.text) if token == BARRIER]
        for end in reversed(first_ends):
            stop = next((at for at in barriers if at > end), len(self.text) + behind)
            if stop - end - 1 >= room:
                break
        return end

    def read(self, text: Sequence[int], media: frozenset[int]) -> tuple[int, int, int]:
        """(length, earliest end, latest end) of the longest suffix of another text in this one."""
        best = 0, -1, -1
        for length in range(1, len(text) + 1):
            suffix = list(text[-length:])
            ends = [
                end
                for end in range(length - 1, len(self.text))
                if self.text[end + 1 - length : end + 1] == suffix
            ]
            if suffix[0] in media or not ends:
                break
            best = length, min(ends), max(ends)
        return best

    def continuation(
        self,
        length: int,
        end: int,
        most: int,
        extra: Sequence[int] = (),
        media: frozenset[int] = frozenset(),
    ) -> list[int]:
        """What followed, up to a barrier."""
        out: list[int] = []
        if length:
            for token in [*self.text, *extra][end + 1 : end + 1 + most]:
                if token == BARRIER or token in media:
                    break
                out.append(token)
        return out
