"""The few questions that drafting and training ask a trained draft head.

A head works on *pairs*: token `t_j` with what is known of the position before it, the target's
state `f_{j-1}` where the target has been, the head's own state of the parent where it has not. Its
output at a pair stands for the target's state `f_j`, so its scores are guesses for token `j + 1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from eyespan.drafters._blocks import Attend
from eyespan.drafters._head_config import HeadConfig

if TYPE_CHECKING:
    from eyespan.train.batch import TrainBatch

Condition = dict[str, Tensor]
"""What of a request's pictures a head looks at, by name, each [B, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Where a training run stands, as far as a head's losses depend on it.

    Attributes:
        progress: share of all updates that are done, in [0, 1].
        generator: source of noise and of random controls, on the batch's device; None: torch's own.
    """

    progress: float = 0.0
    generator: torch.Generator | None = None


class Hidden(NamedTuple):
    """What a head's blocks made of pairs: `last` [B, n, D] the last block's output, `first` the
    first block's.
    """

    last: Tensor
    first: Tensor


class PromptPairs(NamedTuple):
    """A prompt as a head's blocks read it.

    Attributes:
        x: [B, n, X] block inputs.
        visible: [B, n] bool, False where a pair is no part of the context; None: all are.
        each: entries of the condition as they stand at each of the n pairs, for training, where
            every pair is followed by drafts.
    """

    x: Tensor
    visible: Tensor | None = None
    each: Condition = {}  # noqa: RUF012 (never written)


class DraftHead(nn.Module):
    """Base of all heads. Weights of the target are borrowed (`attach`), neither trained nor saved.

    Class attributes:
        method: its name in the table of drafters.

    Attributes:
        slots: attentions in it that keep keys and values.
        reads: what it reads of the target, in terms of `Needs.hidden_layers`; the first is 0.
        sees: whether it looks at projected visual tokens.
    """

    method: ClassVar[str]

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.shape = config
        self.slots = config.layers
        self.reads: tuple[int, ...] = (0, -1)
        self.sees = False
        self._embedding: Tensor | None = None
        self._lm_head: Tensor | None = None

    def attach(self, embedding: Tensor, lm_head: Tensor) -> None:
        """Borrow the target's frozen weights.

        Args:
            embedding: [V', D] token embeddings.
            lm_head: [V, D] the language-model head.
        """
        self._embedding, self._lm_head = embedding.detach(), lm_head.detach()

    def prepare(self, counts: Tensor) -> None:
        """Get ready to be trained from the start; called once, after `attach`.

        Args:
            counts: [V] how often each id stands in the answers to learn from.
        """

    @property
    def dtype(self) -> torch.dtype:
        """Of its own weights."""
        return next(self.parameters()).dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the target's embedding, [..., D] in the head's dtype."""
        assert self._embedding is not None, "attach() comes first"
        return nn.functional.embedding(ids, self._embedding).to(self.dtype)

    def through_lm_head(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., V] logits of the target's head."""
        assert self._lm_head is not None, "attach() comes first"
        return nn.functional.linear(states.to(self._lm_head.dtype), self._lm_head)

    def token_ids(self) -> Tensor | None:
        """[v] target ids of the entries of `scores`; None where they are the ids themselves."""
        return None

    def look(self, visual: Tensor, visual_mask: Tensor) -> Condition:
        """What is kept of the pictures for a whole request.

        Args:
            visual: [B, N, D] projected visual tokens.
            visual_mask: [B, N] bool, False in the padding.
        """
        return {}

    def lift(self, states: Tensor) -> Tensor:
        """Target states [..., len(reads), D] -> features [..., F]; here the final state."""
        return states[..., -1, :]

    def prompt(
        self, embeds: Tensor, features: Tensor, media: Tensor, condition: Condition
    ) -> PromptPairs:
        """Block inputs of a prompt or of a whole training sequence.

        May add entries to `condition` that the nodes after the prompt's end need.

        Args:
            embeds: [B, n, D] what enters the target's decoder, pictures included.
            features: [B, n, F] lifted states of the position before each.
            media: [B, n] bool, True where a token stands for a part of a picture.
            condition: what `look` gave.
        """
        return PromptPairs(self.inputs(embeds, features, condition))

    def inputs(self, embeds: Tensor, features: Tensor, condition: Condition) -> Tensor:
        """Block inputs [B, n, X] of text pairs: embeddings [B, n, D], features [B, n, F]."""
        raise NotImplementedError

    def stack(self, x: Tensor, positions: Tensor, attend: Attend) -> Hidden:
        """Run the blocks over pairs [B, n, X] at positions [B, n]."""
        raise NotImplementedError

    def feedback(self, last: Tensor) -> Tensor:
        """The head's own states [..., D] as features [..., F] of their children."""
        raise NotImplementedError

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """Logits [B, n, v] for what follows nodes of one depth (root: 0).

        Args:
            last: [B, n, D] the blocks' output there.
            depth: of the nodes.
            condition: of the requests.
            generator: where a control draws at random.
        """
        raise NotImplementedError

    def training_losses(self, batch: TrainBatch, state: TrainState) -> dict[str, Tensor]:
        """Losses of one batch.

        Returns:
            "loss", the scalar to minimise; its terms by name (detached); "accuracy" and "hit", [k]
            the share of drafts of 1, 2, ... k tokens whose last token is the target's own, as the
            best candidate and among the `width` best, given that those before it are.
        """
        raise NotImplementedError

    def visual_share(self, progress: float) -> float | None:
        """Share of samples with pictures at a point of training in [0, 1]; None for no plan."""
        return None


def count_parameters(kind: type[DraftHead], config: HeadConfig) -> dict[str, int]:
    """Trainable parameters of each direct part of a head, and "total"; allocates nothing."""
    with torch.device("meta"):
        head = kind(config)
    counts = {
        name: sum(parameter.numel() for parameter in part.parameters())
        for name, part in head.named_children()
    }
    own = sum(parameter.numel() for parameter in head.parameters(recurse=False))
    if own:
        counts["own"] = own
    return {**counts, "total": sum(counts.values())}
