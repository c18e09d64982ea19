"""For every drafter: the loop's text is plain decoding's text, cut exactly, whatever is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.budget import CostCurve
from eyespan.drafters import DRAFTERS
from eyespan.drafters.base import Ask
from eyespan.draw import Chooser, History, by_position, from_stream, new_generator
from eyespan.engine import Decoder
from eyespan.policy import Policy
from eyespan.sequence import Running
from eyespan.types import Cut, DraftTree, Request, TargetOut
from tests.toy_drafters import WEIGHTED, Broken, Oracle, RandomDrafter, drafter_for
from tests.toys import ToyTarget, toy_row

CURVE = CostCurve(sizes=(1, 2, 16, 64), ms=(10.0, 11.0, 14.0, 30.0))
EVERY = [*DRAFTERS, "random", "oracle"]


def request_for(target: ToyTarget, prompt: Sequence[int], limit: int, name: str = "a") -> Request:
    return Request(
        id=name,
        prompt_ids=np.array(prompt, np.int32),
        media_ids=target.media_ids,
        eos_ids=target.eos_ids,
        max_new_tokens=limit,
        scope=name,
    )


def start(decoder: Decoder, request: Request, stop_at: int | None = None) -> Running:
    seen: list[int] = []

    def on_token(token: int, source: str) -> Cut | None:
        seen.append(token)
        return "stop" if len(seen) == stop_at else None

    running = Running(request, on_token=on_token)
    decoder.start(running, request.prompt_ids)  # type: ignore[arg-type]
    return running


def finish(decoder: Decoder, *batch: Running) -> None:
    """Round after round until every request has ended."""
    while open_ones := [running for running in batch if running.finish is None]:
        decoder.step(open_ones)


prompts = st.lists(st.integers(2, 11), min_size=1, max_size=30)
budgets = st.sampled_from(["auto", "fixed", 0, 1, 4, 63])


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WEIGHTED])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_seeded_sample_is_plain_decodings(name: str, data: st.DataObject) -> None:
    check_sample(name, data)


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_seeded_sample_is_plain_decodings_with_weights(name: str, data: st.DataObject) -> None:
    check_sample(name, data)


def check_sample(name: str, data: st.DataObject) -> None:
    """One draw a token, in order, whatever was guessed; a stateful processor stays in step."""
    target = ToyTarget(vocab=12, media_ids=frozenset({0, 5}))
    prompt, limit = data.draw(prompts), data.draw(st.integers(1, 40))
    seed, by_stream = data.draw(st.integers(0, 99)), data.draw(st.booleans())

    def chooser() -> Chooser:
        calls: list[int] = []

        def shape(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            calls.append(ids.shape[1])
            return scores * 2 - torch.nn.functional.one_hot(ids[:, -1], 12) * (len(calls) % 3)

        pick = from_stream(new_generator(seed, "cpu")) if by_stream else by_position(seed)
        return Chooser(History(torch.tensor([prompt]), 100), shape, pick)

    plain, said = chooser(), list(prompt)
    while len(said) < len(prompt) + limit:
        said.append(plain(toy_row(said, 12), np.array(said, np.int32)))
        if said[-1] in target.eos_ids:
            break
    drafter = drafter_for(name, target, seed=data.draw(st.integers(0, 9)))
    decoder = Decoder(target, drafter, Policy(data.draw(budgets), drafter, CURVE))  # type: ignore[arg-type]
    request = request_for(target, prompt, limit)
    running = Running(request, on_token=lambda token, source: None, draw=chooser())
    decoder.start(running, request.prompt_ids)  # type: ignore[arg-type]
    finish(decoder, running)
    assert running.output_ids.tolist() == said[len(prompt) :]


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WEIGHTED])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_output_is_plain_decodings(name: str, data: st.DataObject) -> None:
    check_output(name, data)


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_output_is_plain_decodings_with_weights(name: str, data: st.DataObject) -> None:
    check_output(name, data)


def check_output(name: str, data: st.DataObject) -> None:
    target = ToyTarget(vocab=data.draw(st.sampled_from([12, 16])), media_ids=frozenset({0, 5}))
    prompt = data.draw(prompts)
    limit = data.draw(st.integers(1, 60))
    drafter = drafter_for(name, target, seed=data.draw(st.integers(0, 9)))
    decoder = Decoder(target, drafter, Policy(data.draw(budgets), drafter, CURVE))  # type: ignore[arg-type]
    stop_at = data.draw(st.none() | st.integers(1, 60))
    running = start(decoder, request_for(target, prompt, limit), stop_at)
    finish(decoder, running)

    expected = target.plain(prompt, min(limit, stop_at or limit))
    counters = running.counters
    assert running.output_ids.tolist() == expected
    assert "drafter fault" not in counters.plain_steps
    assert counters.forwards == 1 + len(target.passes)
    assert counters.drafted == sum(target.passes) - len(target.passes)
    # every round commits its accepted nodes and one token more, unless a node ended the text
    assert len(expected) - 1 - counters.accepted in (len(target.passes), len(target.passes) - 1)
    if running.finish == "eos":
        assert expected[-1] in target.eos_ids
    elif running.finish == "length":
        assert len(expected) == limit
    else:
        assert len(expected) == stop_at


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_requests_of_one_batch_do_not_touch_each_other(name: str, data: st.DataObject) -> None:
    target = ToyTarget()
    drafter = drafter_for(name, target)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    inputs = data.draw(st.lists(st.tuples(prompts, st.integers(1, 25)), min_size=2, max_size=4))
    batch = [
        start(decoder, request_for(target, prompt, limit, name=str(at)))
        for at, (prompt, limit) in enumerate(inputs)
    ]
    finish(decoder, *batch)
    for running, (prompt, limit) in zip(batch, inputs, strict=True):
        assert running.output_ids.tolist() == target.plain(prompt, limit)


def test_a_target_that_drafts_for_itself_is_always_accepted() -> None:
    target = ToyTarget(eos_ids=frozenset())
    drafter = Oracle(target, length=4)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    running = start(decoder, request_for(target, [3, 4], 41))
    finish(decoder, running)
    assert running.counters.accepted == running.counters.drafted == 32
    assert running.counters.forwards == 1 + 8  # the prefill, then 8 rounds of 4 + 1


@pytest.mark.parametrize("where", ["propose", "observe"])
def test_a_broken_drafter_costs_speed_never_the_answer(where: str) -> None:
    target = ToyTarget(eos_ids=frozenset())
    drafter = Broken(target.vocab, where)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    running = start(decoder, request_for(target, [3, 4], 30))
    finish(decoder, running)
    assert running.output_ids.tolist() == target.plain([3, 4], 30)
    assert running.counters.plain_steps["drafter fault"] == 1
    assert running.counters.plain_steps["off"] > 10


class BrokenGate(Oracle):
    """Fails when it is asked whether its guesses count."""

    def passes(self, out: TargetOut) -> bool:
        raise RuntimeError("broken on purpose")


def test_a_broken_gate_costs_speed_never_the_answer() -> None:
    target = ToyTarget(eos_ids=frozenset())
    drafter = BrokenGate(target)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    running = start(decoder, request_for(target, [3, 4], 30))
    finish(decoder, running)
    assert running.output_ids.tolist() == target.plain([3, 4], 30)
    assert running.counters.plain_steps["drafter fault"] == 1


def test_A46_auto_is_plain_where_no_draft_pays() -> None:
    """Every node costs a whole step and guesses are random: nearly all rounds must be plain."""
    target = ToyTarget(vocab=64, eos_ids=frozenset())
    drafter = RandomDrafter(target.vocab, 1)
    dear = CostCurve(sizes=(1, 64), ms=(10.0, 640.0))
    decoder = Decoder(target, drafter, Policy("auto", drafter, dear))
    running = start(decoder, request_for(target, [3, 4], 300))
    finish(decoder, running)
    assert running.counters.drafted < 30
    assert running.output_ids.tolist() == target.plain([3, 4], 300)
    assert running.counters.forwards <= 300  # not one forward more than plain decoding


def test_auto_finds_the_worth_of_a_good_drafter() -> None:
    target = ToyTarget(eos_ids=frozenset())
    drafter = Oracle(target, length=4)
    decoder = Decoder(target, drafter, Policy("auto", drafter, CURVE))
    running = start(decoder, request_for(target, [3, 4], 300))
    finish(decoder, running)
    assert len(running.output_ids) / running.counters.forwards > 4.5


def tree(tokens: Sequence[int], parents: Sequence[int], **more: Any) -> DraftTree:
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), **more)


MALFORMED = {
    "an id past the vocabulary": tree([16], [-1]),
    "a negative id": tree([-1], [-1]),
    "a parent after its child": tree([2, 3], [1, -1]),
    "a parent that is itself": tree([2], [0]),
    "a parent below the root": tree([2], [-5]),
    "scores that are no numbers": tree([2], [-1], scores=np.array([np.nan], np.float32)),
    "fewer scores than nodes": tree([2, 3], [-1, 0], scores=np.array([0.5], np.float32)),
    "an origin without a name": tree([2], [-1], origins=np.array([7]), origin_names=("a",)),
    "more nodes than a pack holds": tree([2] * 200, [-1] * 200),
    "no tree at all": "a tree",
}


class Malformed(RandomDrafter):
    """Its session proposes one and the same thing."""

    def __init__(self, draft: Any) -> None:
        super().__init__(16, 0)
        self.draft = draft

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return [self.draft for _ in asks]


@pytest.mark.parametrize("budget", ["fixed", "auto"])
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_draft_costs_speed_never_the_answer(what: str, budget: Any) -> None:
    target = ToyTarget(eos_ids=frozenset())
    drafter = Malformed(MALFORMED[what])
    decoder = Decoder(target, drafter, Policy(budget, drafter, CURVE))  # type: ignore[arg-type]
    running = start(decoder, request_for(target, [2, 3], 30))
    finish(decoder, running)
    assert running.output_ids.tolist() == target.plain([2, 3], 30)
    if budget == "fixed" or what == "scores that are no numbers":
        assert running.counters.plain_steps["drafter fault"] == 1


def test_a_drafter_that_cannot_begin_costs_speed_never_the_answer() -> None:
    target = ToyTarget(eos_ids=frozenset())
    drafter = Broken(target.vocab, "begin")
    decoder = Decoder(target, drafter, Policy("fixed", drafter))  # type: ignore[arg-type]
    running = start(decoder, request_for(target, [2, 3], 30))
    finish(decoder, running)
    assert running.output_ids.tolist() == target.plain([2, 3], 30)
    assert running.counters.plain_steps["drafter fault"] == 1


def test_a_drafter_cannot_write_into_the_text() -> None:
    target = ToyTarget()
    running = Running(request_for(target, [2, 3], 30), on_token=lambda token, source: None)
    with pytest.raises(ValueError, match="read-only"):
        running.ids[:] = 0


def test_room_grows_with_the_answer() -> None:
    target = ToyTarget(eos_ids=frozenset())
    running = Running(request_for(target, [2, 3], 10**9), on_token=lambda token, source: None)
    early = running.ids
    for token in range(3000):
        running.emit(token, "target")
    assert running.output_ids.tolist() == list(range(3000))
    assert early.tolist() == [2, 3]
    assert running.room == 10**9 - 3000
