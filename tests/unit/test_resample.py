"""Bootstrap intervals by groups."""

from __future__ import annotations

import numpy as np
import pytest

from eyespan.diagnostics.resample import interval, macro_interval, weights_of


def test_equal_groups_leave_no_doubt() -> None:
    assert interval({"a": (3.0, 6), "b": (1.0, 2)}) == (0.5, 0.5)


def test_the_interval_is_that_of_all_draws() -> None:
    """Two groups: a mean of both twice, of one in a quarter of the draws each."""
    low, high = interval({"a": (0.0, 1), "b": (1.0, 1)}) or (None, None)
    assert (low, high) == (0.0, 1.0)
    low, high = interval({str(at): (float(at % 2), 1) for at in range(400)}) or (0.0, 0.0)
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.01)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.01)


def test_groups_without_values_do_not_count() -> None:
    assert interval({"a": (1.0, 1), "b": (0.0, 0)}) is None
    assert interval({}) is None


def test_benchmarks_count_alike() -> None:
    large = {str(at): (10.0, 10) for at in range(9)}
    small = {"x": (0.0, 1), "y": (0.0, 1)}
    assert macro_interval([large, small, {}]) == (0.5, 0.5)
    assert macro_interval([{"x": (1.0, 1)}]) is None


def test_every_draw_has_as_many_groups() -> None:
    drawn = weights_of(5, 100, np.random.default_rng(1))
    assert drawn.shape == (100, 5)
    assert set(drawn.sum(axis=1).tolist()) == {5}
