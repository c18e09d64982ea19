"""Thousands of random requests on one engine: they join, end, fail and are cancelled at any moment,
with and without pictures, from another thread. Whatever was said must be what the request says
alone, and once the first minutes are over nothing may grow.

    python -m benchmarks.soak --minutes 30

Every answer is compared with plain decoding of the same request on the same model; a cancelled or
failed one must be its beginning. Whenever the batch is empty, live tensors and resident memory are
noted. Exit code 1 means a difference or growth; the last line is a JSON summary.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import torch

from eyespan.batching import Scheduler, Ticket
from eyespan.errors import EyespanError
from eyespan.generation import Engine
from eyespan.testing import SEEING, tiny_images, tiny_target

WARM_UP = 0.3
"""Share of the time after which nothing may grow any more."""
BETWEEN_CHECKS = 150
"""Requests between two looks at memory; a slow machine looks sixteen times all the same."""
TENSOR_SLACK = 8
"""A model holds on to a few tensors of the last call it saw; a leak would be some a request."""
RSS_SLACK_MB = 24.0
"""Resident memory moves by allocator pages; a leak of one cache a request would be far above."""
TEXTS = (
    "what is this?", "abc abc abc", "read the total", "hi", "so it goes, so it goes, so it", "a",
)  # fmt: skip


class OnPurpose(Exception):
    """What a failing request's own code raises."""


class FailsAt:
    """A processor, criterion or reader that raises at some call."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, *values: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OnPurpose
        return values[-1]


@dataclass(frozen=True, slots=True)
class Wish:
    """One random request; equal wishes have equal answers."""

    text: str
    pictures: tuple[int, ...]
    tokens: int
    seed: int | None
    penalty: float | None
    stop: str | None
    scope: str | None

    @staticmethod
    def draw(rng: random.Random, sees: bool) -> Wish:
        """A wish out of some thousand different ones."""
        return Wish(
            text=rng.choice(TEXTS),
            pictures=tuple(rng.randrange(3) for _ in range(rng.choice((0, 0, 1, 1, 2))))
            if sees
            else (),
            tokens=rng.choice((1, 4, 12, 24)),
            seed=rng.choice((None, None, 1, 2)),
            penalty=rng.choice((None, None, 1.3)),
            stop=rng.choice((None, None, "e")),
            scope=rng.choice((None, "one", "two")),
        )

    def images(self) -> list[Any]:
        """Its pictures."""
        return [tiny_images(1, seed=seed)[0] for seed in self.pictures]

    def options(self) -> dict[str, Any]:
        """What it asks of `Engine.stream`."""
        options: dict[str, Any] = {"max_new_tokens": self.tokens, "stop": self.stop}
        options |= {"repetition_penalty": self.penalty, "scope": self.scope}
        if self.seed is not None:
            options |= {"temperature": 0.9, "top_k": 50, "seed": self.seed}
        return options


@dataclass
class Soak:
    """One run.

    Attributes:
        engine: under test.
        plain: decodes plainly on the same model.
        sees: whether requests may have pictures.
        rows: of the batch.
    """

    engine: Engine
    plain: Engine
    sees: bool
    rows: int
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, int, float]] = field(default_factory=list)
    ended: list[tuple[Wish, Ticket]] = field(default_factory=list)
    known: dict[Wish, tuple[int, ...]] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        """Submit from one thread, step from this one, look at memory in between."""
        started = monotonic()
        self.gate, self.over, self.idle = Event(), Event(), True
        with Scheduler(self.engine, max_rows=self.rows, max_waiting=16) as scheduler:
            thread = Thread(target=self._submit, args=(scheduler,), daemon=True)
            thread.start()
            try:
                while monotonic() - started < seconds:
                    self.gate.set()
                    most, until = (
                        self.counts["submitted"] + BETWEEN_CHECKS,
                        monotonic() + seconds / 16,
                    )
                    while self.counts["submitted"] < most and monotonic() < until:
                        if not scheduler.step():
                            sleep(0.001)
                    self.gate.clear()
                    self._settle(scheduler)
                    self._look(monotonic() - started)
            finally:
                self.over.set()
                self.gate.set()
                thread.join()

    def _submit(self, scheduler: Scheduler) -> None:
        """The other thread: requests and cancellations at random."""
        rng = random.Random(self.seed)
        open_tickets: list[Ticket] = []
        while not self.over.is_set():
            self.idle = not self.gate.is_set()
            self.gate.wait()
            self.idle = False
            if scheduler.waiting >= 8:
                sleep(0.002)
                continue
            wish = Wish.draw(rng, self.sees)
            options, kind = wish.options(), rng.random()
            images: list[Any] = wish.images()
            if kind < 0.06:
                options["logits_processors"] = [FailsAt(rng.randrange(12))]
            elif kind < 0.09:
                options["on_chunk"] = FailsAt(rng.randrange(4))
            elif kind < 0.12:
                images = [*images, b"no picture"]
            elif kind < 0.14:
                options["max_new_tokens"] = 0
            try:
                ticket = scheduler.submit(
                    wish.text,
                    images,
                    on_end=lambda ticket, wish=wish: self.ended.append((wish, ticket)),
                    **options,
                )
                open_tickets.append(ticket)
            except EyespanError:
                self.counts["refused"] += 1
            self.counts["submitted"] += 1
            if open_tickets and rng.random() < 0.15:
                rng.choice(open_tickets).cancel()
            open_tickets = [ticket for ticket in open_tickets if not ticket.done]
        self.idle = True

    def _settle(self, scheduler: Scheduler) -> None:
        """Let everything end, then compare it with what it says alone."""
        while not self.idle:
            scheduler.step()
        scheduler.drain()
        for wish, ticket in self.ended:
            self._compare(wish, ticket)
        self.ended.clear()

    def _compare(self, wish: Wish, ticket: Ticket) -> None:
        if wish not in self.known:
            alone = self.plain.generate(wish.text, wish.images(), **wish.options())
            self.known[wish] = alone.token_ids
        expected = self.known[wish]
        if ticket.error is not None:
            how = "failed" if isinstance(ticket.error, OnPurpose) else repr(ticket.error)
            said = tuple(int(token) for token in ticket._running.output_ids)
            same = said == expected[: len(said)]
        else:
            result = ticket.generation
            how = "cancelled" if result.finish == "cancelled" else "answered"
            said = result.token_ids
            same = said == (expected[: len(said)] if how == "cancelled" else expected)
        self.counts[how] += 1
        self.counts["with pictures"] += bool(wish.pictures)
        if not same or how not in ("failed", "cancelled", "answered"):
            self.wrong.append(f"{wish}: {how}, {said} instead of {expected}")

    def _look(self, now: float) -> None:
        """Note what is alive while the batch is empty."""
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        self.memory.append((now, tensors, resident_mb()))

    def growth(self, seconds: float) -> list[str]:
        """What grew after the warm-up."""
        later = [(tensors, rss) for at, tensors, rss in self.memory if at >= WARM_UP * seconds]
        if len(later) < 4:
            return [f"only {len(later)} looks at memory after the warm-up: run it longer"]
        half = len(later) // 2
        found = []
        before, after = (max(each[0] for each in part) for part in (later[:half], later[half:]))
        if after > before + TENSOR_SLACK:
            found.append(f"live tensors grew from {before} to {after}")
        low, high = (min(each[1] for each in part) for part in (later[:half], later[half:]))
        if high > low + RSS_SLACK_MB:
            found.append(f"resident memory grew from {low:.0f} to {high:.0f} MB")
        return found


def resident_mb() -> float:
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20


def main() -> int:
    """Run, print what was found, return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--family", default="qwen2_5_vl", help="a tiny family of eyespan.testing")
    parser.add_argument("--drafter", default="recap")
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.getLogger("eyespan").setLevel(logging.ERROR)  # failures on purpose are counted below
    target = tiny_target(asked.family)
    soak = Soak(
        Engine(target, asked.drafter, budget="fixed"),
        Engine(target, "none", budget=0),
        asked.family in SEEING,
        asked.rows,
        asked.seed,
    )
    seconds = 60 * asked.minutes
    soak.run(seconds)
    faults = [*soak.wrong[:20], *soak.growth(seconds)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(
        json.dumps(
            {
                **vars(asked),
                **soak.counts,
                "wrong": len(soak.wrong),
                "memory": [
                    {"at": round(at), "tensors": tensors, "rss_mb": round(rss, 1)}
                    for at, tensors, rss in (soak.memory[0], *soak.memory[-3:])
                ],
                "ok": not faults,
            }
        )
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
