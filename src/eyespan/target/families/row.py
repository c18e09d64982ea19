"""What one model family needs beyond what its config and its modules say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Positions = Literal["linear", "mrope"]
"""How tokens are counted: one by one, or by the model's own `get_rope_index` into rows of (time,
height, width), whose offset belongs to the request."""

Split = Literal["rows", "patches"]
"""How one picture's tensors are cut out of a request's: the i-th entry of every tensor, or the
next `prod(grid)` rows of the pixels, `grid` being the i-th entry of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table.

    Attributes:
        name: the row's name, as `TargetInfo.family` shows it.
        title: how people call its models; for tables.
        model_types: values of `config.model_type` it covers; empty for the generic row.
        positions: see `Positions`.
        first_position: position id of the first token as the model's layers count.
        media_fields: config fields that hold ids (one or a list) which are never text; a dot goes
            into a part of the config.
        media_tokens: special tokens that are never text either, if the tokenizer has them.
        media_inputs: forward arguments that the prefill alone receives.
        video_inputs: those of them that bring videos.
        former_names: (name that its processor still uses, the forward argument's own), ...
        token_kinds: forward argument that says of each token whether it is text, or None.
        text_kind: its value at the tokens of an answer.
        step_inputs: forward arguments [1, L, ...] with a row per token; a step repeats the last.
        own_masks: the model's wrapper always builds masks itself and takes none from outside.
        image_text: how one picture is written in a prompt when there is no chat template.
        tells_states: whether a forward that reads pictures may be asked for the states of its
            layers.
        tells_visual_tokens: whether projected visual tokens enter its decoder, and can be seen.
        video_text: how one video is written in a prompt when there is no chat template; families
            that have none take no videos but as tensors.
        split: how features of single pictures can be computed, so that none is encoded twice;
            None encodes a request's pictures together.
        video_split: the same for videos.
        wraps: its model hands all but pictures to a whole language model of its own, by keywords
            that its signature does not show, and starts that one's `generate()`, not its own.
        most_images: pictures that its processor finds places for; None is any number.
        one_kind: its processor takes pictures or videos, not both in one prompt.
    """

    name: str
    title: str
    model_types: tuple[str, ...] = ()
    positions: Positions = "linear"
    first_position: int = 0
    media_fields: tuple[str, ...] = ()
    media_tokens: tuple[str, ...] = ()
    media_inputs: tuple[str, ...] = ()
    video_inputs: tuple[str, ...] = ()
    former_names: tuple[tuple[str, str], ...] = ()
    token_kinds: str | None = None
    text_kind: int = 0
    step_inputs: tuple[str, ...] = ()
    own_masks: bool = False
    image_text: str = ""
    tells_states: bool = True
    tells_visual_tokens: bool = True
    video_text: str = ""
    split: Split | None = None
    video_split: Split | None = None
    one_kind: bool = False
    wraps: bool = False
    most_images: int | None = None

    @property
    def sees(self) -> bool:
        """Whether the family takes pictures."""
        return bool(self.media_inputs)

    @property
    def two_way(self) -> bool:
        """Whether tokens of one picture see each other both ways, which is what a model that counts
        its tokens one by one wants to know their kinds for. transformers builds that mask for a
        whole prompt only, not for pictures behind a cache.
        """
        return self.token_kinds is not None and self.positions == "linear"

    @property
    def watches(self) -> bool:
        """Whether the family takes videos."""
        return bool(self.video_inputs or self.video_text)
