"""A tree stops growing where another level costs more than it brings: a head whose chances and
times are known, against every depth tried out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eyespan.budget import Calibration, CostCurve, Guess, Pace
from eyespan.drafters._attention import KeyValues
from eyespan.drafters._growth import Candidates, Roots, best_trees, grow
from eyespan.drafters._head import Condition, DraftHead, Hidden
from eyespan.drafters._head_config import HeadConfig
from eyespan.drafters._pacing import PROBE, Pacing
from eyespan.moment import Moment
from eyespan.types import DraftTree
from tests.drafting import ints

VOCAB, WIDTH, DEPTH, NODES = 40, 3, 6, 12
CURVE = CostCurve(sizes=(1, 2, 8, 64), ms=(10.0, 11.0, 14.0, 42.0))


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> Moment:
        return Moment(self.ms / 1e3, self.ms / 1e3)


class KnownHead(DraftHead):
    """The best child of every node has the chance `sure`, its sisters share the rest evenly; a
    level takes `ms`.
    """

    method = "known"

    def __init__(self, sure: float, ms: float, clock: Clock) -> None:
        config = HeadConfig(
            hidden_size=4, heads=1, kv_heads=1, head_dim=4, intermediate_size=4, vocab_size=VOCAB
        )
        super().__init__(config)
        self.sure, self.ms, self.clock, self.forwards = sure, ms, clock, 0
        self.attach(torch.zeros(VOCAB, 4), torch.zeros(VOCAB, 4))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        return embeds

    def feedback(self, last: Tensor) -> Tensor:
        return last

    def stack(self, x: Tensor, positions: Tensor, attend: Any) -> Hidden:
        self.forwards += 1
        self.clock.ms += self.ms
        return Hidden(x, x)

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        chances = torch.full((VOCAB,), (1 - self.sure) / (VOCAB - 1))
        chances[7] = self.sure
        return chances.log().expand(*last.shape[:2], VOCAB)


def pace_of(curve: CostCurve = CURVE, **more: Any) -> Pace:
    return Pace(curve=curve, beliefs=Calibration(sources=4), cap=NODES, one_pass=True)._replace(
        **more
    )


def draft(head: KnownHead, pacing: Pacing, *paces: Pace, ends: int | None = None) -> Candidates:
    """One proposal; making the context took as long as a level."""
    rows = len(paces)
    growing = pacing.begin(paces, nodes=NODES, width=WIDTH, depth=DEPTH)
    head.clock.ms += head.ms
    marks = torch.zeros(rows, VOCAB, dtype=torch.bool)
    ending = marks.clone()
    if ends is not None:
        ending[:, ends] = True
    roots = Roots(
        last=torch.zeros(rows, 1, 4),
        positions=torch.zeros(rows, dtype=torch.long),
        condition={},
        forbidden=marks,
        ends=ending,
        generator=None,
    )
    cache = KeyValues(1, 1, 4, batch=rows, dtype=torch.float32, device=torch.device("cpu"))
    return grow(head, cache, roots, width=WIDTH, depth=DEPTH, growing=growing)


def forwards(sure: float, ms: float, *paces: Pace, rounds: int = 12) -> int:
    """Forwards of a head's last tree after some rounds."""
    clock = Clock()
    head, pacing = KnownHead(sure, ms, clock), Pacing(on_cpu=True, clock=clock)
    for _ in range(rounds):
        head.forwards = 0
        draft(head, pacing, *(paces or (pace_of(),)))
    return head.forwards


def nets_of(sure: float, ms: float, speedup: float) -> list[float]:
    """Tokens beyond what the time is worth, by forwards of the head, from trying them all on whole
    trees.
    """
    nets, price = [], speedup / CURVE.ms[0]
    for deep in range(1, DEPTH + 1):
        clock = Clock()
        head, pacing = KnownHead(sure, 0.0, clock), Pacing(on_cpu=True, clock=clock)
        found = draft(head, pacing, pace_of())  # a free head grows all levels
        (tree,) = best_trees(found, [found.tokens.shape[1]])
        chances = tree.scores
        assert chances is not None
        depths: list[int] = []
        for parent in tree.parents.tolist():
            depths.append(1 if parent < 0 else depths[parent] + 1)
        kept = np.sort(chances[np.array(depths) <= deep])[::-1][:NODES]
        costs = CURVE.of(np.arange(1, len(kept) + 2)) + deep * ms
        nets.append((np.concatenate([[1.0], 1 + kept.cumsum()]) - price * costs).max())
    return nets


@pytest.mark.parametrize("speedup", [1.0, 1.7, 3.0])
@pytest.mark.parametrize("ms", [0.01, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0])
@pytest.mark.parametrize("sure", [0.2, 0.6, 0.9, 0.99])
def test_no_depth_is_better_than_the_one_that_is_chosen(
    sure: float, ms: float, speedup: float
) -> None:
    nets = nets_of(sure, ms, speedup)
    assert nets[forwards(sure, ms, pace_of(speedup=speedup))] > max(nets) - 0.05


def test_a_sure_and_cheap_head_grows_all_levels_and_a_dear_or_guessing_one_none() -> None:
    assert forwards(0.99, 0.1) == DEPTH - 1
    assert forwards(0.99, 60.0) == 0
    assert forwards(0.1, 4.0) == 0
    assert [forwards(0.9, ms) for ms in (0.1, 2.0, 4.0, 60.0)] == sorted(
        (forwards(0.9, ms) for ms in (0.1, 2.0, 4.0, 60.0)), reverse=True
    )


def test_the_first_trees_are_whole_and_so_is_one_now_and_then() -> None:
    """What is not grown is not measured."""
    whole = DEPTH - 1
    first = [forwards(0.99, 60.0, rounds=rounds) for rounds in (1, 2, 3, 4)]
    assert first == [whole, whole, 1, 0]  # in the third, one level is enough to be sure
    assert [forwards(0.99, 60.0, rounds=PROBE + at) for at in (0, 1)] == [whole, 0]


def test_what_came_true_counts_and_not_what_a_head_says_of_itself() -> None:
    """Nodes that are never accepted are not grown from, however sure the head is."""
    pace = pace_of()
    clock = Clock()
    head, pacing = KnownHead(0.95, 1.0, clock), Pacing(on_cpu=True, clock=clock)
    believed = disappointed = 0
    for at in range(40):
        head.forwards = 0
        (tree,) = best_trees(draft(head, pacing, pace), [NODES])
        believed = head.forwards if at == 2 else believed
        guess: Guess = pace.beliefs.guess(tree, at)
        pace.beliefs.learn(guess, ints([0] * DEPTH))  # the text never follows
        disappointed = head.forwards
    assert believed >= 3
    assert disappointed == 0


def test_nodes_beyond_the_cap_are_not_grown_for() -> None:
    assert forwards(0.99, 1.0, pace_of(cap=1)) <= 1 < forwards(0.99, 1.0)


def test_where_every_node_ends_the_answer_nothing_is_grown() -> None:
    clock = Clock()
    head, pacing = KnownHead(0.999999, 1.0, clock), Pacing(on_cpu=True, clock=clock)
    for _ in range(4):
        head.forwards = 0
        draft(head, pacing, pace_of(), ends=7)
    assert head.forwards == 0


def test_a_level_is_one_forward_for_all_rows() -> None:
    """A level that is too dear for one sequence pays for four that are verified one by one."""
    assert forwards(0.8, 9.0) == 0
    assert forwards(0.8, 9.0, *[pace_of(one_pass=False)] * 4) >= 2


def rival(*chances: float) -> Guess:
    """A chain that another drafter guessed: each node's chance to be committed."""
    tokens, parents = ints([5] * len(chances)), ints(list(range(-1, len(chances) - 1)))
    depths = ints(list(range(1, len(chances) + 1)))
    return Guess(0, DraftTree(tokens, parents), depths, depths, np.array(chances))


def begins(sure: float, ms: float, *paces: Pace) -> bool:
    """Whether a head that is known by now is asked at all."""
    clock = Clock()
    head, pacing = KnownHead(sure, ms, clock), Pacing(on_cpu=True, clock=clock)
    for _ in range(12):
        draft(head, pacing, *[pace_of()] * len(paces))
    return pacing.begin(paces, nodes=NODES, width=WIDTH, depth=DEPTH).begins()


def test_a_head_is_asked_where_the_other_tree_leaves_something_to_win() -> None:
    sure, doubtful = (pace_of(rival=rival(*[chance] * 4)) for chance in (0.98, 0.05))
    assert not begins(0.9, 2.0, sure)
    assert begins(0.9, 2.0, doubtful)
    assert not begins(0.9, 30.0, doubtful), "too dear for what it would bring"
    assert begins(0.9, 2.0, pace_of(rival=rival())), "the other has nothing"
    assert begins(0.9, 30.0, pace_of()), "with no other drafter it is asked, whatever it costs"
    assert begins(0.9, 2.0, sure, pace_of()), "one row of a batch needs it"


def test_levels_are_grown_for_what_the_other_tree_lacks() -> None:
    alone = forwards(0.9, 2.0)
    assert alone > 1
    assert forwards(0.9, 2.0, pace_of(rival=rival(0.9, 0.9, 0.9, 0.9, 0.9, 0.9))) == 0
    assert forwards(0.9, 2.0, pace_of(rival=rival(0.01, 0.01))) == alone


def test_slow_rounds_change_nothing() -> None:
    clock = Clock()
    head, pacing = KnownHead(0.99, 0.1, clock), Pacing(on_cpu=True, clock=clock)
    for at in range(12):
        head.forwards, head.ms = 0, 500.0 if at in (0, 5) else 0.1
        draft(head, pacing, pace_of())
    assert head.forwards == DEPTH - 1
