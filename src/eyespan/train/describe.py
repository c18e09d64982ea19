"""How large trained drafters are for the backbones of the FOVEA paper, next to what it reports."""

from __future__ import annotations

from dataclasses import dataclass

from eyespan.drafters._head import count_parameters
from eyespan.target.weights import BACKBONES, TargetShape
from eyespan.train.run import method_of

LAYERS = {"llava-1.6-vicuna-13b": 3}
"""FOVEA's blocks by backbone (section 4); all others have two."""

PUBLISHED = {
    "llava-1.6-vicuna-7b": 0.621e9,
    "llava-1.6-vicuna-13b": 0.962e9,
    "qwen2.5-vl-7b": 0.583e9,
}
"""Trainable parameters of FOVEA that section 4 reports."""

UNDETERMINED = (
    "The paper's text does not determine its counts. Stated: the blocks and their number, "
    "d_k = d_u = d_h, both networks of the correction 512 wide inside. Not stated: the input map, "
    "the norms, biases, and whether the memory's maps are shared. Beside its blocks the paper "
    "leaves {left}; the parts that are stated need {need}. They are too few for two backbones and "
    "too many for the third, so no choice of them gives all three."
)
"""On FOVEA's counts; what is left is said by backbone, in billions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One head on one backbone.

    Attributes:
        method, backbone: names.
        parts: trainable parameters by part, "total" among them.
        published: what the FOVEA paper reports, None where it reports nothing.
    """

    method: str
    backbone: str
    parts: dict[str, int]
    published: float | None

    @property
    def off(self) -> float | None:
        """Relative difference of the total from what is published."""
        return None if self.published is None else self.parts["total"] / self.published - 1


def sizes(method: str, **options: object) -> list[Size]:
    """Trainable parameters of a method's head on the three backbones; allocates nothing.

    Args:
        method: a trained drafter's name.
        **options: fields of its config.

    Raises:
        ConfigError: unknown method or option.
    """
    return [_size(method, shape, options) for shape in BACKBONES.values()]


def undetermined(found: list[Size]) -> str:
    """In words, why FOVEA's counts cannot be met; empty where nothing is published."""
    known = [(size.parts, size.published) for size in found if size.published is not None]
    left = [published - parts["blocks"] for parts, published in known]
    need = [parts["total"] - parts["blocks"] for parts, _ in known]
    return UNDETERMINED.format(left=_billions(left), need=_billions(need)) if known else ""


def _billions(counts: list[float] | list[int]) -> str:
    return " / ".join(f"{count / 1e9:.3f}" for count in counts) + " B"


def _size(method: str, shape: TargetShape, options: dict[str, object]) -> Size:
    kind = method_of(method)
    fovea = method == "fovea"
    layers = {"layers": LAYERS[shape.name]} if fovea and shape.name in LAYERS else {}
    config = kind.config_type.for_target(shape, **{**layers, **options})
    parts = count_parameters(kind.head_type, config)
    published = PUBLISHED.get(shape.name) if fovea else None
    return Size(method=method, backbone=shape.name, parts=parts, published=published)
