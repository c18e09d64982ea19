"""Start here: the loop. Propose, forward, verify, commit, refresh.

A drafter's guess enters a round only as tokens and parents of a tree; what is committed is the
target's own choice at every node. So a bad guess costs time and never changes a word
(docs/lossless.md). Everything the loop touches is a protocol: `drafters/base.py`, `target/base.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from eyespan._core import pack
from eyespan.budget import best_chain, keep_nodes
from eyespan.drafters.base import Ask, Drafter, Draws, Gate
from eyespan.policy import Policy, Weighed
from eyespan.rejection import check_drawn, rejected
from eyespan.sequence import Running, sources_of
from eyespan.target.base import Prompt, Target
from eyespan.types import DraftTree, Nodes, PackedTree, Step, TargetOut, empty_ints
from eyespan.verify import verify

log = logging.getLogger("eyespan")


class Decoder:
    """Runs requests on one target with one drafter. One thread steps it.

    Args:
        target: the model that decides.
        drafter: guesses; its faults cost speed only.
        policy: sizes the trees.
        rejection: verify by rejection; the drafter then draws its guesses.
    """

    def __init__(
        self, target: Target, drafter: Drafter, policy: Policy, *, rejection: bool = False
    ) -> None:
        self.target, self.drafter, self.policy = target, drafter, policy
        self._draws = drafter if rejection and isinstance(drafter, Draws) else None
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
        """One round for every request of the batch; none of them may have finished.

        Raises:
            Exception: what a caller's own code raised (a processor, a criterion), once the round
                is whole for all others; `Running.fault` says whose it is. Anything that the
                target raises belongs to the whole batch.
        """
        clock = Clock()
        # 1 propose
        drafts = self._propose(batch)
        clock.lap("propose")
        sent = self._pack(batch, drafts)
        clock.lap("pack")
        # 2 forward
        states = [running.state for running in batch]
        outs = self.target.forward(states, [each.tree for each in sent], self.drafter.needs)
        clock.lap("forward")
        for running, each, out in zip(batch, sent, outs, strict=True):
            try:
                self._commit(running, each, out, clock.share(len(batch)))
            except Exception as error:
                running.fault = error
        for fault in [running.fault for running in batch if running.fault is not None]:
            raise fault

    def _commit(self, running: Running, sent: Sent, out: TargetOut, clock: Clock) -> None:
        """One request's part of a round, after the forward."""
        # 3 verify: the walk commits every token as it is chosen
        prefix = running.ids
        verdict = rejected(running, sent.cut, sent.tree, sent.sources, out) or verify(
            sent.tree,
            choose=lambda node: running.choose(out.row_ids[node], out.logits[node]),
            emit=lambda token, node: running.emit(token, sent.sources[node]),
            accept=self._accepts(running, out),
        )
        clock.lap("verify")
        # 4 commit; the newest token is no part of the cache, as in plain decoding
        ended_by_guess = verdict.next is None
        self.target.keep(running.state, verdict.path[:-1] if ended_by_guess else verdict.path)
        clock.lap("commit")
        # 5 refresh: the text is final by now
        step = Step(prefix, sent.tree, out, verdict)
        self._refresh(running, step, clock)
        clock.lap("refresh")
        if self._draws is not None and len(sent.cut):
            self.policy.sizes.learn(len(sent.cut), sent.tree.order[verdict.path - 1])
        running.counters.count(sent.tree, verdict.path, clock.ms)
        running.observer.step(running, step, draft=sent.cut, sources=sent.sources, ms=clock.ms)

    def _propose(self, batch: Sequence[Running]) -> list[DraftTree | None]:
        """The drafter's guesses; None for requests that rest or whose session is gone."""
        drafts: list[DraftTree | None] = [None] * len(batch)
        asks = {
            at: Ask(running.session, running.ids, self.policy.ask, self.policy.pace)
            for at, running in enumerate(batch)
            if running.session is not None and self.policy.wants_draft(running)
        }
        if self._draws is not None:
            size = self.policy.sizes.next()
            asks = {
                at: ask._replace(budget=size)
                for at, ask in asks.items()
                if size and batch[at].lots is not None
            }
        try:
            for at, draft in zip(asks, self._ask(asks, batch), strict=True):
                drafts[at] = draft
        except (
            Exception
        ):  # one session's fault; a proposal changes nothing, so ask again one by one
            for at, ask in asks.items():
                try:
                    (drafts[at],) = self._ask({at: ask}, batch)
                except Exception:
                    drafts[at] = None
                    self._switch_off(batch[at])
        return drafts

    def _ask(self, asks: Mapping[int, Ask], batch: Sequence[Running]) -> list[DraftTree]:
        """Guesses for these rows of a batch."""
        if self._draws is None:
            return self.drafter.propose_many(list(asks.values()))
        lots = [(batch[at].lots, batch[at].depth) for at in asks]
        drawings = [each.drawing(depth, self._chains) for each, depth in lots if each is not None]
        return self._draws.draw_many(list(asks.values()), drawings)

    def _pack(self, batch: Sequence[Running], drafts: Sequence[DraftTree | None]) -> list[Sent]:
        """What of the guesses to send; a plain step is counted with its reason.

        A guess that is no tree of this target's ids is a fault of the drafter and never reaches
        the target.
        """
        weighed = [self._weigh(*each) for each in zip(batch, drafts, strict=True)]
        if self._draws is not None:  # what was drawn is sent: choosing would bend its distribution
            cuts = [np.arange(len(each.draft)) for each in weighed]
        else:
            cuts = self.policy.cut(weighed, batch)
        return [self._packed(*each) for each in zip(batch, weighed, cuts, strict=True)]

    def _weigh(self, running: Running, draft: DraftTree | None) -> Weighed:
        if self._draws is not None:
            return self._drawn(running, draft)
        try:
            if draft is not None and running.prune is not None:
                draft = running.prune(draft)
            if draft is not None and self._chains:
                draft = best_chain(draft)
            return self.policy.weigh(draft, running)
        except Exception:
            self._switch_off(running)
            return Weighed.nothing()

    def _drawn(self, running: Running, draft: DraftTree | None) -> Weighed:
        """A draft that is sent whole."""
        if not draft:
            off = running.session is None
            return Weighed.nothing("off" if off else "empty" if draft is not None else "no gain")
        try:
            check_drawn(draft, self._vocab_size)
            return Weighed(draft, np.empty(0), "room")
        except Exception:
            self._switch_off(running)
            return Weighed.nothing()

    def _packed(self, running: Running, weighed: Weighed, nodes: Nodes) -> Sent:
        root = int(running.ids[-1])
        try:
            slots = running.state.room  # of a static cache, which has an end
            fits = slots is None or len(nodes) < slots
            if self._draws is not None:  # whole or not at all, whatever was drawn
                cut = weighed.draft if fits else DraftTree.empty()
            else:  # parents come before their children
                cut = keep_nodes(weighed.draft, nodes if fits else np.sort(nodes)[: slots - 1])
            if len(cut) and not 0 <= cut.tokens.min() <= cut.tokens.max() < self._vocab_size:
                raise ValueError("a draft holds ids outside the target's vocabulary")
            tree = PackedTree(*pack(cut.tokens, cut.parents, cut.scores, root))
            sent = Sent(cut, tree, sources_of(cut, tree, self.drafter.name))
        except Exception:
            self._switch_off(running)
            tree = PackedTree(*pack(empty_ints(), empty_ints(), None, root))
            return Sent(DraftTree.empty(), tree, sources_of(DraftTree.empty(), tree, ""))
        if nodes.size == 0 and weighed.reason:
            running.counters.plain(weighed.reason)
        return sent

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


class Sent(NamedTuple):
    """What one request sends to the target in a round."""

    cut: DraftTree
    tree: PackedTree
    sources: list[str]
    """Where each packed node came from."""


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

    def share(self, rows: int) -> Clock:
        """A clock that goes on from an equal share of what a batch has spent together."""
        clock = Clock()
        clock.ms = {stage: spent / rows for stage, spent in self.ms.items()}
        return clock
