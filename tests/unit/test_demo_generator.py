"""The demo's generator: the same pictures everywhere, answers that only the picture can tell."""

import hashlib
import re

import numpy as np
import pytest

from eyespan.demo import KINDS, facts_right, held_out
from eyespan.demo.canvas import CELL_H, CELL_W, CHARS, COLS, ROWS, Canvas, glyph_atlas
from eyespan.demo.generator import SUBJECTS, training_sample
from eyespan.demo.lexicon import all_words
from eyespan.demo.samples import Answer, Sample

GOLDEN = "fad6ee8b2378e66d58f7c468db82339f509a66baa2bd8058b81b99d6da5e8386"


def digest(samples: list[Sample]) -> str:
    """One hash of all pixels, questions and answers."""
    total = hashlib.sha256()
    for sample in samples:
        total.update(sample.image.tobytes())
        for turn in sample.turns:
            total.update(f"{turn.question}\n{turn.answer}\n{turn.facts}".encode())
    return total.hexdigest()


def test_held_out_pictures_and_answers_are_the_golden_ones() -> None:
    """Published figures are about exactly these bytes: any change of the generator must show."""
    assert digest(list(held_out(12))) == GOLDEN


def test_held_out_is_balanced_over_six_kinds() -> None:
    kinds = [sample.kind for sample in held_out(24)]
    assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 4)


def test_two_seeds_share_no_answer() -> None:
    """Values are random, so nothing can be known without the picture."""
    one, two = (
        {turn.answer for sample in held_out(18, seed) for turn in sample.turns if turn.facts}
        for seed in (1, 2)
    )
    assert not one & two


def test_training_stream_is_not_the_held_out_set() -> None:
    weights = dict.fromkeys(SUBJECTS, 1.0)
    trained = {training_sample(0, index, weights).image.tobytes() for index in range(30)}
    assert not trained & {sample.image.tobytes() for sample in held_out(30)}


@pytest.mark.parametrize("sample", list(held_out(30)), ids=lambda sample: str(sample.id))
def test_spans_lie_inside_answers_and_cover_the_facts(sample: Sample) -> None:
    assert len(sample.turns) >= (3 if sample.kind == "dialog" else 1)
    for turn in sample.turns:
        previous = 0
        marked = np.zeros(len(turn.answer), dtype=bool)
        for start, end in turn.picture_spans:
            assert previous <= start < end <= len(turn.answer)
            marked[start:end] = True
            previous = end
        for fact in turn.facts:
            places = [match.span() for match in re.finditer(re.escape(fact), turn.answer)]
            assert any(marked[start:end].any() for start, end in places)
        assert facts_right(turn.facts, turn.answer) == len(turn.facts)


def test_facts_are_matched_as_whole_words_and_counted_once_each() -> None:
    assert facts_right(("4.5", "Mug"), "The Mugs cost 14.5 or 4.55.") == 0
    assert facts_right(("4.5", "4.5"), "It is 4.5.") == 1
    assert facts_right(("silver\nship",), "a silver\nship") == 1


def test_answer_marks_what_is_shown() -> None:
    turn = Answer("It costs ").show("4.50").say(".").turn("How much?")
    assert turn.picture_spans == ((9, 13),)
    assert turn.facts == ("4.50",)


def test_every_glyph_fills_its_cell_but_not_the_neighbours() -> None:
    """A glyph has ink enough to be seen, and no two look alike."""
    atlas = glyph_atlas()
    assert atlas.shape == (2, len(CHARS), CELL_H, CELL_W)
    share = (atlas > 127).mean(axis=(2, 3))
    assert (share[:, 1:] > 0.01).all()
    assert (share < 0.5).all()
    for weight in atlas:
        assert len({glyph.tobytes() for glyph in weight}) == len(CHARS)


def test_lexicon_fits_its_size_and_the_page() -> None:
    words = all_words()
    assert 500 <= len(words) <= 700
    assert all(word.isascii() and word.isalpha() and len(word) <= 8 for word in words)


def test_text_past_the_edge_is_refused_with_the_limits() -> None:
    import random

    canvas = Canvas(random.Random(0))
    with pytest.raises(ValueError, match=rf"{ROWS} rows of {COLS} cells"):
        canvas.text(0, COLS - 2, "wide")
