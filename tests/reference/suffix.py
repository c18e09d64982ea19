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
        self, occurrence: str, extra: Sequence[int] = (), media: frozenset[int] = frozenset()
    ) -> tuple[int, int]:
        """(length, end) of the longest suffix that ends earlier in the text."""
        whole = [*self.text, *(BARRIER if token in media else token for token in extra)]
        best = 0, -1
        ends = list(range(len(self.text) if extra else len(self.text) - 1))
        for length in range(1, len(whole) + 1):
            token = whole[-length]
            ends = [end for end in ends if end + 1 >= length and whole[end + 1 - length] == token]
            if token == BARRIER or not ends:
                break
            best = length, (max if occurrence == "latest" else min)(ends)
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
