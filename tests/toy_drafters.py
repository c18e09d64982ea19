"""Drafters that exist to be wrong, right or broken in known ways."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from eyespan.drafters import TRAINED, make_drafter
from eyespan.drafters.base import Ask, Bound, Drafter, Session
from eyespan.testing import random_checkpoint
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step
from tests.toys import ToyTarget

WEIGHTED = (*TRAINED, "hybrid")
"""Names that draft with a network."""


def drafter_for(name: str, target: ToyTarget, seed: int = 0, **options: Any) -> Drafter:
    """Any drafter by name, those of this file too, for a toy target."""
    if name == "random":
        return RandomDrafter(target.vocab, seed)
    if name == "oracle":
        return Oracle(target)
    if name == "draft_model":  # right often, not always: it sees one token less of the past
        small = ToyTarget(vocab=target.vocab, order=target.order - 1, max_context=400)
        options.setdefault("draft_model", small)
    if name in WEIGHTED and "checkpoint" not in options:
        options["checkpoint"] = checkpoint_of("fovea" if name == "hybrid" else name, target)
    drafter = make_drafter(name, vocab_size=target.vocab, **options)
    if isinstance(drafter, Bound):
        drafter.bind(target)  # type: ignore[arg-type]
    return drafter


def checkpoint_of(name: str, target: ToyTarget) -> str:
    """Random weights of a small head, written once for a name and a vocabulary."""
    folder = Path(_FOLDER.name) / f"{name}-{target.vocab}"
    if not folder.exists():
        random_checkpoint(name, target.weights(), folder, nodes=14, width=3, depth=4)
    return str(folder)


_FOLDER = tempfile.TemporaryDirectory(prefix="eyespan-test-")


class _Base:
    name: ClassVar[str] = "toy"
    needs = Needs()
    fixed_budget = 20
    extra_nodes = 0

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        return {}

    def is_warm(self, scope: str | None) -> bool:
        return False

    def reset(self) -> None:
        pass


class RandomDrafter(_Base):
    """Random trees, duplicates and media ids included; scores mean nothing."""

    def __init__(self, vocab: int, seed: int, deepest: int = 20) -> None:
        self.vocab, self.seed, self.deepest = vocab, seed, deepest

    def begin(self, request: Request, prefill: Prefill) -> Session:
        return _RandomSession(self)


class _RandomSession:
    def __init__(self, drafter: RandomDrafter) -> None:
        self._drafter = drafter

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        rng = random.Random(self._drafter.seed * 100_003 + len(prefix))
        n = rng.randint(0, budget)
        parents = [rng.randint(max(-1, at - self._drafter.deepest), at - 1) for at in range(n)]
        return DraftTree(
            np.array([rng.randrange(self._drafter.vocab) for _ in range(n)], np.int32),
            np.array(parents, np.int32),
            np.array([rng.random() for _ in range(n)], np.float32),
        )

    def observe(self, step: Step) -> None:
        pass


class Oracle(_Base):
    """Drafts what the target will say, a chain of fixed length: acceptance is known in advance."""

    def __init__(self, target: ToyTarget, length: int = 4) -> None:
        self.target, self.length = target, length

    def begin(self, request: Request, prefill: Prefill) -> Session:
        return _OracleSession(self)


class _OracleSession:
    def __init__(self, drafter: Oracle) -> None:
        self._drafter = drafter

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        count = min(self._drafter.length, budget)
        chain = self._drafter.target.plain([int(token) for token in prefix], count)
        return DraftTree(np.array(chain, np.int32), np.arange(-1, len(chain) - 1, dtype=np.int32))

    def observe(self, step: Step) -> None:
        pass


class Broken(RandomDrafter):
    """Fails in `begin`, or in `propose` or `observe` from its third round on."""

    def __init__(self, vocab: int, where: str) -> None:
        super().__init__(vocab, 0)
        self.where = where

    def begin(self, request: Request, prefill: Prefill) -> Session:
        if self.where == "begin":
            raise RuntimeError("broken on purpose")
        return _BrokenSession(self)


class _BrokenSession(_RandomSession):
    def __init__(self, drafter: Broken) -> None:
        super().__init__(drafter)
        self._where, self._rounds = drafter.where, 0

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        if self._where == "propose" and self._rounds >= 2:
            raise RuntimeError("broken on purpose")
        return super().propose(prefix, budget)

    def observe(self, step: Step) -> None:
        self._rounds += 1
        if self._where == "observe" and self._rounds >= 2:
            raise RuntimeError("broken on purpose")
