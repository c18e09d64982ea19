"""Numbers as callers give them: those of numpy and other libraries are numbers, bools are not.

What is let in becomes Python's own, so that nothing further on (a key of random numbers, a line of
JSON) has to know where it came from.
"""

from __future__ import annotations

import math
import numbers

import numpy as np


def whole(value: object) -> int | None:
    """The whole number that a value is, or None."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        return None
    return int(value)


def real(value: object) -> float | None:
    """The finite number that a value is, or None."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None
