"""What a head learns from: a padded batch of captured sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """B sequences of at most L tokens, padded on the right; D is the target's width.

    Position `t` reads token `t`; what the target says there is about token `t + 1`.

    Attributes:
        input_ids: [B, L] int64; 0 in the padding.
        embeds: [B, L, D] what enters the decoder: rows of the embedding table, and projected
            visual tokens at the places of pictures.
        final: [B, L, D] the target's state after its final norm, as its LM head reads it.
        mid: [B, L, D] the state entering, for each token, the layer with the lowest head-averaged
            attention entropy among 1..floor(0.4 layers)-2 (FOVEA table 8); zero where `supervise`
            is False. None when it was not captured.
        layers: by layer index, [B, L, D] the states entering that layer (EAGLE-3's features).
        top_ids: [B, L, T] int64 best ids by descending logit; zero where `supervise` is False.
        top_logits: [B, L, T] their logits.
        log_sum_exp: [B, L] over the whole vocabulary, so that `top_logits - log_sum_exp` are log
            probabilities.
        supervise: [B, L] bool, True where the target's prediction is a token of its answer; the
            first True of an answer stands on the last token of its prompt.
        media: [B, L] bool, True on ids that are never text.
        visual: [B, N, D] projected visual tokens in prompt order, padded with zeros.
        visual_mask: [B, N] bool, False in the padding.
    """

    input_ids: Tensor
    embeds: Tensor
    final: Tensor
    mid: Tensor | None
    layers: Mapping[int, Tensor] = field(default_factory=dict)
    top_ids: Tensor
    top_logits: Tensor
    log_sum_exp: Tensor
    supervise: Tensor
    media: Tensor
    visual: Tensor
    visual_mask: Tensor

    def to(self, device: torch.device | str) -> TrainBatch:
        """The same batch on another device."""
        moved: dict[str, object] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor):
                moved[each.name] = value.to(device)
            elif isinstance(value, Mapping):
                moved[each.name] = {layer: state.to(device) for layer, state in value.items()}
            else:
                moved[each.name] = value
        return TrainBatch(**moved)  # type: ignore[arg-type]
