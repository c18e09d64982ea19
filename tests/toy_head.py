"""The smallest head that can learn: the next state is a linear function of the token's embedding
and the state before it. With the drafter that decodes with it, one guess after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eyespan.artifacts import read_artifact, write_artifact
from eyespan.drafters._head import DraftHead, TrainState
from eyespan.drafters._head_config import HeadConfig
from eyespan.drafters.base import Ask
from eyespan.target.weights import TargetWeights
from eyespan.train.batch import TrainBatch
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step


class ToyHead(DraftHead):
    """State t + 1 from the embedding of token t + 1 and state t."""

    method = "toy"

    def __init__(self, config: HeadConfig, *, noise: float = 0.0) -> None:
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.noise = noise

    def next_state(self, embeds: Tensor, states: Tensor) -> Tensor:
        made: Tensor = states + self.fc(torch.cat([embeds, states], dim=-1))
        return made

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        rows = batch.supervise[:, 1:]
        embeds, before = batch.embeds[:, 1:][rows], batch.final[:, :-1][rows]
        if self.noise:
            before = before + self.noise * torch.randn(
                before.shape, generator=state.generator, device=before.device
            )
        logits = self.through_lm_head(self.next_state(embeds, before))
        wanted = batch.top_ids[:, 1:][rows][:, 0]
        loss = nn.functional.cross_entropy(logits.float(), wanted)
        right = (logits.argmax(-1) == wanted).float().mean()
        return {"loss": loss, "accuracy": right[None].detach()}


def toy_config(weights: TargetWeights) -> HeadConfig:
    return HeadConfig.for_target(weights.shape)


def toy_head(weights: TargetWeights, seed: int = 0, noise: float = 0.0) -> ToyHead:
    torch.manual_seed(seed)
    head = ToyHead(toy_config(weights), noise=noise)
    nn.init.normal_(head.fc.weight, std=0.02)
    head.attach(weights.embedding, weights.lm_head)
    return head


def save_toy(folder: Path, head: DraftHead, training: Mapping[str, Any]) -> None:
    tensors = {name: value.numpy() for name, value in head.state_dict().items()}
    write_artifact(folder, kind="toy drafter", about=dict(training), tensors=tensors)


def load_toy(folder: Path, weights: TargetWeights) -> ToyHead:
    head = toy_head(weights)
    saved = read_artifact(folder, kind="toy drafter").tensors
    head.load_state_dict({name: torch.from_numpy(value) for name, value in saved.items()})
    return head


class ToySession:
    """Knows the target's state before the root."""

    def __init__(self, head: ToyHead, prefill: Prefill, depth: int) -> None:
        self._head, self._depth = head, depth
        self._state = torch.from_numpy(prefill.extras["hidden"][-1, 0])

    @torch.no_grad()
    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        state, token, tokens = self._state, int(prefix[-1]), []
        for _ in range(min(budget, self._depth)):
            state = self._head.next_state(self._head.embed(torch.tensor(token)), state)
            token = int(self._head.through_lm_head(state).argmax())
            tokens.append(token)
        chain = np.array(tokens, np.int32)
        return DraftTree(chain, np.arange(len(chain), dtype=np.int32) - 1)

    def observe(self, step: Step) -> None:
        last = int(step.verdict.path[-1]) if len(step.verdict.path) else 0
        self._state = torch.from_numpy(step.out.extras["hidden"][last, 0])


class ToyTrained:
    """A drafter around a `ToyHead`."""

    name = "toy"
    extra_nodes = 0

    def __init__(self, head: ToyHead, depth: int = 4) -> None:
        self._head, self._depth = head, depth
        self.fixed_budget = depth
        self.needs = Needs(hidden_layers=(-1,))

    def begin(self, request: Request, prefill: Prefill) -> ToySession:
        return ToySession(self._head, prefill, self._depth)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        return {"depth": self._depth}

    def is_warm(self, scope: str | None) -> bool:
        return False

    def reset(self) -> None:
        pass
