"""Rows that are verified by rejection: their text is distributed as plain decoding's, which no
single answer shows. What holds exactly: so cold that nothing is left to chance, they are greedy
decoding's; any of them ends where it must; and a fixed number of guesses repeats a seed, alone and
in a batch.
"""

from __future__ import annotations

from dataclasses import replace

from tests.grid.axes import TOGETHER, Case
from tests.grid.oracle import plain_on, stop_on
from tests.grid.ours import Said, answers
from tests.grid.rows import Row, options_of, rows_of, target_of

REPEATED = ("0", "fixed")
"""Budgets whose sizes follow no clock."""


def frozen(case: Case) -> list[Row]:
    """The case's rows with nothing left to chance."""
    return [replace(row, choice="frozen") for row in rows_of(case)]


def drawn(case: Case) -> list[Row]:
    """The case's rows, those beside its own drawn too."""
    return [replace(row, choice="hot") if row.choice == "greedy" else row for row in rows_of(case)]


def check_is_greedy(said: Said) -> None:
    """A frozen answer against greedy decoding."""
    greedy = plain_on(replace(said.row, choice="greedy"), said.prompt)
    assert said.ids == greedy.token_ids


def check_drawn(case: Case) -> None:
    """Answers with all their chances."""
    rows = drawn(case)
    said = answers(case, rows)
    for one in said:
        check_end(one)
    if case.budget not in REPEATED:
        return
    assert [one.ids for one in answers(case, rows)] == [one.ids for one in said]
    if case.way in TOGETHER:
        for row, one in zip(rows, said, strict=True):
            assert answers(replace(case, way="alone"), [row])[0].ids == one.ids


def check_end(said: Said) -> None:
    """An answer ends at the first token that ends it, for the reason that it says."""
    row, ids, prompt = said.row, said.ids, said.prompt
    info = target_of(row.family, row.ends).info
    most = options_of(row, prompt, None)["max_new_tokens"]
    most = min(most, info.max_context - len(prompt))
    assert 0 < len(ids) <= most
    assert not info.eos_ids & set(ids[:-1])
    if said.whole is None:
        return
    finish, text = said.whole.finish, said.whole.text
    assert not said.whole.plain_steps.get("drafter fault")
    if finish == "eos":
        assert ids[-1] in info.eos_ids
    elif finish == "length":
        assert len(ids) == most
    else:
        stop = stop_on(row, prompt)
        assert finish == "stop"
        assert stop is not None or row.stop == "criteria" or row.shape == "grammar"
        assert stop is None or stop not in text
        if row.stop == "criteria":
            assert len(ids) == (row.limit + 1) // 2
