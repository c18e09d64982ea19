"""How large trained drafters are for the backbones of the FOVEA paper, next to what it reports."""

from __future__ import annotations

from dataclasses import dataclass

from eyespan.drafters._head import count_parameters
from eyespan.drafters.fovea import LAYERS, PUBLISHED_PARAMETERS
from eyespan.target.weights import BACKBONES, TargetShape
from eyespan.train.run import method_of


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


def sizes(method: str, **options: object) -> list[Size]:
    """Trainable parameters of a method's head on the three backbones; allocates nothing.

    FOVEA's two and three blocks, with all linear maps from width to width and both networks of the
    correction 512 wide inside, as the text says, do not add up to its counts: 0.50, 1.10 and 0.54
    against 0.621, 0.962 and 0.583 billion. No single extra part explains all three differences.

    Args:
        method: a trained drafter's name.
        **options: fields of its config.

    Raises:
        ConfigError: unknown method or option.
    """
    return [_size(method, shape, options) for shape in BACKBONES.values()]


def _size(method: str, shape: TargetShape, options: dict[str, object]) -> Size:
    kind = method_of(method)
    fovea = method == "fovea"
    layers = {"layers": LAYERS[shape.name]} if fovea and shape.name in LAYERS else {}
    config = kind.config_type.for_target(shape, **{**layers, **options})
    parts = count_parameters(kind.head_type, config)
    published = PUBLISHED_PARAMETERS.get(shape.name) if fovea else None
    return Size(method=method, backbone=shape.name, parts=parts, published=published)
