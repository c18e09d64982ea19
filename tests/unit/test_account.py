"""What drafting brought lately, and how often it is tried while it brings nothing."""

from __future__ import annotations

import pytest

from eyespan.account import EARLY, EVERY, LONGEST, LOOK, SHARE, TRUST, Account
from eyespan.budget import CostCurve
from eyespan.drafters import make_drafter
from eyespan.policy import Policy
from eyespan.sequence import Running
from tests.drafting import open_session, request_of

PLAIN = 5.0


class Machine:
    """Rounds on a machine with fixed times, as `Policy` books them."""

    def __init__(self, plain_ms: float = PLAIN) -> None:
        self.account, self.plain_ms = Account(plain_ms), plain_ms
        self.ms = self.tokens = 0.0
        self.drafted = 0

    def run(self, rounds: int, ms: float, tokens: float) -> list[int]:
        """Rounds with drafts that take `ms` for `tokens`, with the plain ones asked for between
        them; how many those were each time.
        """
        rests = []
        while rounds > 0:
            rest = self.account.drafted(ms, tokens)
            rests.append(rest)
            for _ in range(rest):
                self.account.plain(self.plain_ms)
            rounds -= 1 + rest
            self.ms += ms + rest * self.plain_ms
            self.tokens += tokens + rest
        return rests

    def speed(self) -> float:
        """Tokens a millisecond, plain decoding's being 1."""
        return self.tokens * self.plain_ms / self.ms


def test_drafts_that_win_are_always_asked_for() -> None:
    rests = Machine().run(5 * EVERY, ms=8.0, tokens=2.0)
    looks = [at + 1 for at, rest in enumerate(rests) if rest]
    assert set(rests) == {0, LOOK}
    assert looks[:5] == [EARLY, 2 * EARLY, 4 * EARLY, EVERY, 2 * EVERY]
    assert looks[5:7] == [3 * EVERY, 4 * EVERY]


@pytest.mark.parametrize("worth", [0.0, 0.5, 0.8, 0.95])
def test_drafts_that_lose_cost_a_fixed_share_of_the_time(worth: float) -> None:
    machine = Machine()
    machine.run(400, ms=2 * PLAIN, tokens=2 * worth)  # the start, which nobody can know
    machine.ms = machine.tokens = 0.0
    machine.run(20_000, ms=2 * PLAIN, tokens=2 * worth)
    assert machine.speed() > 1 - 1.5 * SHARE


def test_after_a_loss_a_win_is_found_again() -> None:
    machine = Machine()
    assert machine.run(2_000, ms=3 * PLAIN, tokens=1.0)[-1] > 0
    rests = machine.run(2_000, ms=PLAIN, tokens=3.0)
    assert sum(rest > LOOK for rest in rests) < 10
    assert rests.count(0) > 1_500


def test_an_empty_memory_has_time_to_fill() -> None:
    assert not any(Machine().run(int(TRUST), ms=1.02 * PLAIN, tokens=1.01))


def test_one_slow_round_is_no_loss() -> None:
    machine = Machine()
    machine.run(100, ms=8.0, tokens=2.0)
    assert machine.account.drafted(60_000.0, 2.0) == 0


def test_the_first_plain_round_behind_drafts_is_no_measure() -> None:
    machine = Machine()
    for _ in range(300):
        machine.account.drafted(8.0, 2.0)
        machine.account.plain(100.0)  # cold caches
    assert machine.account.drafted(8.0, 1.5) == 0
    assert machine.account.drafted(8.0, 2.0) == 0


def test_a_long_rest_ends() -> None:
    assert max(Machine().run(5_000, ms=100 * PLAIN, tokens=1.0)) == LONGEST


def test_the_speedup_is_that_of_all_rounds_of_late() -> None:
    machine = Machine()
    assert machine.account.speedup == 1.0
    machine.run(800, ms=2 * PLAIN, tokens=3.0)
    assert machine.account.speedup == pytest.approx(1.5, rel=0.05)
    for _ in range(800):
        machine.account.plain(PLAIN)
    assert machine.account.speedup == pytest.approx(1.0, rel=0.05)
    machine.run(800, ms=3 * PLAIN, tokens=1.0)
    assert machine.account.speedup == 1.0, "no time is worth less than plain decoding makes of it"


def test_the_rule_asks_nobody_while_it_rests() -> None:
    curve = CostCurve(sizes=(1, 64), ms=(PLAIN, 3 * PLAIN))
    drafter = make_drafter("recap", vocab_size=64)
    policy = Policy("auto", drafter, curve)
    running = Running(request_of([1, 2]), on_token=lambda token: None)
    running.session = open_session(drafter, [1, 2])
    asked = []
    for _ in range(600):
        asks = policy.asks([running])
        asked.append(len(asks))
        policy.settle(1, 1, host_ms=0.1, ms=3 * PLAIN if asks else PLAIN)
    assert asked[0] == 1
    assert 0 < sum(asked[200:]) < 40
