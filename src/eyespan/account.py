"""What drafting brought lately, and how often to try while it brings nothing.

The budget rule weighs promises; this is about what came true. A round with drafts is worth the
plain steps that it saved, and those cost what plain steps cost one after another: behind a draft
head's passes a step finds cold caches (compiled passes of the demo model: 4.4 ms, not 3.5). While
rounds with drafts lose, plain ones stand between them, as many as keep the loss below a fiftieth of
the time; as soon as they win again none do.

What all rounds of late got done is the price of a millisecond in the next one (`budget.py`).
"""

from __future__ import annotations

import math

SHARE = 0.02
"""Most of the time that trying may lose."""
FADES = 0.99
"""Of earlier rounds' weight, whatever rounds follow: a loss is not held against drafts for ever."""
TRUST = 20.0
"""Rounds that drafts are taken to have broken even before any were made: memories begin empty."""
MOST = 4.0
"""A round takes no longer than this many usual ones, as it is booked: a page fault is no loss."""
LONGEST = 128
"""Most plain rounds in a row."""
LOOK = 3
"""Plain rounds in a row that are made now and then, to know what they cost."""
EARLY, EVERY = 64, 512
"""When: after so many rounds with drafts, twice, four times as many, and then as often as this."""


class Account:
    """Gains and losses of one engine's rounds.

    Args:
        plain_ms: what a plain round takes, as far as is known.
    """

    def __init__(self, plain_ms: float) -> None:
        self._plain = _Mean(plain_ms, 1.0)
        self._spent, self._saved = _Mean(plain_ms, TRUST), _Mean(1.0, TRUST)
        self._ms, self._tokens = _Mean(plain_ms, TRUST), _Mean(1.0, TRUST)
        self._drafted = 0
        self._plain_before = False

    @property
    def speedup(self) -> float:
        """How many times faster than plain ones all rounds of late were, at least 1."""
        return max(1.0, self._tokens.value * self._plain.value / self._ms.value)

    def plain(self, ms: float) -> None:
        """Note a round without drafts; the first behind one with drafts is no measure."""
        if self._plain_before:
            self._plain.add(ms, MOST)
        self._plain_before = True
        self._round(ms, 1.0)
        self._spent.fade()
        self._saved.fade()

    def drafted(self, ms: float, tokens: float) -> int:
        """Note a round for which guesses were asked.

        Args:
            ms: all of it.
            tokens: committed by each row in the mean.

        Returns:
            Plain rounds to make before the next one with drafts.
        """
        self._plain_before = False
        self._drafted += 1
        self._round(ms, tokens)
        self._spent.add(ms, MOST)
        self._saved.add(tokens)
        loss = self._spent.value / self._plain.value - self._saved.value
        rest = max(0, min(int(loss / SHARE), LONGEST))
        return max(rest, LOOK) if rest or self._looks() else 0

    def _round(self, ms: float, tokens: float) -> None:
        self._ms.add(ms, MOST)
        self._tokens.add(tokens)

    def _looks(self) -> bool:
        early = self._drafted >= EARLY and self._drafted.bit_count() == 1
        return early or self._drafted % EVERY == 0


class _Mean:
    """A fading mean."""

    def __init__(self, value: float, weight: float) -> None:
        self.value, self._weight = value, weight

    def add(self, value: float, most: float = math.inf) -> None:
        """Count a value, as at most so many times the mean."""
        self.fade()
        self._weight += 1.0
        self.value += (min(value, most * self.value) - self.value) / self._weight

    def fade(self) -> None:
        self._weight *= FADES
