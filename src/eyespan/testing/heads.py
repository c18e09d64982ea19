"""Trained drafters with random weights: what they guess is noise, what they do is real."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch

from eyespan.drafters import DRAFTERS, TRAINED
from eyespan.drafters._checkpoint import write_head
from eyespan.drafters._head import DraftHead
from eyespan.drafters._trained import Trained
from eyespan.errors import unknown_name
from eyespan.target.weights import TargetWeights


def random_head(name: str, weights: TargetWeights, *, seed: int = 0, **fields: Any) -> DraftHead:
    """A head for a target, attached to it; what a method starts at zero is random too.

    Args:
        name: one of `eyespan.drafters.TRAINED`.
        weights: of the target, see `HuggingFaceTarget.weights`.
        seed: of the head's weights.
        **fields: of the method's config.

    Raises:
        ConfigError: an unknown name or field, or a value out of range.
    """
    kind = _kind(name)
    config = kind.config_type.for_target(weights.shape, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = kind.head_type(config)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05 if parameter.any() else 0.5)
    head.attach(weights.embedding, weights.lm_head)
    return head


def random_checkpoint(
    name: str, weights: TargetWeights, folder: str | os.PathLike[str], **fields: Any
) -> str:
    """Write a random head's checkpoint; returns its folder, for `checkpoint=`.

    Args:
        name: see `random_head`.
        weights: of the target.
        folder: made when missing.
        **fields: `seed`, and fields of the method's config.
    """
    write_head(folder, random_head(name, weights, **fields), weights.record())
    return os.fspath(folder)


def _kind(name: str) -> type[Trained[Any, Any]]:
    if name not in TRAINED:
        raise unknown_name("trained drafter", name, TRAINED)
    module, _, attribute = DRAFTERS[name].partition(":")
    kind: type[Trained[Any, Any]] = getattr(import_module(module), attribute)
    return kind
