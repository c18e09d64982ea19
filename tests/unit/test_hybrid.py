"""Two drafters, one tree: what is merged, what is believed, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from eyespan.drafters import make_drafter
from eyespan.drafters.base import Ask
from eyespan.drafters.hybrid import ALONE, BOTH, Beliefs, Hybrid, HybridSession
from eyespan.errors import ConfigError
from eyespan.types import DraftTree, Ints, PackedTree, Step, TargetOut, Verdict

VOCAB = 16


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def tree(nodes: list[tuple[int, int]], scores: list[float]) -> DraftTree:
    tokens, parents = zip(*nodes, strict=True)
    return DraftTree(ints(*tokens), ints(*parents), np.array(scores, np.float32))


class Quiet:
    def observe(self, step: Step) -> None: ...


def session(**options: object) -> HybridSession:
    drafter = Hybrid(vocab_size=VOCAB, first="recap", second="sam", **options)
    return HybridSession(drafter, [Quiet(), Quiet()], Beliefs())  # type: ignore[list-item]


def paths(draft: DraftTree) -> dict[tuple[int, ...], int]:
    """Every node's path, with its origin."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert draft.origins is not None
    return dict(zip(found, draft.origins.tolist(), strict=True))


ONE = tree([(3, -1), (4, 0), (5, -1)], [0.8, 0.4, 0.1])
OTHER = tree([(3, -1), (7, 0), (8, 1)], [0.9, 0.5, 0.3])


def merged(
    one: HybridSession, budget: int, drafts: Sequence[DraftTree] = (ONE, OTHER), prefix: int = 2
) -> DraftTree:
    beliefs = one.beliefs.parts
    first, second = (b.guess(draft, prefix) for b, draft in zip(beliefs, drafts, strict=True))
    return one.merge(first, second, Ask(one, ints(*range(1, prefix + 1)), budget))


def test_shared_nodes_are_one_node_and_know_it() -> None:
    assert paths(merged(session(), 63)) == {
        (3,): BOTH, (3, 4): 0, (5,): 0, (3, 7): 1, (3, 7, 8): 1,
    }  # fmt: skip


def test_a_part_that_proposes_alone_is_a_source_of_its_own() -> None:
    """Its guesses are right more often than those that another part, asked too, does not share."""
    nothing = DraftTree.empty()
    assert set(paths(merged(session(), 63, (ONE, nothing))).values()) == {ALONE}
    assert set(paths(merged(session(), 63, (nothing, OTHER))).values()) == {ALONE + 1}
    assert len(merged(session(), 63, (nothing, nothing))) == 0


def test_a_budget_keeps_the_likeliest_of_both_and_their_parents() -> None:
    assert set(paths(merged(session(), 3))) == {(3,), (3, 7), (3, 4)}
    assert set(paths(merged(session(), 1))) == {(3,)}


def test_proposing_twice_gives_the_same_tree() -> None:
    one = session()
    first, second = merged(one, 4), merged(one, 4)
    assert paths(first) == paths(second)
    assert first.scores is not None
    assert second.scores is not None
    assert first.scores.tolist() == second.scores.tolist()


def step(prefix: list[int], tokens: tuple[int, ...]) -> Step:
    packed = PackedTree(ints(prefix[-1]), ints(-1), ints(0), np.zeros((1, 2), np.uint64), ints())
    out = TargetOut(row_ids=ints(), row_logits=np.empty(0, np.float32), logits=None)
    return Step(ints(*prefix), packed, out, Verdict(ints(), tokens[-1], tokens))


def test_the_part_that_was_right_is_believed() -> None:
    """The second part guesses 3 7 8, and the text says so time and again."""
    one = session()
    assert set(paths(merged(one, 2))) == {(3,), (3, 7)}
    wrong = tree([(9, -1), (10, 0)], [0.95, 0.9])
    for _ in range(20):
        merged(one, 63, (wrong, OTHER))
        one.observe(step([1, 2], (3, 7, 8)))
    assert set(paths(merged(one, 3, (wrong, OTHER)))) == {(3,), (3, 7), (3, 7, 8)}


def test_open_guesses_wait_for_their_text() -> None:
    one = session()
    merged(one, 63)
    one.observe(step([1, 2], (3,)))
    assert len(one._open) == 1, "a tree of depth 3 has not been passed by one token"
    one.observe(step([1, 2, 3], (7, 8)))
    assert not one._open


def test_options_go_to_the_part_that_knows_them() -> None:
    drafter = Hybrid(vocab_size=VOCAB, first="recap", second="sam", min_match=3, fusion="uniform")
    assert drafter.parts[0].config_dict()["fusion"] == "uniform"
    assert drafter.parts[1].config_dict()["min_match"] == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"second": "recap"}, "another drafter than the first"),
        ({"second": "hybrid"}, "another drafter than itself"),
        ({"second": "viskip"}, "without a gate"),
        ({"first": "eagle3"}, "at most one trained head"),
        ({"nodes": 0}, "from 1 to 127"),
        ({"first": "recapp"}, "recap"),
        ({"second": "sam", "fusionn": "x"}, "fusion"),
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_drafter("hybrid", vocab_size=VOCAB, **options)
