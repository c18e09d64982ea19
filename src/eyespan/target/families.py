"""One row per model family. A vision-language model type without a row is refused: a family is
supported by adding a row here and its tiny twin in `eyespan.testing`.

A row holds only what cannot be read off the model itself; see `capabilities.py` for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from eyespan.errors import UnsupportedTarget

Positions = Literal["linear", "mrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What one model family needs beyond what its config says.

    Attributes:
        name: the row's name, as `TargetInfo.family` shows it.
        model_types: values of `config.model_type` it covers; empty for the generic row.
        positions: "linear" counts tokens; "mrope" asks the model's own `get_rope_index` for
            (time, height, width) rows, and the offset it leaves behind belongs to the request.
        media_fields: config fields that hold ids which are never text.
        media_tokens: special tokens that are never text either, if the tokenizer has them.
        media_inputs: forward arguments that the prefill alone receives.
        token_kinds: forward argument that says of each token whether it is text (0), or None.
            Steps are all text: they get zeros.
        image_text: how one picture is written in a prompt when there is no chat template.
    """

    name: str
    model_types: tuple[str, ...] = ()
    positions: Positions = "linear"
    media_fields: tuple[str, ...] = ()
    media_tokens: tuple[str, ...] = ()
    media_inputs: tuple[str, ...] = ()
    token_kinds: str | None = None
    image_text: str = ""

    @property
    def sees(self) -> bool:
        """Whether the family takes pictures."""
        return bool(self.media_inputs)


_QWEN_VL = Family(
    name="qwen_vl",
    model_types=("qwen2_vl", "qwen2_5_vl"),
    positions="mrope",
    media_fields=(
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    ),
    media_tokens=(
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ),
    media_inputs=(
        "pixel_values",
        "image_grid_thw",
        "pixel_values_videos",
        "video_grid_thw",
        "second_per_grid_ts",
    ),
    token_kinds="mm_token_type_ids",
    image_text="<|vision_start|><|image_pad|><|vision_end|>",
)

_LLAVA = Family(
    name="llava",
    model_types=("llava",),
    media_fields=("image_token_id",),
    media_tokens=("<image>",),
    media_inputs=("pixel_values",),
    image_text="<image>\n",
)

_LLAVA_NEXT = Family(
    name="llava_next",
    model_types=("llava_next",),
    media_fields=("image_token_id",),
    media_tokens=("<image>",),
    media_inputs=("pixel_values", "image_sizes"),
    image_text="<image>\n",
)

TEXT = Family(name="text")
"""Any decoder-only language model; whether trees work on it is found out by running one."""

FAMILIES: tuple[Family, ...] = (_QWEN_VL, _LLAVA, _LLAVA_NEXT)
"""Rows of the vision-language families."""

SEEING_SUBCONFIGS = ("vision_config", "audio_config")
"""Config fields by which a model that takes media gives itself away."""


def family_of(config: Any) -> Family:
    """The row of a model's config.

    Raises:
        UnsupportedTarget: the model takes media and has no row.
    """
    for row in FAMILIES:
        if config.model_type in row.model_types:
            return row
    if any(getattr(config, name, None) is not None for name in SEEING_SUBCONFIGS):
        known = ", ".join(kind for row in FAMILIES for kind in row.model_types)
        raise UnsupportedTarget(
            f"model type '{config.model_type}'",
            found="a multimodal model without a row in eyespan/target/families.py",
            needed=f"known are {known}, and any text-only causal language model",
            todo="A family is one row in that file and its tiny twin in eyespan/testing.py.",
        )
    return TEXT
