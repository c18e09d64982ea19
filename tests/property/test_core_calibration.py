"""Chances of draft nodes, and the cut that pays, against plain counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference.budget import SlowCalibration
from tests.reference.cases import ints


@st.composite
def proposals(
    draw: st.DrawFn,
) -> tuple[list[int], list[int], list[float] | None, list[int] | None]:
    n = draw(st.integers(0, 14))
    parents = [draw(st.integers(-1, at - 1)) for at in range(n)]
    tokens = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    score = st.floats(-0.5, 1.5, width=32) | st.just(0.0) | st.just(1.0)
    scores = draw(st.none() | st.lists(score, min_size=n, max_size=n))
    origins = draw(st.none() | st.lists(st.integers(0, 5), min_size=n, max_size=n))
    return tokens, parents, scores, origins


@settings(deadline=None, max_examples=150)
@given(
    rounds=st.lists(st.tuples(proposals(), st.lists(st.integers(0, 3), max_size=5)), max_size=12)
)
def test_chances_are_the_slow_counts(
    rounds: list[
        tuple[tuple[list[int], list[int], list[float] | None, list[int] | None], list[int]]
    ],
) -> None:
    core, reference = _core.Calibration(3), SlowCalibration(3)
    for (tokens, parents, scores, origins), text in rounds:
        depths, cells, chances = core.weigh(
            ints(parents),
            None if scores is None else np.array(scores, np.float32),
            None if origins is None else ints(origins),
        )
        slow_depths, slow_cells, slow_chances = reference.weigh(parents, scores, origins)
        assert depths.tolist() == slow_depths
        assert chances.tolist() == pytest.approx(slow_chances)
        if scores and origins is None:  # roots' children have no parent to be held down by
            first = np.array(scores, np.float32)[depths == 1]
            assert core.chances(first, 1).tolist() == chances[depths == 1].tolist()
        core.learn(ints(tokens), ints(parents), depths, cells, ints(text))
        reference.learn(tokens, parents, slow_depths, slow_cells, text)
        assert core.offered().tolist() == pytest.approx(reference.flat(reference.offered))
        assert core.accepted().tolist() == pytest.approx(reference.flat(reference.accepted))


@pytest.mark.parametrize(
    ("parents", "scores", "origins"),
    [([0], None, None), ([-2], None, None), ([-1], [0.5, 0.5], None), ([-1], None, [-1])],
)
def test_what_is_no_tree_is_refused(
    parents: list[int], scores: list[float] | None, origins: list[int] | None
) -> None:
    with pytest.raises(ValueError):
        _core.Calibration(2).weigh(
            ints(parents),
            None if scores is None else np.array(scores, np.float32),
            None if origins is None else ints(origins),
        )


def test_counts_that_cannot_be_are_refused_and_change_nothing() -> None:
    core = _core.Calibration(1)
    cells = core.offered().size
    core.restore(np.full(cells, 4.0), np.full(cells, 1.0))
    for offered, accepted in (
        (np.full(cells, 1.0), np.full(cells, 2.0)),
        (np.full(cells, np.inf), np.full(cells, 1.0)),
        (np.full(cells, 1.0), np.full(cells, -1.0)),
        (np.full(cells, 1.0), np.full(cells, np.nan)),
        (np.full(cells - 1, 1.0), np.full(cells - 1, 1.0)),
    ):
        with pytest.raises(ValueError):
            core.restore(offered, accepted)
    assert core.offered().tolist() == [4.0] * cells
    with pytest.raises(ValueError, match="unknown cell"):
        core.learn(ints([1]), ints([-1]), ints([1]), ints([cells]), ints([1]))
