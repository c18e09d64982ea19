"""What a hook on transformers' own functions is told through a context variable.

Hooks stay installed for the whole process, so a compiled pass of another model runs into them. A
compiler cannot look into context variables, and need not: compiled passes take explicit masks, and
nothing is in force in them.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TypeVar

import torch

Told = TypeVar("Told")


def in_force(variable: ContextVar[Told | None]) -> Told | None:
    """The variable's value in this thread or task; None while a forward is being compiled."""
    return None if torch.compiler.is_compiling() else variable.get()
