"""Drafting against recorded answers, without a model: the real drafter and the real loop, with a
target that knows one answer and the rows that were seen on the way.

What a drafter without rows (prompt look-up, suffix trees) would have done comes out exactly: its
trees are verified against the answer, and the answer depends on no tree. A drafter that learns from
rows gets those that the recorded run saw: all of them for the run's own drafter and settings, and
the accepted ones at least for any other. `Replayed.known` says what share that was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from eyespan.diagnostics.playback import KnownRows, RecordedTarget, check_feeds, running_for
from eyespan.diagnostics.recorded import Recording
from eyespan.drafters.base import Drafter, parameters_of
from eyespan.engine import Decoder
from eyespan.policy import Policy
from eyespan.sequence import Counters, Observer


@dataclass(slots=True)
class Replayed:
    """What a drafter would have done on recorded answers.

    Attributes:
        tokens: committed, the first of each answer included.
        forwards: target passes, prefills included.
        drafted, accepted: nodes sent and committed.
        rounds: verify passes.
        hits: verify passes whose tree held the next token.
        known: nodes whose rows the trace holds.
        offered_by_depth, accepted_by_depth: rounds with a node, an accepted one, at depth 1, 2, ...
        stage_ms: host time of all rounds by stage.
        seconds: wall time of the replay.
    """

    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    hits: int = 0
    known: int = 0
    offered_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    stage_ms: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per target pass, prefills included, over all answers."""
        return self.tokens / self.forwards if self.forwards else 0.0

    def add(self, counters: Counters, tokens: int) -> None:
        """Count one finished answer."""
        self.tokens += tokens
        self.forwards += counters.forwards
        self.drafted += counters.drafted
        self.accepted += counters.accepted
        self.rounds += counters.forwards - 1
        self.hits += sum(counters.accepted_by_depth[:1])
        _add(self.offered_by_depth, counters.drafted_by_depth)
        _add(self.accepted_by_depth, counters.accepted_by_depth)
        for stage, ms in counters.stage_ms.items():
            self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + ms

    def merged(self, other: Replayed) -> Replayed:
        """The sum of two, as a new one."""
        both = Replayed()
        for one in (self, other):
            for name in ("tokens", "forwards", "drafted", "accepted", "rounds", "hits", "known"):
                setattr(both, name, getattr(both, name) + getattr(one, name))
            _add(both.offered_by_depth, one.offered_by_depth)
            _add(both.accepted_by_depth, one.accepted_by_depth)
            for stage, ms in one.stage_ms.items():
                both.stage_ms[stage] = both.stage_ms.get(stage, 0.0) + ms
            both.seconds += one.seconds
        return both


def replay(
    recording: Recording, drafter: Drafter, *, vocab_size: int, watch: Observer | None = None
) -> Replayed:
    """Draft every recorded answer anew, as one stream on an empty memory.

    Args:
        recording: the requests, in order.
        drafter: any; it is reset first. Trees have its published size (budget "fixed").
        vocab_size: ids of the recorded target (`recorded.vocabulary`).
        watch: sees every round.

    Raises:
        ConfigError: the drafter needs more of a target than a trace holds, or a live one.
        InputError: the trace lacks rows that the drafter needs.
    """
    check_feeds(recording, drafter.needs, drafter.name)
    parameters_of(drafter)  # refuses one whose model waits for a live target
    drafter.reset()
    total, started = Replayed(), perf_counter()
    target = RecordedTarget(recording, vocab_size)
    known = KnownRows(drafter)
    decoder = Decoder(target, known, Policy("fixed", drafter))
    for one in recording.requests:
        running = running_for(one, watch)
        decoder.start(running, one)  # type: ignore[arg-type]  # a recording is its own prompt
        while running.finish is None:
            decoder.step([running])
        if "drafter fault" in running.counters.plain_steps:
            raise RuntimeError(f"{drafter.name} failed on request {one.request.id}; see the log")
        total.add(running.counters, len(one.output))
    total.known = known.nodes if drafter.needs.rows else total.drafted + total.rounds
    total.seconds = perf_counter() - started
    return total


def _add(total: list[int], more: list[int]) -> None:
    """Add counts by depth; either may be the shorter."""
    total.extend([0] * (len(more) - len(total)))
    for at, count in enumerate(more):
        total[at] += count
