"""Start here: the loop. Propose, forward, verify, commit, refresh.

A drafter's guess enters a round only as tokens and parents of a tree; what is committed is the
target's own choice at every node. So a bad guess costs time and never changes a word
(docs/lossless.md). Everything the loop touches is a protocol: `drafters/base.py`, `target/base.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter

from eyespan._core import pack
from eyespan.budget import best_chain
from eyespan.drafters.base import Ask, Drafter, Gate
from eyespan.policy import Policy
from eyespan.sequence import Running, sources_of
from eyespan.target.base import Prompt, Target
from eyespan.types import DraftTree, PackedTree, Step, TargetOut, empty_ints
from eyespan.verify import verify

log = logging.getLogger("eyespan")


class Decoder:
    """Runs requests on one target with one drafter. One thread steps it.

    Args:
        target: the model that decides.
        drafter: guesses; its faults cost speed only.
        policy: sizes the trees.
    """

    def __init__(self, target: Target, drafter: Drafter, policy: Policy) -> None:
        self.target, self.drafter, self.policy = target, drafter, policy
        self._vocab_size = target.info.vocab_size
        self._chains = target.info.drafts == "chains"
        self._gate = drafter if isinstance(drafter, Gate) else None

    def start(self, running: Running, prompt: Prompt) -> None:
        """Read the prompt, commit the first token, open the drafter's session."""
        running.state, prefill = self.target.prefill(prompt, self.drafter.needs)
        running.counters.forwards += 1
        running.emit(running.choose(prefill.next_row_ids, prefill.logits), "target")
        try:
            running.session = self.drafter.begin(running.request, prefill)
        except Exception:
            self._switch_off(running)
        running.observer.prefill(running, prefill)

    def step(self, batch: Sequence[Running]) -> None:
        """One round for every request of the batch; none of them may have finished."""
        clock = Clock()
        # 1 propose
        drafts = self._propose(batch)
        clock.lap("propose")
        packs = [self._pack(running, draft) for running, draft in zip(batch, drafts, strict=True)]
        trees = [tree for _, tree, _ in packs]
        clock.lap("pack")
        # 2 forward
        states = [running.state for running in batch]
        outs = self.target.forward(states, trees, self.drafter.needs)
        clock.lap("forward")
        for running, (cut, tree, sources), out in zip(batch, packs, outs, strict=True):
            # 3 verify: the walk commits every token as it is chosen
            prefix = running.ids
            verdict = verify(
                tree,
                choose=lambda node, r=running, o=out: r.choose(o.row_ids[node], o.logits[node]),  # type: ignore[misc]
                emit=lambda token, node, r=running, s=sources: r.emit(token, s[node]),  # type: ignore[misc]
                accept=self._accepts(running, out),
            )
            clock.lap("verify")
            # 4 commit; the newest token is no part of the cache, as in plain decoding
            ended_by_guess = verdict.next is None
            self.target.keep(running.state, verdict.path[:-1] if ended_by_guess else verdict.path)
            clock.lap("commit")
            # 5 refresh: the text is final by now
            step = Step(prefix, tree, out, verdict)
            self._refresh(running, step, clock)
            clock.lap("refresh")
            running.counters.count(tree, verdict.path, clock.ms)
            running.observer.step(running, step, draft=cut, sources=sources, ms=clock.ms)

    def _propose(self, batch: Sequence[Running]) -> list[DraftTree | None]:
        """The drafter's guesses; None for requests that rest or whose session is gone."""
        drafts: list[DraftTree | None] = [None] * len(batch)
        asks = {
            at: Ask(running.session, running.ids, self.policy.ask)
            for at, running in enumerate(batch)
            if running.session is not None and self.policy.wants_draft(running)
        }
        try:
            for at, draft in zip(asks, self.drafter.propose_many(list(asks.values())), strict=True):
                drafts[at] = draft
        except Exception:
            for at in asks:
                self._switch_off(batch[at])
        return drafts

    def _pack(
        self, running: Running, draft: DraftTree | None
    ) -> tuple[DraftTree, PackedTree, list[str]]:
        """What of a guess to send, packed, and where its nodes came from.

        A plain step is counted with its reason. A guess that is no tree of this target's ids is a
        fault of the drafter and never reaches the target.
        """
        root = int(running.ids[-1])
        try:
            if draft is not None and running.prune is not None:
                draft = running.prune(draft)
            if draft is not None and self._chains:
                draft = best_chain(draft)
            cut, reason = self.policy.cut(draft, running)
            if len(cut) and not 0 <= cut.tokens.min() <= cut.tokens.max() < self._vocab_size:
                raise ValueError("a draft holds ids outside the target's vocabulary")
            tree = PackedTree(*pack(cut.tokens, cut.parents, cut.scores, root))
            sources = sources_of(cut, tree, self.drafter.name)
        except Exception:
            self._switch_off(running)
            tree = PackedTree(*pack(empty_ints(), empty_ints(), None, root))
            return DraftTree.empty(), tree, sources_of(DraftTree.empty(), tree, "")
        if reason is not None:
            running.counters.plain(reason)
        return cut, tree, sources

    def _accepts(self, running: Running, out: TargetOut) -> bool:
        """Whether right guesses count; all do, unless the drafter gates its own."""
        try:
            return self._gate is None or running.session is None or self._gate.passes(out)
        except Exception:
            self._switch_off(running)
            return True

    def _refresh(self, running: Running, step: Step, clock: Clock) -> None:
        """Let the session and the policy learn from what was committed."""
        try:
            if running.session is not None:
                running.session.observe(step)
        except Exception:
            self._switch_off(running)
        self.policy.learn(running, host_ms=clock.ms["propose"] + clock.ms["pack"])

    def _switch_off(self, running: Running) -> None:
        """Decode this request plainly from here on: a drafter's fault must not end an answer."""
        running.session = None
        running.counters.plain("drafter fault")
        log.warning(
            "%s failed; request %s goes on without drafts",
            self.drafter.name,
            running.request.id,
            exc_info=True,
        )


class Clock:
    """Milliseconds of each stage of one round."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap on a stage."""
        now = perf_counter()
        self.ms[stage] = self.ms.get(stage, 0.0) + 1e3 * (now - self._last)
        self._last = now
