"""How far a draft goes along the recorded answer, at equal node counts (RECAP tables 6 and 7).

At every state every policy drafts from what earlier states left in its memory; then all draft again
with the smallest number of nodes that any of them had, and the longest path that agrees with the
answer counts (appendix B). What is learned after a state is the target's one row there: the native
run, in which nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from eyespan._core import pack
from eyespan.diagnostics.playback import check_feeds, prefill_of
from eyespan.diagnostics.recorded import Recorded, Recording
from eyespan.drafters.base import Drafter, Session
from eyespan.types import (
    ROW_SIZE,
    DraftTree,
    Needs,
    PackedTree,
    Step,
    TargetOut,
    Verdict,
    empty_ints,
)

CAP = 63
"""Most nodes of a replayed tree (appendix B)."""


@dataclass(slots=True)
class Matched:
    """One policy's matches over all states of a recording.

    Attributes:
        states: how many.
        length: sum of matched continuation lengths, root and correction token left out.
        first: states whose next token was among the root's children.
        nodes: sum of node counts, after they were made equal.
        by_group: length and states of each group.
    """

    states: int = 0
    length: int = 0
    first: int = 0
    nodes: int = 0
    by_group: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, group: str, length: int, nodes: int) -> None:
        """Count one state."""
        self.states += 1
        self.length += length
        self.first += length > 0
        self.nodes += nodes
        total, count = self.by_group.get(group, (0.0, 0.0))
        self.by_group[group] = (total + length, count + 1)

    @property
    def mean(self) -> float:
        """Mean matched length."""
        return self.length / self.states if self.states else 0.0


@dataclass(slots=True)
class Comparison:
    """All policies of one recording, and how fast they were replayed.

    Attributes:
        policies: by name, in order.
        seconds: wall time.
    """

    policies: dict[str, Matched]
    seconds: float = 0.0


def compare(
    recording: Recording, drafters: Mapping[str, Drafter], *, seeded: bool, cap: int = CAP
) -> Comparison:
    """Replay every state with every policy.

    Args:
        recording: one stream; shared memory lives through it and is empty at its start.
        drafters: policies by name; they are reset first.
        seeded: whether prompts seed memory. Without it retrieval begins empty.
        cap: most nodes of a tree.

    Raises:
        ConfigError, InputError: a drafter needs what the trace does not hold.
    """
    for drafter in drafters.values():
        check_feeds(recording, drafter.needs, drafter.name)
        drafter.reset()
    found = Comparison({name: Matched() for name in drafters})
    started = perf_counter()
    for one in recording.requests:
        sessions = {name: open_session(drafter, one, seeded) for name, drafter in drafters.items()}
        for state in range(one.states):
            _state(one, state, sessions, found.policies, cap)
    found.seconds = perf_counter() - started
    return found


def open_session(drafter: Drafter, one: Recorded, seeded: bool) -> Session:
    """A session on a recorded prompt, its rows given or withheld."""
    needs = drafter.needs if seeded else Needs()
    return drafter.begin(one.request, prefill_of(one, needs))


def _state(
    one: Recorded,
    state: int,
    sessions: Mapping[str, Session],
    policies: Mapping[str, Matched],
    cap: int,
) -> None:
    """Query all policies at one state, then let them learn its row."""
    prefix, ahead = one.prefix(state), one.output[state + 1 :].tolist()
    trees = {name: session.propose(prefix, cap) for name, session in sessions.items()}
    equal = min(cap, *(len(tree) for tree in trees.values()))
    step = plain_step(one, state)
    for name, session in sessions.items():
        tree = trees[name]
        if len(tree) > equal:
            tree = first_nodes(session.propose(prefix, equal), equal) if equal else tree.empty()
        policies[name].add(one.group, matched_length(tree, ahead), len(tree))
        session.observe(step)


def first_nodes(tree: DraftTree, count: int) -> DraftTree:
    """A tree without its last nodes; parents come first, so what is left is a tree."""
    if len(tree) <= count:
        return tree
    return replace(
        tree, tokens=tree.tokens[:count], parents=tree.parents[:count], scores=None, origins=None
    )


def matched_length(tree: DraftTree, ahead: Sequence[int]) -> int:
    """Nodes of the longest path that says what comes.

    Args:
        tree: a draft.
        ahead: the tokens that come.
    """
    at = -1
    for length, token in enumerate(ahead):
        below = np.flatnonzero((tree.parents == at) & (tree.tokens == token))
        if not below.size:
            return length
        at = int(below[0])
    return len(ahead)


def plain_step(one: Recorded, state: int) -> Step:
    """The round of plain decoding at one state: a pack of the root alone, with its row if known."""
    following = int(one.output[state + 1])
    tree = PackedTree(*pack(empty_ints(), empty_ints(), None, int(one.output[state])))
    if len(one.rows):
        ids, logits = one.rows.ids[state : state + 1], one.rows.logits[state : state + 1]
    else:
        ids = np.full((1, ROW_SIZE), -1, np.int32)
        logits = np.full((1, ROW_SIZE), -np.inf, np.float32)
    out = TargetOut(row_ids=ids, row_logits=logits, logits=None)
    return Step(one.prefix(state), tree, out, Verdict(empty_ints(), following, (following,)))
