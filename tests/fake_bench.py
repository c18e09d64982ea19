"""A target whose forwards take exactly known time, and a drafter that is right for exactly known
lengths, so that every figure of a run can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from eyespan.drafters import DRAFTERS
from eyespan.drafters.base import Ask
from eyespan.types import DraftTree, Ints, Needs, PackedTree, Prefill, Request, Step, TargetOut
from tests.toys import ToyState, ToyTarget, toy_row

VOCAB, ORDER = 32, 2
READ_TOKEN = 1 / 64
"""Seconds that a prompt token takes in the prefill. All times are sums of powers of two, so that
the fake clock adds them up exactly."""
PASS, NODE = 1 / 8, 1 / 64
"""Seconds of a verify pass, and of every node in it besides the root."""


class FakeClock:
    """Stands still unless told to move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Become the clock of the loop and of the bench."""
        for module in ("bench.clock", "generation", "answer", "moment"):
            patch.setattr(f"eyespan.{module}.perf_counter", self)
        patch.setattr("eyespan.moment.process_time", self)
        patch.setattr("gc.collect", lambda: 0)  # nothing real is timed, and it takes a while
        patch.setitem(DRAFTERS, "scripted", "tests.fake_bench:Scripted")


@dataclass
class FakeTarget(ToyTarget):
    """A toy target on a fake clock; prompts are text, a letter is a token."""

    clock: FakeClock = field(default_factory=FakeClock)
    wavers: bool = False
    """Whether packs of several nodes swap the best two tokens everywhere."""

    def __post_init__(self) -> None:
        self.vocab, self.order, self.eos_ids = VOCAB, ORDER, frozenset()
        super().__post_init__()
        self.info = SimpleNamespace(**vars(self.info), dtype="float32")

    def prepare(self, prompt: Any, images: Sequence[Any] = (), videos: Sequence[Any] = ()) -> Ints:
        turns = [message["content"] for message in prompt]
        parts = [t if isinstance(t, str) else "".join(p.get("text", "") for p in t) for t in turns]
        return self.prompt_from_ids([2 + ord(letter) % (VOCAB - 2) for letter in "".join(parts)])

    def prompt_from_ids(self, ids: Any) -> Any:
        return _Prompt(np.array(ids, np.int32))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + int(i)) for i in ids)

    def prefill(self, prompt: Any, needs: Needs) -> tuple[ToyState, Prefill]:
        self.clock.now += READ_TOKEN * len(prompt.ids)
        return super().prefill(prompt.ids, needs)

    def forward(
        self, states: Sequence[ToyState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        self.clock.now += PASS + NODE * (len(trees[0]) - 1)
        outs = super().forward(states, trees, needs)
        for out in outs:
            object.__setattr__(out, "logits", torch.from_numpy(np.asarray(out.logits)))
            if self.wavers and len(out.row_ids) > 1:
                out.row_ids[:, :2] = out.row_ids[:, 1::-1]
        return outs


@dataclass(frozen=True)
class _Prompt:
    ids: Ints
    cache: Any = None
    conversation: Any = None
    keep: Any = None

    @property
    def input_ids(self) -> torch.Tensor:
        return torch.from_numpy(self.ids)[None]

    def __len__(self) -> int:
        return len(self.ids)


class Scripted:
    """Knows the answer and proposes chains of it with the lengths of a script, over and over.

    `wrong` makes it propose what is never right; `fails` makes it raise on prompts that hold this
    token; `remembers` makes chains one longer for every request it has seen.
    """

    name: ClassVar[str] = "scripted"
    needs = Needs()
    extra_nodes = 0

    def __init__(
        self,
        *,
        vocab_size: int,
        steps: Sequence[int] = (4, 3, 2, 1, 0),
        fails: int = -1,
        remembers: bool = False,
    ) -> None:
        self.steps, self.fails, self.remembers = tuple(steps), fails, remembers
        self.fixed_budget = 8
        self.seen = 0

    def begin(self, request: Request, prefill: Prefill) -> _Script:
        if self.fails in request.prompt_ids:
            raise RuntimeError("a drafter that fails on purpose")
        more = self.seen % 3 if self.remembers else 0
        self.seen += 1
        return _Script(tuple(step + more for step in self.steps))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        return {"steps": self.steps, "fails": self.fails, "remembers": self.remembers}

    def is_warm(self, scope: str | None) -> bool:
        return self.seen > 0

    def reset(self) -> None:
        self.seen = 0

    def state_bytes(self) -> int:
        return 100 * self.seen


class _Script:
    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps, self.at = steps, 0

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        text = prefix.tolist()
        for _ in range(self.steps[self.at % len(self.steps)]):
            text.append(int(toy_row(text, VOCAB, ORDER).argmax()))
        chain = np.array(text[len(prefix) :], np.int32)
        return DraftTree(chain, np.arange(-1, len(chain) - 1, dtype=np.int32))

    def observe(self, step: Step) -> None:
        self.at += 1
