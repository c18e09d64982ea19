"""One running request: its tokens, where it stands in the target, how it ends, what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from eyespan.budget import Guess
from eyespan.drafters.base import Session
from eyespan.types import Cut, DraftTree, Finish, Ints, PackedTree, Prefill, Request, Step

if TYPE_CHECKING:
    from eyespan.draw import Lots

STAGES = ("propose", "pack", "forward", "verify", "commit", "refresh")

Draw = Callable[[Any, Ints], int]
"""(logits [V] on the target's device, ids so far [P]) -> the target's token."""

FIRST_ROOM = 1024
"""Tokens of an answer that have room from the start."""

Prune = Callable[[DraftTree], DraftTree]
"""A guess -> the part of it that could be committed after the ids so far."""

OnToken = Callable[[int, str], "Cut | None"]
"""(committed id, "target" or the source of the guess) -> why the answer ends here, or None."""


@dataclass(slots=True)
class Counters:
    """What a request cost; becomes a `Generation`."""

    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    plain_steps: dict[str, int] = field(default_factory=dict)
    stage_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    stage_cpu_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def count(
        self,
        tree: PackedTree,
        path: Ints,
        ms: Mapping[str, float],
        cpu_ms: Mapping[str, float],
    ) -> None:
        """Count one verify pass; times by stage, of the wall and of the processor."""
        self.forwards += 1
        self.drafted += len(tree) - 1
        self.accepted += int(path.size)
        deepest = int(tree.depths.max())
        for counts, depth in (
            (self.drafted_by_depth, deepest),
            (self.accepted_by_depth, path.size),
        ):
            counts.extend([0] * (deepest - len(counts)))
            for at in range(int(depth)):
                counts[at] += 1
        for totals, times in ((self.stage_ms, ms), (self.stage_cpu_ms, cpu_ms)):
            for stage, spent in times.items():
                totals[stage] += spent

    def plain(self, reason: str) -> None:
        """Count a round without a draft."""
        self.plain_steps[reason] = self.plain_steps.get(reason, 0) + 1


class Observer:
    """Sees a request's rounds as they happen (traces). This one ignores them."""

    def prefill(self, running: Running, prefill: Prefill) -> None:
        """The prompt was read and the first token committed."""

    def step(
        self,
        running: Running,
        step: Step,
        *,
        draft: DraftTree,
        sources: Sequence[str],
        ms: Mapping[str, float],
    ) -> None:
        """A round was committed. `draft` is what was sent, `sources` names each packed node."""


class Running:
    """A request between its prefill and its end. The decoder owns all but the arguments.

    Args:
        request: what to generate; `max_new_tokens` already fits the target's context.
        on_token: told every committed token, in order.
        draw: the target's choice from its logits; None is greedy, the first id of a row.
        prune: drops guesses that the request could never commit, before they cost a node.
        max_context: positions that the target has, where `request` does not keep within them.
        observer: sees every round.
    """

    def __init__(
        self,
        request: Request,
        *,
        on_token: OnToken,
        draw: Draw | None = None,
        prune: Prune | None = None,
        max_context: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._length = len(request.prompt_ids)
        self._limit = self._length + request.max_new_tokens
        self._make_room(request.prompt_ids)
        self.request, self.on_token = request, on_token
        self.draw, self.prune = draw, prune
        self.lots: Lots | None = None  # distributions and numbers, for verification by rejection
        self._max_context = max_context
        self.observer = observer or Observer()
        self.state: Any = None
        self.session: Session | None = None
        self.counters = Counters()
        self.finish: Finish | None = None
        self.fault: Exception | None = None  # what the caller's own code raised in a round
        self.guesses: list[Guess] = []

    @property
    def ids(self) -> Ints:
        """[P] committed tokens, the root last; a view that neither its holder nor later tokens
        can change.
        """
        return self._committed[: self._length]

    @property
    def output_ids(self) -> Ints:
        """[n] committed tokens of the answer."""
        return self._committed[len(self.request.prompt_ids) : self._length]

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return self._limit - self._length

    @property
    def depth(self) -> int:
        """Deepest guess that could count and has a position in the target."""
        deepest = self.room - 1  # a path commits one token more than it has nodes
        if self._max_context is None:
            return deepest
        return max(0, min(deepest, self._max_context - self._length))

    def choose(self, row_ids: Ints, logits: Any) -> int:
        """The target's token where its row is `row_ids` [K] and its logits are `logits` [V]."""
        return int(row_ids[0]) if self.draw is None else self.draw(logits, self.ids)

    def emit(self, token: int, source: str) -> Cut | None:
        """Commit one token and say whether the answer ends with it."""
        if self._length == len(self._buffer):
            self._make_room(self._buffer)
        self._buffer[self._length] = token
        self._length += 1
        cut = self.on_token(token, source)
        if cut is None and token in self.request.eos_ids:
            cut = "eos"
        if cut is None and self.room == 0:
            cut = "length"
        self.finish = cut
        return cut

    def _make_room(self, ids: Ints) -> None:
        """Copy the ids to a longer buffer; a limit may be far beyond what any answer reaches."""
        size = min(self._limit, max(2 * len(ids), len(ids) + FIRST_ROOM))
        self._buffer = np.empty(size, np.int32)
        self._buffer[: len(ids)] = ids
        self._committed = self._buffer.view()
        self._committed.flags.writeable = False


def sources_of(draft: DraftTree, tree: PackedTree, drafter: str) -> list[str]:
    """[n + 1] where each packed node came from; the last entry, read at -1, is the target."""
    if draft.origins is None:
        names = [drafter] * len(draft)
    else:
        names = [draft.origin_names[origin] for origin in draft.origins]
    return ["root", *(names[at] for at in tree.order), "target"]
