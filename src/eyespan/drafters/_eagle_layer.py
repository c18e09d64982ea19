"""The head of the first EAGLE, which MSD and ViSpec build on: one decoder layer whose output stands
for the target's final state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eyespan.drafters._blocks import Block, rotary
from eyespan.drafters._head import Condition, DraftHead, Hidden
from eyespan.drafters._head_config import HeadConfig


class EagleLayer(DraftHead):
    """A linear map of [embedding; state before it], a layer, the target's LM head.

    Args:
        config: of one layer.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.join = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.block = Block(config, 0, norm_first=False)

    def stack(self, x: Tensor, positions: Tensor, attend: Any) -> Hidden:
        """The layer."""
        h = self.block(x, rotary(positions, self.shape), attend)
        return Hidden(h, h)

    def feedback(self, last: Tensor) -> Tensor:
        """The output stands for the target's final state."""
        return last

    def scores(
        self, last: Tensor, depth: int, condition: Condition, generator: torch.Generator | None
    ) -> Tensor:
        """The target's LM head on the output."""
        return self.through_lm_head(last)
