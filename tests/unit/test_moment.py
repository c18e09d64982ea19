"""Time that rules weigh."""

from __future__ import annotations

import pytest

from eyespan.moment import Moment


def test_waiting_for_a_core_is_no_cost_and_a_gpu_works_while_the_process_waits() -> None:
    began, ended = Moment(1.0, 5.0), Moment(1.5, 5.2)
    assert began.ms_until(ended, on_cpu=True) == pytest.approx(200.0)
    assert began.ms_until(ended, on_cpu=False) == pytest.approx(500.0)


def test_several_threads_take_no_longer_than_the_wall_says() -> None:
    assert Moment(0.0, 0.0).ms_until(Moment(0.5, 4.0), on_cpu=True) == pytest.approx(500.0)
