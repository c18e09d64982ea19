"""Which characters of an answer only the picture can tell, and which are template.

For a true answer the generator knows. For what a model wrote instead, a rule says it: numbers, and
the words that a picture of this subject can show and neither question nor template gives away.
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


def picture_spans(text: str, subject: Kind, turn: Turn) -> list[tuple[int, int]]:
    """Half-open character spans that only the picture can tell.

    Args:
        text: what a model answered.
        subject: what the picture shows; of a page of text, every word.
        turn: question and true answer. When `text` is that answer, its own spans are returned;
            else words of the question and of the answer's template count as template.
    """
    if turn.answer == text:
        return list(turn.picture_spans)
    template = set(_ANY_WORD.findall(f"{turn.question} {_template(turn)}"))
    return [
        match.span()
        for match in _PATTERNS.get(subject, _ANY_WORD).finditer(text)
        if match.group()[0].isdigit() or match.group() not in template
    ]


def _template(turn: Turn) -> str:
    """The true answer without what the picture tells."""
    parts, at = [], 0
    for start, end in turn.picture_spans:
        parts.append(turn.answer[at:start])
        at = end
    return " ".join([*parts, turn.answer[at:]])
