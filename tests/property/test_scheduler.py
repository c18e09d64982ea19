"""Requests that join, leave, fail and are cancelled at random: with every drafter, each says what
it says alone, cut where it was cancelled. And the budget rule for rows that share a pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.batching import Scheduler, Ticket
from eyespan.budget import MARGIN, CostCurve, best_cuts, price
from eyespan.drafters import DRAFTERS
from eyespan.engine import Decoder
from eyespan.generation import Engine
from eyespan.policy import Policy
from eyespan.target.base import Prompt
from tests.reference.budget import best_width
from tests.toy_drafters import Broken, drafter_for
from tests.toys import ToyTarget

CURVE = CostCurve(sizes=(1, 2, 16, 64), ms=(10.0, 11.0, 14.0, 30.0))


class TalkingToy(ToyTarget):
    """A toy target that takes an engine's prompts and reads ids aloud."""

    def prefill(self, prompt: Any, needs: Any) -> Any:
        return super().prefill(getattr(prompt, "ids", prompt), needs)

    def decode(self, ids: Any) -> str:
        return "".join(chr(97 + int(token)) for token in ids)


def toy_engine(name: str, target: TalkingToy, budget: Any = 0, seed: int = 0) -> Engine:
    target.info.device = "cpu"
    drafter: Any = Broken(target.vocab, "propose")
    if name != "broken":
        drafter = drafter_for(name, target, seed)
    engine = Engine(target, drafter, budget=0)  # type: ignore[arg-type]
    policy = Policy(budget, drafter, CURVE, one_pass=True)
    engine.policy, engine.decoder = policy, Decoder(target, drafter, policy)  # type: ignore[arg-type]
    return engine


def prompt_of(ids: list[int]) -> Prompt:
    tensor = torch.tensor([ids])
    return Prompt(ids=np.array(ids, np.int32), input_ids=tensor, position_ids=tensor)


class FailsAfter:
    """A processor that raises at some call."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.calls -= 1
        if self.calls < 0:
            raise ArithmeticError("on purpose")
        return scores


requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(2, 11), min_size=1, max_size=20),
        "max_new_tokens": st.integers(1, 30),
        "stop": st.none() | st.text("cdefgh", min_size=1, max_size=2),
        "seed": st.none() | st.integers(0, 9),
        "join": st.integers(0, 12),
        "cancel": st.none() | st.integers(0, 12),
        "fail": st.none() | st.integers(0, 20),
    }
)


@pytest.mark.parametrize("name", [*DRAFTERS, "random", "oracle", "broken"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_each_request_says_what_it_says_alone(name: str, data: st.DataObject) -> None:
    target = TalkingToy(vocab=14, media_ids=frozenset({0, 5}))
    budget, seed = data.draw(st.sampled_from(["auto", "fixed", 4])), data.draw(st.integers(0, 9))
    engine, plain = toy_engine(name, target, budget, seed), toy_engine("none", TalkingToy(vocab=14))
    asked = data.draw(st.lists(requests, min_size=1, max_size=6))
    rows = data.draw(st.integers(1, 4))
    tickets: dict[int, Ticket] = {}
    with Scheduler(engine, max_rows=rows) as scheduler:
        for now in range(60):
            for at, each in enumerate(asked):
                if each["join"] == now:
                    tickets[at] = scheduler.submit(prompt_of(each["prompt"]), **options_of(each))
                if each["cancel"] == now and at in tickets:
                    tickets[at].cancel()
            assert scheduler.running <= rows
            scheduler.step()
            assert scheduler.running <= rows
        scheduler.drain()
    for at, ticket in tickets.items():
        check(ticket, plain, asked[at], media=target.media_ids)


def options_of(asked: dict[str, Any]) -> dict[str, Any]:
    options = {name: asked[name] for name in ("max_new_tokens", "stop")}
    if asked["seed"] is not None:
        options |= {"seed": asked["seed"], "temperature": 0.8}
    if asked["fail"] is not None:
        options["logits_processors"] = [FailsAfter(asked["fail"])]
    return options


def check(ticket: Ticket, plain: Engine, asked: dict[str, Any], media: frozenset[int]) -> None:
    """Compare a request with plain decoding of the same request alone."""
    stream = plain.stream(prompt_of(asked["prompt"]), **options_of({**asked, "fail": None}))
    alone = stream.finish()
    said = ticket._generation
    assert said is not None
    assert said.token_ids == alone.token_ids[: len(said.token_ids)]
    if ticket.error is not None:
        assert isinstance(ticket.error, ArithmeticError)
        assert len(said.token_ids) == asked["fail"]
    elif said.finish == "cancelled":
        assert asked["cancel"] is not None
    else:
        assert (said.token_ids, said.text, said.finish) == (
            alone.token_ids,
            alone.text,
            alone.finish,
        )
    assert ticket._running.state is None
    assert ticket._running.session is None


def test_one_drafters_fault_is_one_requests() -> None:
    """A session that fails costs its own request speed; a proposal asked again is no other."""
    target = TalkingToy(eos_ids=frozenset())
    engine = toy_engine("oracle", target, "fixed")
    with Scheduler(engine) as scheduler:
        tickets = [scheduler.submit(prompt_of([2, at]), max_new_tokens=20) for at in (3, 4, 6)]
        scheduler.step()

        def propose(prefix: Any, budget: int) -> Any:
            raise RuntimeError("broken on purpose")

        tickets[1]._running.session.propose = propose  # type: ignore[method-assign, union-attr]
        scheduler.drain()
    faults = [ticket.generation.plain_steps.get("drafter fault", 0) for ticket in tickets]
    assert faults == [0, 1, 0]
    for ticket, start in zip(tickets, (3, 4, 6), strict=True):
        assert list(ticket.generation.token_ids) == target.plain([2, start], 20)


def test_propose_many_is_asked_once_for_all() -> None:
    target = TalkingToy(eos_ids=frozenset())
    engine = toy_engine("oracle", target, "fixed")
    asked: list[int] = []
    real = engine.drafter.propose_many

    def propose_many(asks: Any) -> Any:
        asked.append(len(asks))
        return real(asks)

    engine.drafter.propose_many = propose_many  # type: ignore[method-assign]
    engine.generate_many([prompt_of([2, at]) for at in (3, 4, 6)], max_new_tokens=11)
    assert asked == [3, 3]


chances = st.lists(st.floats(0.01, 1.0), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(chances, min_size=1, max_size=5),
    dear=st.floats(1.0, 40.0),
    speedup=st.floats(1.0, 3.0),
    cap=st.integers(1, 12),
    worth=st.sampled_from([0.0, 0.02]),
)
def test_rows_of_one_pass_are_sized_together(
    rows: list[list[float]], dear: float, speedup: float, cap: int, worth: float
) -> None:
    curve = CostCurve(sizes=(1, 4, 64), ms=(10.0, 10.0 + dear / 10, 10.0 + dear))
    given_ = [np.array(row) for row in rows]
    cuts = best_cuts(given_, curve, speedup=speedup, cap=cap, worth=worth)
    costs = curve.widths(len(rows))
    paid = price(costs, len(rows), speedup)
    width = best_width(rows, costs.tolist(), price=paid, cap=cap, worth=worth, margin=MARGIN)
    assert [cut.size for cut in cuts] == [min(len(row), width) for row in rows]
    for row, cut in zip(given_, cuts, strict=True):
        assert sorted(row[cut])[::-1] == sorted(row)[::-1][: cut.size]


def test_a_full_batch_drafts_less() -> None:
    """Where passes are free up to 16 nodes, eight rows leave each of them one guess."""
    curve = CostCurve(sizes=(1, 16, 17, 64), ms=(10.0, 10.0, 20.0, 200.0))
    row = np.array([0.9, 0.8, 0.7, 0.6])
    assert [cut.size for cut in best_cuts([row], curve, cap=127)] == [4]
    assert [cut.size for cut in best_cuts([row] * 8, curve, cap=127)] == [1] * 8
