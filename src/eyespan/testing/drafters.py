"""Two drafters whose behaviour is known in advance: one guesses blindly, one knows the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from eyespan.drafters.base import Ask
from eyespan.target.base import Prompt, Target
from eyespan.testing.trees import packed, random_tree
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step


def plain_answer(target: Target, prompt: Prompt, count: int) -> Ints:
    """[<= count] greedy tokens of plain decoding, one step a token, up to and with the end id."""
    state, prefill = target.prefill(prompt, Needs())
    answer = [int(prefill.next_row_ids[0])]
    while len(answer) < count and answer[-1] not in target.info.eos_ids:
        out = target.forward([state], [packed(DraftTree.empty(), answer[-1])], Needs())[0]
        target.keep(state, np.empty(0, np.int32))
        answer.append(int(out.row_ids[0, 0]))
    state.close()
    return np.array(answer, np.int32)


class RandomDrafter:
    """Guesses at random: almost nothing is accepted, and nothing may change.

    Two sessions with the same seed and prefix draft the same tree, so runs repeat.
    """

    name: ClassVar[str] = "random"
    fixed_budget = 8
    extra_nodes = 0
    needs = Needs()

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        """Ids lie below `vocab_size`; `seed` fixes every tree."""
        self.vocab_size = vocab_size
        self.seed = seed

    def begin(self, request: Request, prefill: Prefill) -> _RandomSession:
        """Open a session."""
        return _RandomSession(self, request.media_ids)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Draft for each sequence on its own."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Its settings."""
        return {"vocab_size": self.vocab_size, "seed": self.seed}

    def is_warm(self, scope: str | None) -> bool:
        """Never."""
        return False

    def reset(self) -> None:
        """Nothing is remembered."""


@dataclass(frozen=True)
class _RandomSession:
    drafter: RandomDrafter
    media_ids: frozenset[int]

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        rng = np.random.default_rng([self.drafter.seed, len(prefix), int(prefix[-1])])
        return random_tree(rng, budget, self.drafter.vocab_size, self.media_ids)

    def observe(self, step: Step) -> None:
        pass


class OracleDrafter:
    """The target drafts for itself: the answers are decoded plainly first, then proposed.

    Every draft holds the true continuation, hung last among its siblings and with the lowest
    scores, so that accepted nodes are not contiguous in the pack and the cache has to move them.
    """

    name: ClassVar[str] = "oracle"
    fixed_budget = 8
    extra_nodes = 0
    needs = Needs()

    def __init__(
        self, target: Target, prompts: Sequence[Prompt], max_tokens: int = 64, decoys: int = 1
    ) -> None:
        """Decode the answers.

        Args:
            target: the model.
            prompts: every prompt that will be asked.
            max_tokens: tokens known of each answer.
            decoys: wrong siblings beside each true node.
        """
        self.vocab_size = target.info.vocab_size
        self.decoys = decoys
        self._answers = {
            prompt.ids.tobytes(): plain_answer(target, prompt, max_tokens) for prompt in prompts
        }

    def begin(self, request: Request, prefill: Prefill) -> _OracleSession:
        """Open a session; a prompt that was not announced has no known answer."""
        answer = self._answers.get(request.prompt_ids.tobytes(), np.empty(0, np.int32))
        return _OracleSession(self, request, answer)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Draft for each sequence on its own."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Its settings."""
        return {"decoys": self.decoys}

    def is_warm(self, scope: str | None) -> bool:
        """Never."""
        return False

    def reset(self) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True)
class _OracleSession:
    drafter: OracleDrafter
    request: Request
    answer: Ints

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        said = prefix[len(self.request.prompt_ids) :]
        known = len(said)
        if not np.array_equal(said, self.answer[:known]):
            return DraftTree.empty()
        ahead = self.answer[known : known + budget // (1 + self.drafter.decoys)]
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in ahead.tolist():
            tokens += [*self._decoys(token), token]
            parents += [parent] * (1 + self.drafter.decoys)
            parent = len(tokens) - 1
        scores = np.linspace(1.0, 0.1, len(tokens), dtype=np.float32)
        return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), scores)

    def _decoys(self, token: int) -> list[int]:
        text = (i for i in range(self.drafter.vocab_size) if i not in self.request.media_ids)
        wrong = (i for i in text if i != token)
        return [next(wrong) for _ in range(self.drafter.decoys)]

    def observe(self, step: Step) -> None:
        pass
