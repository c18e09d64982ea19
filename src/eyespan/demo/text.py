"""Pages of short sentences, wrapped at random widths, to be transcribed."""

import random
from typing import Final

from eyespan.demo import lexicon
from eyespan.demo.canvas import COLS, ROWS, Canvas
from eyespan.demo.samples import Answer, Subject, Turn

_PLAIN_QUESTIONS: Final = (
    "Transcribe the text.",
    "Read the text aloud.",
    "What is written here?",
    "Copy the text.",
)
_LINE_QUESTIONS: Final = ("Transcribe the text line by line.", "Copy the text and keep its lines.")


def make(rng: random.Random) -> Subject:
    """Draw two to four random sentences; each starts a new line."""
    canvas = Canvas(rng)
    indent = rng.choice((0, 0, 0, 2))
    lines: list[list[tuple[str, bool]]] = []
    phrases: list[str] = []
    for _ in range(rng.randint(2, 4)):
        words, nouns = _sentence(rng)
        wrapped = _wrap(words, COLS - indent)
        if len(lines) + len(wrapped) > ROWS:
            break
        lines += wrapped
        phrases += nouns
    top = rng.randint(0, ROWS - len(lines))
    bold = rng.random() < 0.3
    for row, line in enumerate(lines, start=top):
        canvas.text(row, indent, " ".join(word for word, _ in line), bold=bold)
    page = canvas.finish()
    pick = rng.randrange(len(lines))
    words = [word for word, _ in lines[pick]]
    short = (
        _line(lines[pick], f"Read line {pick + 1}."),
        Answer().show(words[0].rstrip(".")).turn(f"What is the first word of line {pick + 1}?"),
        Answer().show(words[-1].rstrip(".")).turn(f"What is the last word of line {pick + 1}?"),
        Answer("There are ")
        .show(str(len(lines)), fact=False)
        .say(" lines.")
        .turn("How many lines are there?"),
        _line(lines[0], "Read the first line."),
        _line(lines[-1], "Read the last line."),
    )
    long = (
        _page(lines, " ", phrases, rng.choice(_PLAIN_QUESTIONS)),
        _page(lines, "\n", phrases, rng.choice(_LINE_QUESTIONS)),
    )
    return Subject(page, long, short)


def _sentence(rng: random.Random) -> tuple[list[str], list[str]]:
    """The words of a sentence and its "adjective noun" phrases, which are its facts."""
    phrases: list[str] = []

    def noun(adjective: bool) -> list[str]:
        words = [rng.choice(lexicon.DETERMINERS)]
        name = rng.choice(lexicon.NOUNS)
        if adjective:
            words.append(rng.choice(lexicon.ADJECTIVES))
            phrases.append(f"{words[-1]} {name}")
        return [*words, name]

    start = [rng.choice(lexicon.PERSONS)] if rng.random() < 0.3 else noun(rng.random() < 0.7)
    start[0] = start[0].capitalize()
    adverb = [rng.choice(lexicon.ADVERBS)] if rng.random() < 0.25 else []
    words = [*start, *adverb, rng.choice(lexicon.VERBS), *noun(True)]
    if rng.random() < 0.4:
        words += [rng.choice(lexicon.PREPOSITIONS), *noun(rng.random() < 0.5)]
    words[-1] += "."
    return words, phrases


def _wrap(words: list[str], width: int) -> list[list[tuple[str, bool]]]:
    """Greedy lines of at most `width` characters; the flag marks the first word of a sentence."""
    lines: list[list[tuple[str, bool]]] = [[]]
    used = -1
    for index, word in enumerate(words):
        if used + 1 + len(word) > width:
            lines.append([])
            used = -1
        lines[-1].append((word, index == 0))
        used += 1 + len(word)
    return lines


def _write(answer: Answer, line: list[tuple[str, bool]]) -> None:
    for index, (word, _) in enumerate(line):
        answer.say(" " if index else "").show(word.rstrip("."), fact=False)
        answer.say("." if word.endswith(".") else "")


def _line(line: list[tuple[str, bool]], question: str) -> Turn:
    answer = Answer()
    _write(answer, line)
    return answer.fact(" ".join(word for word, _ in line).rstrip(".")).turn(question)


def _page(
    lines: list[list[tuple[str, bool]]], separator: str, phrases: list[str], question: str
) -> Turn:
    answer = Answer()
    for index, line in enumerate(lines):
        answer.say(separator if index else "")
        _write(answer, line)
    text = answer.turn("").answer
    for phrase in phrases:
        answer.fact(phrase if phrase in text else phrase.replace(" ", separator))
    return answer.turn(question)
