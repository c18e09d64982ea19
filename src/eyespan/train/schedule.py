"""Learning rate by step: warm-up, then linear decay to zero."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

WarmUp: TypeAlias = Literal["linear", "logarithmic"]


def share_of_peak(step: int, *, warmup: int, total: int, shape: WarmUp) -> float:
    """Share of the peak rate at an update.

    The two schedules of FOVEA table 6, as DeepSpeed's WarmupDecayLR has them: linear rises with
    the step, logarithmic with its logarithm (half of the peak is reached after sqrt(warmup)
    updates).

    Args:
        step: updates already taken, from 0.
        warmup: updates until the peak.
        total: updates of the whole run; the rate is zero there.
        shape: of the warm-up.

    Returns:
        In [0, 1].
    """
    if step < warmup:
        if shape == "linear":
            return (step + 1) / (warmup + 1)
        return math.log(step + 2) / math.log(warmup + 2)
    return max(0.0, (total - step) / max(1, total - warmup))
