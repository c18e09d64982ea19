"""Which characters of an answer only the picture can tell, and which are template.

For a true answer the generator knows. For what a model wrote instead, a rule says it: numbers, and
the words that a picture of this subject can show.
"""

import re
from typing import Final

from eyespan.demo import lexicon
from eyespan.demo.samples import Kind, Turn

_NUMBER: Final = r"\d+(?:\.\d+)?"
_SHOWN: Final[dict[Kind, tuple[tuple[str, ...], ...]]] = {
    "receipt": (lexicon.GOODS, lexicon.SHOP_NAMES, lexicon.SHOP_TYPES, lexicon.MONTHS),
    "table": (
        lexicon.PLACES, lexicon.PERSONS, lexicon.GOODS, lexicon.TOPICS, lexicon.MONTHS,
        ("City", "Name", "Item"),
    ),
    "chart": (lexicon.PLACES, lexicon.PERSONS, lexicon.GOODS, lexicon.TOPICS),
    "scene": (lexicon.PLACE_NAMES, lexicon.COLORS, lexicon.SHAPES, lexicon.SIZES),
}  # fmt: skip


def _pattern(lists: tuple[tuple[str, ...], ...]) -> re.Pattern[str]:
    words = sorted({word for words in lists for word in words}, key=len, reverse=True)
    return re.compile(rf"{_NUMBER}|\b(?:{'|'.join(map(re.escape, words))})\b")


_PATTERNS: Final = {kind: _pattern(lists) for kind, lists in _SHOWN.items()}
_ANY_WORD: Final = re.compile(rf"{_NUMBER}|[A-Za-z]+")


def picture_spans(text: str, subject: Kind, turn: Turn | None = None) -> list[tuple[int, int]]:
    """Half-open character spans that only the picture can tell.

    Args:
        text: an answer, written by a model or true.
        subject: what the picture shows; of a page of text, every word.
        turn: when its answer is `text`, its own spans are returned.
    """
    if turn is not None and turn.answer == text:
        return list(turn.picture_spans)
    return [match.span() for match in _PATTERNS.get(subject, _ANY_WORD).finditer(text)]
