"""The budget rule: nodes that pay are sent, nodes that do not are cut, plain where nothing pays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyespan import _core
from eyespan.budget import (
    Calibration,
    CostCurve,
    best_cuts,
    check_budget,
    keep_nodes,
)
from eyespan.errors import ConfigError
from eyespan.types import DraftTree


def draft(parents: list[int], scores: list[float] | None = None) -> DraftTree:
    n = len(parents)
    return DraftTree(
        np.arange(10, 10 + n, dtype=np.int32),
        np.array(parents, np.int32),
        None if scores is None else np.array(scores, np.float32),
    )


def best_cut(
    chances: np.ndarray,
    curve: CostCurve,
    *,
    speedup: float = 1.0,
    cap: int = 127,
    worth: float = 0.0,
) -> np.ndarray:
    (nodes,) = best_cuts([chances], curve, speedup=speedup, cap=cap, worth=worth)
    return nodes


FREE = CostCurve(sizes=(1, 64), ms=(10.0, 10.0))
LINEAR = CostCurve(sizes=(1, 64), ms=(10.0, 640.0))


def test_free_nodes_are_all_sent() -> None:
    assert best_cut(np.array([0.9, 0.5, 0.1]), FREE).tolist() == [0, 1, 2]


def test_scores_that_are_no_numbers_are_refused_before_they_are_counted() -> None:
    """They were cast to a cell number, with a warning and whatever the machine makes of it."""
    learned = Calibration(1)
    with pytest.raises(ValueError, match="no numbers"):
        learned.guess(draft([-1, 0], [0.5, float("nan")]), 0)
    assert not learned.counts.any()


def test_where_a_node_costs_a_step_nothing_is_sent() -> None:
    assert best_cut(np.array([0.9, 0.5]), LINEAR).size == 0


def test_the_cut_is_where_the_next_node_costs_more_than_it_brings() -> None:
    curve = CostCurve(sizes=(1, 2, 64), ms=(10.0, 12.0, 136.0))  # 2 ms a node
    sent = best_cut(np.array([0.9, 0.5, 0.05]), curve)
    assert sent.tolist() == [0, 1]


def test_in_good_times_a_doubtful_node_is_not_worth_its_milliseconds() -> None:
    curve = CostCurve(sizes=(1, 2, 64), ms=(10.0, 12.0, 136.0))  # 2 ms a node, 0.2 plain tokens
    chances = np.array([0.9, 0.5, 0.3])
    assert [best_cut(chances, curve, speedup=s).size for s in (1.0, 2.0, 3.0, 5.0)] == [3, 2, 1, 0]


@given(st.data())
def test_the_price_that_rounds_bring_about_is_that_of_the_best_cuts(data: st.DataObject) -> None:
    """Rounds sized one by one, again and again at the price that they came to: no other sizes get
    more done in the time of all of them.
    """
    costs = np.array([10.0, 11.5, 12.0, 16.0])
    chance = st.floats(0.0, 1.0)
    rounds = data.draw(st.lists(st.lists(chance, min_size=3, max_size=3), min_size=1, max_size=4))
    gains = [1.0 + np.cumsum([0.0, *sorted(row)[::-1]]) for row in rounds]

    def rate(widths: Sequence[int]) -> float:
        tokens = sum(gain[width] for gain, width in zip(gains, widths, strict=True))
        return float(tokens / sum(costs[width] for width in widths))

    price = rate([0] * len(rounds))
    for _ in range(20):
        widths = [
            _core.best_cuts(
                [np.array(row)], costs, price=price, cap=3, worth=0.0, margin=0.0
            )[0].size
            for row in rounds
        ]  # fmt: skip
        price = rate(widths)
    assert price == pytest.approx(max(map(rate, product(range(4), repeat=len(rounds)))))


def test_a_node_that_teaches_may_cost_a_little_more() -> None:
    curve = CostCurve(sizes=(1, 2, 64), ms=(10.0, 11.0, 42.0))  # half a millisecond a node
    chances = np.array([0.9, 0.04, 0.04])
    assert best_cut(chances, curve).size == 1
    assert best_cut(chances, curve, worth=0.06).size == 3
    beyond_the_room = np.array([0.9, 0.0, 0.0])
    assert best_cut(beyond_the_room, FREE, worth=0.06).size == 1


def test_a_number_caps_it() -> None:
    assert best_cut(np.full(20, 0.9), FREE, cap=4).size == 4


@given(st.data())
def test_a_cut_is_a_tree_again(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 20))
    parents = [data.draw(st.integers(-1, at - 1)) for at in range(n)]
    scores = data.draw(st.lists(st.floats(0, 1, width=32), min_size=n, max_size=n))
    tree = draft(parents, scores)
    chances = Calibration(1).guess(tree, 0).chances
    nodes = best_cut(chances, FREE, cap=data.draw(st.integers(1, n)))
    kept = keep_nodes(tree, nodes)
    for node, parent in enumerate(kept.parents):
        assert parent < node
        old = tree.parents[kept.tokens[node] - 10]
        assert old == (-1 if parent < 0 else kept.tokens[parent] - 10)


def test_calibration_learns_what_comes_true() -> None:
    """A drafter that is sure and always wrong loses its trust; a shy one that is right gains it."""
    calibration = Calibration(1)
    tree = draft([-1, -1], [0.9, 0.1])
    before = calibration.guess(tree, 0).chances
    for _ in range(50):
        calibration.learn(calibration.guess(tree, 0), np.array([11], np.int32))
    after = calibration.guess(tree, 0).chances
    assert after[0] < 0.1 < before[0]
    assert after[1] > 0.9 > before[1]


def test_nodes_deeper_than_the_text_are_not_counted() -> None:
    calibration = Calibration(1)
    tree = draft([-1, 0], [0.5, 0.5])
    for _ in range(50):
        calibration.learn(calibration.guess(tree, 0), np.array([10], np.int32))
    first, second = calibration.guess(tree, 0).chances
    assert first > 0.9
    assert second == pytest.approx(0.5)


def test_no_node_is_likelier_than_its_parent() -> None:
    tree = draft([-1, 0, 1], [0.2, 0.9, 0.5])
    chances = Calibration(1).guess(tree, 0).chances
    assert chances[0] >= chances[1] >= chances[2]


def test_a_disturbed_timing_does_not_make_larger_passes_dear() -> None:
    """A maximum from the left would let one slow measurement of a plain step price every tree."""
    curve = CostCurve(sizes=(1, 4, 8, 16), ms=(10.0, 30.0, 12.0, 14.0))
    assert curve.of(np.array([1, 4, 8, 16])).tolist() == [10.0, 12.0, 12.0, 14.0]


def test_costs_are_read_between_and_beyond_what_was_measured() -> None:
    curve = CostCurve(sizes=(1, 3, 5), ms=(10.0, 14.0, 15.0))
    assert curve.of(np.arange(1, 8)).tolist() == [10.0, 12.0, 14.0, 14.5, 15.0, 15.5, 16.0]


def test_compiled_passes_cost_what_the_next_width_does_and_are_filled() -> None:
    """Just above a width a node is dear, and the others up to the next width are free."""
    curve = CostCurve(sizes=(1, 4, 8, 16), ms=(10.0, 12.0, 14.0, 22.0), steps=True)
    costs = curve.of(np.array([1, 2, 3, 4, 5, 8, 9, 16, 17, 20]))
    assert costs.tolist() == [10.0, 12.0, 12.0, 12.0, 14.0, 14.0, 22.0, 22.0, 23.0, 26.0]
    chances = np.full(15, 0.3) ** np.linspace(1, 4, 15)
    sizes = {1 + best_cut(chances, curve, speedup=s).size for s in (1.0, 1.3, 2.0, 3.0)}
    assert sizes <= {1, 4, 8, 16}
    assert sizes != {1}


@pytest.mark.parametrize("budget", ["big", -1, 128, 2.5, True, None])
def test_bad_budgets_are_refused(budget: object) -> None:
    with pytest.raises(ConfigError):
        check_budget(budget)
