"""Start here: the loop. Propose, forward, verify, commit, refresh.

A drafter's guess enters a round only as tokens and parents of a tree; what is committed is the
target's own choice at every node. So a bad guess costs time and never changes a word
(docs/lossless.md). Everything the loop touches is a protocol: `drafters/base.py`, `target/base.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from eyespan._core import pack
from eyespan.drafters.base import Drafter, Gate
from eyespan.moment import Moment
from eyespan.policy import Policy, Weighed
from eyespan.rejection import rejected
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
        policy: whom to draft for, and what to send of it.
    """

    def __init__(self, target: Target, drafter: Drafter, policy: Policy) -> None:
        self.target, self.drafter, self.policy = target, drafter, policy
        self._vocab_size, self._on_cpu = target.info.vocab_size, target.info.device == "cpu"
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
        clock, before = Clock(), sum(len(running.ids) for running in batch)
        # 1 propose
        drafts = self._propose(batch)
        clock.lap("propose")
        sent = self._pack(batch, drafts)
        clock.lap("pack")
        host_ms = clock.began.ms_until(clock.last, on_cpu=self._on_cpu)
        # 2 forward
        states = [running.state for running in batch]
        outs = self.target.forward(states, [each.tree for each in sent], self.drafter.needs)
        clock.lap("forward")
        for running, each, out in zip(batch, sent, outs, strict=True):
            try:
                self._commit(running, each, out, clock.share(len(batch)))
            except Exception as error:
                running.fault = error
        tokens = sum(len(running.ids) for running in batch) - before
        ms = clock.began.ms_until(Moment.now(), on_cpu=self._on_cpu)
        self.policy.settle(len(batch), tokens, host_ms=host_ms, ms=ms)
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
        self._refresh(running, sent, step, clock)
        clock.lap("refresh")
        running.counters.count(sent.tree, verdict.path, clock.ms, clock.cpu_ms)
        running.observer.step(running, step, draft=sent.cut, sources=sent.sources, ms=clock.ms)

    def _propose(self, batch: Sequence[Running]) -> list[DraftTree | None]:
        """The drafter's guesses; None for requests that rest or whose session is gone."""
        drafts: list[DraftTree | None] = [None] * len(batch)
        asks = self.policy.asks(batch)
        try:
            for at, draft in zip(asks, self.policy.propose(asks, batch), strict=True):
                drafts[at] = draft
        except Exception:  # one session's fault; a proposal changes nothing: ask again one by one
            for at, ask in asks.items():
                try:
                    (drafts[at],) = self.policy.propose({at: ask}, batch)
                except Exception:
                    drafts[at] = None
                    self._switch_off(batch[at])
        return drafts

    def _pack(self, batch: Sequence[Running], drafts: Sequence[DraftTree | None]) -> list[Sent]:
        """What of the guesses to send; a plain step is counted with its reason.

        A guess that is no tree of this target's ids is a fault of the drafter and never reaches
        the target.
        """
        weighed = [self._weigh(*each) for each in zip(batch, drafts, strict=True)]
        cuts = self.policy.cut(weighed, batch)
        return [self._packed(*each) for each in zip(batch, weighed, cuts, strict=True)]

    def _weigh(self, running: Running, draft: DraftTree | None) -> Weighed:
        try:
            return self.policy.weigh(draft, running)
        except Exception:
            self._switch_off(running)
            return Weighed.nothing()

    def _packed(self, running: Running, weighed: Weighed, nodes: Nodes) -> Sent:
        root = int(running.ids[-1])
        try:
            slots = running.state.room  # of a static cache, which has an end; the root takes one
            most = None if slots is None else slots - 1
            cut = self.policy.sent(weighed.draft, nodes, most)
            if len(cut) and not 0 <= cut.tokens.min() <= cut.tokens.max() < self._vocab_size:
                raise ValueError("a draft holds ids outside the target's vocabulary")
            tree = PackedTree(*pack(cut.tokens, cut.parents, cut.scores, root))
            sent = Sent(cut, tree, sources_of(cut, tree, self.drafter.name))
        except Exception:
            self._switch_off(running)
            tree = PackedTree(*pack(empty_ints(), empty_ints(), None, root))
            return Sent(DraftTree.empty(), tree, sources_of(DraftTree.empty(), tree, ""))
        if len(cut) == 0 and weighed.reason:
            running.counters.plain(weighed.reason)
        return sent

    def _accepts(self, running: Running, out: TargetOut) -> bool:
        """Whether right guesses count; all do, unless the drafter gates its own."""
        try:
            return self._gate is None or running.session is None or self._gate.passes(out)
        except Exception:
            self._switch_off(running)
            return True

    def _refresh(self, running: Running, sent: Sent, step: Step, clock: Clock) -> None:
        """Let the session and the policy learn from what was committed."""
        try:
            if running.session is not None:
                running.session.observe(step)
        except Exception:
            self._switch_off(running)
        taken = sent.tree.order[step.verdict.path - 1]
        self.policy.learn(running, sent.cut, taken)

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
    """Milliseconds of each stage of one round: `ms` on the wall, `cpu_ms` of the processor."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self.cpu_ms: dict[str, float] = {}
        self.began = self.last = Moment.now()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap on a stage."""
        now = Moment.now()
        for spent, end, start in zip((self.ms, self.cpu_ms), now, self.last, strict=True):
            spent[stage] = spent.get(stage, 0.0) + 1e3 * (end - start)
        self.last = now

    def share(self, rows: int) -> Clock:
        """A clock that goes on from an equal share of what a batch has spent together."""
        clock = Clock()
        clock.ms = {stage: spent / rows for stage, spent in self.ms.items()}
        clock.cpu_ms = {stage: spent / rows for stage, spent in self.cpu_ms.items()}
        return clock
