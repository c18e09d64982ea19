"""The grid: drafter x family x choice x processors x batch x pictures x stop x limit x cache x
budget x verification. Whatever is combined, the answer is plain decoding's, token for token, and
stock's where stock can be asked (see `drawn.py` for verification by rejection); what cannot be
combined is refused before its first forward.

The default suite runs the first cases of the list, `-m slow` the rest. An id is a whole case:

    pytest "tests/grid/test_grid.py::test_every_row_says_what_it_says_alone[recap.llama....]"
    GRID_CASE=recap.llama.greedy.none.alone.0.length.7.grows.fixed.walk pytest tests/grid
    GRID_SEED=1 pytest tests/grid

The second runs any case at all, the third another grid.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from eyespan.engine import verify as true_verify
from eyespan.errors import EyespanError
from tests.grid.axes import AXES, RULES, Case
from tests.grid.cover import covering, pairs, pairs_of
from tests.grid.drawn import check_drawn, check_is_greedy, frozen
from tests.grid.oracle import plain, stock, stock_on
from tests.grid.ours import CURVE, Said, answers, answers_of, engine_of
from tests.grid.rows import prompt_of, rows_of, target_of

QUICK = 85
"""Cases of the default suite."""

SEED = int(os.environ.get("GRID_SEED", "0"))
ONE = os.environ.get("GRID_CASE")
CASES = [Case.of(ONE)] if ONE else list(covering(SEED))


def marked(cases: list[Case], quick: int) -> list[Any]:
    return [
        pytest.param(case, id=case.id, marks=[] if at < quick else [pytest.mark.slow])
        for at, case in enumerate(cases)
    ]


def refused() -> list[Any]:
    """One case of every rule for the default suite, and all others."""
    return [param for rule in RULES if rule.error is not None for param in marked(rule.cases(), 1)]


@pytest.fixture(autouse=True)
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget rule's costs are the same on every machine."""
    monkeypatch.setattr("eyespan.generation.cost_curve", lambda target, needs: CURVE)


def check(said: Said) -> None:
    """One answer against both oracles."""
    row, expected = said.row, said.expected
    assert said.ids == expected.token_ids
    if row.comparable:
        own = said.prompt is prompt_of(row)
        assert said.ids == (stock(row) if own else stock_on(row, said.prompt)), "stock differs"
    if said.whole is None:
        return
    assert (said.whole.text, said.whole.finish) == (expected.text, expected.finish)
    assert not said.whole.plain_steps.get("drafter fault")
    if said.whole.logprobs is not None and expected.logprobs is not None:
        for mine, theirs in zip(said.whole.logprobs, expected.logprobs, strict=True):
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)


@pytest.mark.parametrize("case", marked(CASES, QUICK))
def test_every_row_says_what_it_says_alone(case: Case) -> None:
    assert case.rule is None, case.rule.why
    rejecting = case.verification == "rejection"
    for said in answers(case, frozen(case) if rejecting else rows_of(case)):
        check(said)
        if rejecting:
            check_is_greedy(said)
    if rejecting:
        check_drawn(case)


@pytest.mark.parametrize("case", refused())
def test_what_excludes_each_other_is_refused_before_a_forward(case: Case) -> None:
    rule = case.rule
    assert rule is not None
    assert rule.error is not None
    with pytest.raises(rule.error, match=rule.says) as caught:
        ask_in_vain(case)
    assert isinstance(caught.value, EyespanError)
    assert caught.value.todo


def ask_in_vain(case: Case) -> None:
    """Make the engine, then ask; no forward of the model may come of the asking."""
    rows, passes = rows_of(case), list[int]()
    model = target_of(case.family).model
    # a drafter that is refused is so when the engine is made, which may try the model out
    engine = None if case.way == "enabled" else engine_of(case, rows)
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        if engine is None:
            answers(case, rows)
        else:
            answers_of(case, rows, engine)
    finally:
        hook.remove()
        assert passes == []


def test_the_cases_cover_every_pair() -> None:
    cases = list(covering(SEED))
    seen = set().union(*map(pairs_of, cases))
    assert seen == pairs()
    assert all(case.rule is None for case in cases)
    for axis, values in AXES.items():
        missing = set(values) - {getattr(case, axis) for case in cases[:QUICK]}
        assert missing <= {"guidance"}, "the default suite shows every value that may run"
    assert Case.of(cases[0].id) == cases[0]


def test_the_grid_sees_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a walk that believes the first guess of every third round."""
    rounds: Iterator[int] = iter(range(10**6))

    def gullible(tree: Any, choose: Any, emit: Any, accept: bool = True) -> Any:
        if next(rounds) % 3 == 2 and len(tree) > 1:
            return true_verify(tree, choose=lambda node: int(tree.tokens[1]), emit=emit)
        return true_verify(tree, choose=choose, emit=emit, accept=accept)

    monkeypatch.setattr("eyespan.engine.verify", gullible)
    case = Case(drafter="random", limit="24")
    said = answers(case, rows_of(case))
    monkeypatch.undo()
    assert any(each.ids != plain(each.row).token_ids for each in said)
