"""By what a target is known again: its shape, its vocabulary and a sample of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from eyespan.target.adapter import HuggingFaceTarget

_SAMPLES = 256
_CLOSE = 0.01
"""Relative: rounding to bfloat16 moves a weight by 0.4 %."""


def identity_of(target: HuggingFaceTarget) -> dict[str, Any]:
    """What a file that belongs to a target records, JSON-ready."""
    info = target.info
    return {
        "name": info.name,
        "family": info.family,
        "vocab_size": info.vocab_size,
        "hidden_size": info.hidden_size,
        "layers": info.layers,
        "vocabulary": _vocabulary(target.tokenizer),
        "weights": _sample(target.model),
    }


def differs(here: Mapping[str, Any], recorded: object) -> str | None:
    """The first thing in which a recorded target is another one, in words. Its name may differ: a
    folder can be moved. Weights are compared loosely enough for another dtype of the same model.

    Args:
        here: what `identity_of` says.
        recorded: what a file says.
    """
    if not isinstance(recorded, Mapping):
        return "it is not recorded"
    for name, value in here.items():
        if name not in ("name", "weights") and recorded.get(name) != value:
            shown = f"{recorded.get(name)!r:.24}", f"{value!r:.24}"
            return f"{name} was {shown[0]}, not {shown[1]}"
    theirs = recorded.get("weights")
    ours = here["weights"]
    if not isinstance(theirs, list) or len(theirs) != len(ours):
        return "another number of weights"
    for own, other in zip(ours, theirs, strict=True):
        near = isinstance(other, int | float) and abs(own - other) <= _CLOSE * abs(own) + 1e-9
        if not near:
            return f"a weight was {other!r:.24}, not {own!r}"
    return None


def _vocabulary(tokenizer: Any) -> str | None:
    """A digest of every token and its id; None without a tokenizer."""
    if tokenizer is None:
        return None
    digest = hashlib.sha256()
    for token, at in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{at} {token}\n".encode("utf-8", errors="surrogatepass"))
    return digest.hexdigest()


def _sample(model: Any) -> list[float]:
    """One weight from the middle of each of up to 256 parameters, rounded to bfloat16."""
    parameters = [each for each in model.parameters() if each.numel() and not each.is_meta]
    chosen = parameters[:: max(1, -(-len(parameters) // _SAMPLES))]
    picked = [
        each.detach()[tuple(size // 2 for size in each.shape)].to(torch.bfloat16) for each in chosen
    ]
    return [float(each) for each in picked]
