"""The target side: one adapter over unpatched Hugging Face models.

Names are loaded on use, so that `eyespan.target.base`, which holds protocols only, stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyespan.target.adapter import HuggingFaceTarget
    from eyespan.target.features import FeatureMemory
    from eyespan.target.images import open_picture
    from eyespan.target.loading import load_target
    from eyespan.target.probe import self_test

_EXPORTS = {
    "FeatureMemory": "features",
    "HuggingFaceTarget": "adapter",
    "load_target": "loading",
    "open_picture": "images",
    "self_test": "probe",
}

__all__ = ["FeatureMemory", "HuggingFaceTarget", "load_target", "open_picture", "self_test"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"eyespan.target.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'eyespan.target' has no attribute '{name}'")
