"""The table of model families: `family_of(config)` finds a model's row.

A vision-language model type without a row is refused: a family is supported by adding a row here
and its tiny twin in `eyespan.testing`, which puts it into every parity test. A row holds only what
cannot be read off the model itself; see `capabilities.py` for the rest.
"""

from __future__ import annotations

from typing import Any

from eyespan.errors import UnsupportedTarget
from eyespan.target.families.row import Family
from eyespan.target.families.seeing import FAMILIES

__all__ = ["FAMILIES", "TEXT", "Family", "family_of"]

TEXT = Family(name="text", title="Decoder-only language models")
"""Any decoder-only language model; whether trees work on it is found out by running one."""

_SEEING_SUBCONFIGS = ("vision_config", "audio_config")
"""Config fields by which a model that takes media gives itself away."""


def family_of(config: Any) -> Family:
    """The row of a model's config.

    Raises:
        UnsupportedTarget: the model takes media and has no row.
    """
    for row in FAMILIES:
        if config.model_type in row.model_types:
            return row
    if any(getattr(config, name, None) is not None for name in _SEEING_SUBCONFIGS):
        known = ", ".join(kind for row in FAMILIES for kind in row.model_types)
        raise UnsupportedTarget(
            f"model type '{config.model_type}'",
            found="a multimodal model without a row in eyespan/target/families",
            needed=f"known are {known}, and any text-only causal language model",
            todo="A family is one row there and its tiny twin in eyespan/testing.",
        )
    return TEXT
