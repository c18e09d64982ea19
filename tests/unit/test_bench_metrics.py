"""Every metric against figures worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from eyespan.bench import metrics
from eyespan.bench.records import Run


def run(
    tokens: int = 10,
    seconds: float = 1.0,
    *,
    plain: float = 2.0,
    prefill: float = 0.0,
    forwards: int = 5,
    accepted: int = 4,
    **more: Any,
) -> Run:
    """An answer of `tokens` in `seconds`, with the same answer plainly in `plain`."""
    return Run(
        **{
            "stream": "blocked/1", "dataset": "set", "input": "a", "turn": 0, "method": "m",
            "repeat": 0, "category": "c", "image": "p", "status": "equal", "tokens": tokens,
            "forwards": forwards, "accepted": accepted, "plain_tokens": tokens,
            "seconds": {"prefill": prefill, "decode": seconds - prefill, "total": seconds},
            "plain_seconds": {"prefill": prefill, "decode": plain - prefill, "total": plain},
            **more,
        }
    )  # fmt: skip


def test_s_is_a_mean_of_ratios_and_not_a_ratio_of_sums() -> None:
    runs = [run(seconds=1.0, plain=1.0), run(seconds=1.0, plain=3.0), run(seconds=8.0, plain=8.0)]
    assert metrics.speedup(runs) == pytest.approx((1 + 3 + 1) / 3)
    assert metrics.ratio_of_sums(runs) == pytest.approx(12 / 10)


def test_A54_throughput_counts_each_sides_own_tokens() -> None:
    """After a near tie two answers may differ in length; time alone would favour the shorter."""
    one = run(tokens=5, seconds=1.0, plain=2.0, plain_tokens=20)
    assert metrics.throughput_ratio(one) == pytest.approx((5 / 1) / (20 / 2))


def test_decode_only_leaves_the_first_token_and_the_prefill_out() -> None:
    one = run(tokens=11, seconds=3.0, plain=5.0, prefill=1.0)
    assert metrics.decode_ratio(one) == pytest.approx((10 / 2) / (10 / 4))
    assert metrics.decode_ratio(run(tokens=1, seconds=1.0, plain=1.0, prefill=1.0)) == 1.0


def test_tau_averages_units_and_skips_those_that_were_never_verified() -> None:
    runs = [run(forwards=5, accepted=8), run(forwards=2, accepted=0), run(forwards=1, accepted=0)]
    assert metrics.acceptance_length(runs) == pytest.approx(1 + (8 / 4 + 0 / 1) / 2)


def test_tokens_per_forward_counts_the_prefill() -> None:
    assert metrics.tokens_per_forward([run(tokens=9, forwards=4), run(tokens=1, forwards=1)]) == 2.0


def test_the_spread_of_ratios() -> None:
    found = metrics.spread([0.5, 1.0, 1.5, 2.0, 2.5])
    assert found == pytest.approx((0.7, 1.5, 2.3, 3 / 5))


def test_latencies_sum_turns_and_average_repeats() -> None:
    runs = [
        run(seconds=1.0, turn=0, repeat=0), run(seconds=2.0, turn=1, repeat=0),
        run(seconds=3.0, turn=0, repeat=1), run(seconds=4.0, turn=1, repeat=1),
        run(seconds=7.0, input="b"),
    ]  # fmt: skip
    assert metrics.input_latencies(runs) == [5.0, 7.0]
    assert metrics.cumulative([3.0, 1.0, 2.0, 2.0]) == ((1.0, 2.0, 2.0, 3.0), (0.25, 0.5, 0.75, 1))


def test_pooled_ratios_put_turns_together_before_dividing() -> None:
    ours = [run(tokens=10, seconds=1.0, turn=0), run(tokens=30, seconds=1.0, turn=1)]
    theirs = [run(tokens=10, seconds=2.0, turn=0), run(tokens=30, seconds=2.0, turn=1)]
    assert metrics.pooled_ratios(ours, theirs) == {("blocked/1", "set", "a"): 2.0}
    uneven = [run(tokens=10, seconds=4.0, turn=0), run(tokens=30, seconds=1.0, turn=1)]
    assert metrics.pooled_ratios(ours, uneven)[("blocked/1", "set", "a")] == (40 / 2) / (40 / 5)


def test_pooled_ratios_leave_out_what_only_one_side_has() -> None:
    ours = [run(seconds=1.0, turn=0), run(seconds=100.0, turn=1), run(seconds=5.0, input="b")]
    theirs = [run(seconds=3.0, turn=0)]
    assert metrics.pooled_ratios(ours, theirs) == {("blocked/1", "set", "a"): pytest.approx(3.0)}


def test_gain_is_in_percent() -> None:
    assert metrics.gain([1.1, 0.9, 1.3]) == pytest.approx(10.0)


def test_against_pairs_the_same_unit_and_repeat() -> None:
    ours = [run(seconds=1.0, repeat=0), run(seconds=2.0, repeat=1), run(seconds=9.0, input="b")]
    stock = [run(seconds=4.0, repeat=0), run(seconds=6.0, repeat=1)]
    assert metrics.against(ours, stock) == pytest.approx([4.0, 3.0])


def test_only_plain_answers_have_a_speed() -> None:
    statuses = ["equal", "near tie", "DIFFERENT", "error"]
    kept = metrics.comparable([run(status=status) for status in statuses])
    assert [one.status for one in kept] == ["equal", "near tie"]


def test_the_bootstrap_draws_pictures_and_not_questions() -> None:
    """Two pictures, one of them asked about often: its answers come and go together."""
    values, clusters = [0.0] * 50 + [1.0], ["often"] * 50 + ["once"]
    found = metrics.bootstrap(values, clusters, resamples=500)
    assert found.value == pytest.approx(1 / 51)
    assert (found.low, found.high) == (0.0, 1.0), "a resample may hold one picture twice"
    apart = metrics.bootstrap(values, list(range(51)), resamples=500)
    assert apart.high < 0.1
    assert metrics.bootstrap(values, clusters, resamples=500) == found


def test_the_bootstrap_of_equal_values_has_no_width() -> None:
    assert metrics.bootstrap([2.0] * 9, list("aabbccdde")) == metrics.Interval(2.0, 2.0, 2.0)


def test_acceptance_by_depth_pools_passes() -> None:
    runs = [
        run(drafted_by_depth=(4, 4), accepted_by_depth=(3, 1)),
        run(drafted_by_depth=(6, 4, 2), accepted_by_depth=(2, 1)),
    ]
    assert metrics.acceptance_by_depth(runs) == pytest.approx([5 / 10, 2 / 8, 0 / 2])


def test_stages_and_the_rest_make_up_the_decoding_time() -> None:
    runs = [run(seconds=0.5, forwards=3, stage_ms={"forward": 300.0, "propose": 100.0})] * 2
    times = metrics.stage_ms(runs)
    assert times == pytest.approx({"forward": 150.0, "propose": 50.0, "other": 50.0})
    assert metrics.stage_ms([run(forwards=1)]) == {}


def test_categories_have_their_own_statistics() -> None:
    runs = [run(plain=2.0), run(plain=6.0), run(plain=5.0, category="d")]
    assert metrics.by_category(runs, metrics.speedup) == {"c": 4.0, "d": 5.0}


def test_nothing_gives_no_number() -> None:
    assert math.isnan(metrics.speedup([]))
    assert math.isnan(metrics.bootstrap([], []).value)
    assert math.isnan(metrics.percentiles([], (50,))[0])
    assert math.isnan(metrics.sample_sd([1.0]))
