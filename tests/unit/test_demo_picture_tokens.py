"""The rule that tells picture from template agrees with the generator's own marks."""

from __future__ import annotations

from collections import Counter

from eyespan.demo import Kind, held_out
from eyespan.demo.picture_tokens import picture_spans


def test_the_rule_agrees_with_the_marks_of_true_answers() -> None:
    """A character appended makes an answer look like a model's own, so that the rule decides."""
    wrong, seen = Counter[Kind](), Counter[Kind]()
    for sample in held_out(120):
        for turn in sample.turns:
            marks, rule = bytearray(len(turn.answer)), bytearray(len(turn.answer) + 1)
            for start, end in turn.picture_spans:
                marks[start:end] = b"\1" * (end - start)
            for start, end in picture_spans(turn.answer + "~", sample.subject, turn):
                rule[start:end] = b"\1" * (end - start)
            pairs = zip(turn.answer, marks, rule, strict=False)
            wrong[sample.subject] += sum(mark != by for char, mark, by in pairs if char != " ")
            seen[sample.subject] += len(turn.answer)
    assert all(wrong[subject] <= 0.02 * seen[subject] for subject in seen), (wrong, seen)


def test_a_true_answer_has_its_own_marks() -> None:
    sample = next(iter(held_out(1)))
    (turn,) = sample.turns
    assert picture_spans(turn.answer, sample.subject, turn) == list(turn.picture_spans)
