"""From what a caller has (text, a chat, pictures, ids, or `generate()`'s arguments) to a `Prompt`.

Everything is checked before the first forward: nothing to say, a spelled-out placeholder, pictures
without a place and places without a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eyespan.errors import InputError, UnsupportedRequest
from eyespan.target import chat
from eyespan.target.base import Message, Prompt, TargetInfo
from eyespan.target.cache import capacity, check_cache, length
from eyespan.target.capabilities import Capabilities
from eyespan.target.families import Family
from eyespan.target.features import of_rows
from eyespan.target.media import picture_ids_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from eyespan.target.video import Clip

_READ_HERE = frozenset(
    {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}
)
_FEATURES = "mm_encoder_outputs"


class PromptMaker:
    """Makes prompts for one target; keeps no state between requests."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        family: Family,
        info: TargetInfo,
        capabilities: Capabilities,
    ) -> None:
        """Remember where things go.

        Args:
            model: asked for M-RoPE positions and the number of its embeddings.
            processor: processor, tokenizer or None.
            family: the model's row.
            info: media ids and name.
            capabilities: device of the model's inputs, kind of its states.
        """
        self._model = model
        self._processor = processor
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._family = family
        self._info = info
        self._device = capabilities.device
        self._states = capabilities.states
        self._picture_ids = torch.tensor(sorted(picture_ids_of(model.config)))
        self._embeddings = int(model.get_input_embeddings().weight.shape[0])

    def check_text(self, text: str) -> None:
        """See `HuggingFaceTarget.check_text`."""
        if self._tokenizer is not None:
            turn = {"role": "user", "content": [{"type": "text", "text": text}]}
            chat.check_text([turn], self._tokenizer, self._info.media_ids)

    @property
    def sampler(self) -> Any:
        """The video processor, which says what frames of a video are used.

        Raises:
            InputError: the model takes no videos, or its processor came without that part.
        """
        sampler = getattr(self._processor, "video_processor", None)
        if sampler is None or not self._family.watches:
            watches = self._family.watches and self._processor is not self._tokenizer
            raise InputError(
                f"a video for '{self._info.name}'",
                found="its video processor needs torchvision, which is not installed"
                if watches
                else "it takes no videos",
                needed="a model and processor that take videos are needed (docs/families.md)",
                todo="pip install torchvision." if watches else "Pass single frames as images.",
            )
        return sampler

    def prepare(
        self,
        prompt: str | Sequence[Message],
        images: Sequence[Image],
        videos: Sequence[Clip] = (),
    ) -> Prompt:
        """See `Target.prepare`."""
        if self._processor is None:
            raise InputError(
                "a prompt as text",
                found=f"'{self._info.name}' came without a processor or tokenizer",
                needed="one is needed to turn text into ids",
                todo="Pass processor=... next to the model, or give ids.",
            )
        sees = self._family.sees and self._processor is not self._tokenizer
        if images and not sees:
            raise InputError(
                f"{len(images)} image(s)",
                found=f"'{self._info.name}' reads text only",
                needed="a vision-language model with its processor is needed for pictures",
                todo="Load one, or drop the images.",
            )
        most = self._family.most_images
        if most is not None and len(images) > most:
            raise InputError(
                f"{len(images)} images",
                found=f"the processor of '{self._info.name}' has places for {most}",
                needed=f"at most {most} picture(s) in a prompt",
                todo="Ask about them one after the other.",
            )
        if images and videos and self._family.one_kind:
            raise InputError(
                f"{len(images)} image(s) and {len(videos)} video(s)",
                found=f"the processor of '{self._info.name}' takes one kind in a prompt",
                needed="pictures or videos alone are needed",
                todo="Ask about them one after the other.",
            )
        messages = chat.as_messages(prompt, images, videos)
        chat.check_text(messages, self._tokenizer, self._info.media_ids)
        marks = {"image": self._family.image_text, "video": self._family.video_text}
        encoded = dict(
            chat.encode(messages, images, videos, self._processor, marks if sees else None)
        )
        encoded.pop("attention_mask", None)
        made = self.from_ids(encoded.pop("input_ids"), encoded, images=len(images))
        if images or videos:
            self._refuse_placeless(made)
        return made

    def _refuse_placeless(self, prompt: Prompt) -> None:
        """The ids of a tokenizer that is another model's would fail in the middle of a forward."""
        places = self._picture_ids.tolist()
        if places and not np.isin(prompt.ids, places).any():
            raise InputError(
                f"pictures for '{self._info.name}'",
                found=f"its processor writes nothing that the model reads as a picture (id "
                f"{', '.join(map(str, places))})",
                needed="the processor and tokenizer that belong to the model are needed",
                todo="Check the tokenizer's files and the config's ids of pictures.",
            )

    def from_ids(self, input_ids: Any, media: Mapping[str, Any], images: int = 0) -> Prompt:
        """See `HuggingFaceTarget.prompt_from_ids`."""
        ids = self._ids(input_ids)
        self._refuse_foreign(ids)
        names = dict(self._family.former_names)
        tensors = {
            names.get(key, key): self._put(value)
            for key, value in media.items()
            if value is not None
        }
        return Prompt(
            ids=ids[0].to("cpu", torch.int32).numpy(),
            input_ids=ids,
            position_ids=self._positions(ids, tensors),
            media=tensors,
            images=images,
        )

    def from_generate(self, input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> Prompt:
        """See `HuggingFaceTarget.prompt_from_generate`."""
        given = {key: value for key, value in model_kwargs.items() if value is not None}
        self._refuse_unknown(input_ids, given)
        ids = self._ids(input_ids)
        media = {key: given[key] for key in self._media_arguments if key in given}
        positions = given.get("position_ids")
        if positions is None:
            positions = self._positions(ids, media)
        cache = given.get("cache", given.get("past_key_values"))
        if cache is not None:
            check_cache(cache, self._info.name, self._states)
            self._refuse_static(cache)
        self._refuse_parts(positions, 0 if cache is None else length(cache), ids.shape[1])
        return Prompt(
            ids=ids[0].to("cpu", torch.int32).numpy(),
            input_ids=ids,
            position_ids=positions,
            media=media,
            padding=_padding(given.get("attention_mask")),
            cache=cache,
        )

    def rows_from_generate(
        self, input_ids: Tensor, model_kwargs: Mapping[str, Any]
    ) -> list[Prompt]:
        """See `HuggingFaceTarget.prompts_from_generate`."""
        given = {key: value for key, value in model_kwargs.items() if value is not None}
        self._refuse_unknown(input_ids[:1], given)
        cache = given.get("cache", given.get("past_key_values"))
        if cache is not None:
            self._refuse_static(cache)
        if cache is not None and length(cache) > 0:
            raise _not_in_a_batch("a cache of more than one sequence that is filled already")
        if set(given) & set(self._family.media_inputs):
            raise _not_in_a_batch("pixels of more than one sequence")
        shown = given.get("attention_mask")
        mask = torch.ones_like(input_ids) if shown is None else shown
        if mask.ndim != 2 or bool((mask.bool().int().diff(dim=-1) < 0).any()):
            raise _not_in_a_batch("padding that is not at the left of more than one sequence")
        hidden = (mask == 0).sum(-1).tolist()
        rows = [input_ids[at : at + 1, skip:] for at, skip in enumerate(hidden)]
        counts = [int(torch.isin(row, self._picture_ids.to(row.device)).sum()) for row in rows]
        features = of_rows(given.get(_FEATURES, {}), counts)
        prompts = []
        for at, (row, skip) in enumerate(zip(rows, hidden, strict=True)):
            own: dict[str, Any] = {
                key: given[key][at : at + 1, skip:]
                for key in (*self._family.step_inputs, self._family.token_kinds)
                if key in given
            }
            if "position_ids" in given:
                own["position_ids"] = given["position_ids"][..., at : at + 1, skip:]
            if features[at]:
                own[_FEATURES] = features[at]
            prompts.append(self.from_generate(row, own))
        return prompts

    @property
    def _media_arguments(self) -> tuple[str, ...]:
        family = self._family
        kinds = (family.token_kinds,) if family.token_kinds else ()
        return (*family.media_inputs, *family.step_inputs, *kinds, _FEATURES)

    def _refuse_static(self, cache: Any) -> None:
        """`generate()` sizes a static cache for the answer; rejected guesses would overrun it."""
        if capacity(cache) is not None:
            raise UnsupportedRequest(
                f"generate() on '{self._info.name}' with tree verification",
                found="a static cache",
                needed="a cache that grows is needed, since a pack holds rejected guesses too",
                todo="Leave cache_implementation out, or use plain generate() for this call.",
            )

    def _refuse_parts(self, positions: Tensor, past: int, size: int) -> None:
        """Ids must be the whole sequence, so that positions and cached tokens line up with them."""
        if positions.shape[-1] != size or past >= size:
            raise UnsupportedRequest(
                f"generate() on '{self._info.name}' with tree verification",
                found=f"{size} ids beside {past} cached tokens and {positions.shape[-1]} positions",
                needed="the ids of the whole sequence are needed, with at least one not cached yet",
                todo="Pass the whole sequence, or use plain generate() for this call.",
            )

    def _refuse_unknown(self, input_ids: Tensor, given: Mapping[str, Any]) -> None:
        unknown = sorted(set(given) - _READ_HERE - set(self._media_arguments))
        if unknown or input_ids.shape[0] != 1 or input_ids.shape[1] == 0:
            raise UnsupportedRequest(
                f"generate() on '{self._info.name}' with tree verification",
                found=f"arguments {', '.join(unknown)}"
                if unknown
                else f"input ids of shape {tuple(input_ids.shape)}",
                needed="one sequence of ids with the family's own inputs is needed",
                todo="Use plain generate() for this call.",
            )

    def _ids(self, input_ids: Any) -> Tensor:
        """[1, L] int64 on the device."""
        ids = torch.as_tensor(np.asarray(input_ids) if isinstance(input_ids, list) else input_ids)
        if ids.numel() and (ids.is_floating_point() or ids.is_complex()):
            raise InputError(
                "a prompt",
                found=f"ids of type {str(ids.dtype).removeprefix('torch.')}",
                needed="whole numbers are needed",
                todo="Pass what the tokenizer returned.",
            )
        ids = ids.to(self._device, torch.int64)
        ids = ids[None] if ids.ndim == 1 else ids
        if ids.shape[0] != 1 or ids.shape[1] == 0:
            raise InputError(
                "a prompt",
                found=f"ids of shape {tuple(ids.shape)}",
                needed="one sequence of at least one token is needed",
                todo="Say something, or send requests one by one.",
            )
        return ids

    def _refuse_foreign(self, ids: Tensor) -> None:
        """An id without an embedding fails deep inside a model, and on a GPU ends the process."""
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= self._embeddings:
            raise InputError(
                "a prompt",
                found=f"id {lowest if lowest < 0 else highest}",
                needed=f"ids of '{self._info.name}' lie in [0, {self._embeddings})",
                todo="Use the tokenizer that belongs to the model.",
            )

    def _positions(self, ids: Tensor, media: Mapping[str, Any]) -> Tensor:
        """Position ids as `generate()` makes them: [1, L], or [4, 1, L] for M-RoPE."""
        linear = torch.arange(ids.shape[1], device=self._device)[None]
        if self._family.positions == "linear":
            return linear
        kinds = media.get(str(self._family.token_kinds))
        if kinds is None or not bool(kinds.any()):
            return linear.expand(4, 1, -1)
        rope, _ = self._model.model.get_rope_index(ids, **media)
        return torch.cat([linear[None], rope.to(linear)])

    def _put(self, value: Any) -> Any:
        """Tensors go to the device; the model itself casts pixels to its tower's dtype."""
        return value.to(self._device) if isinstance(value, Tensor) else value


def _not_in_a_batch(found: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        "speculation in generate()",
        found=found,
        needed="sequences that can be told apart, padded at the left alone",
        todo="Stock's own loop answers this call.",
    )


def _padding(mask: Any) -> Tensor | None:
    """A [1, L] bool mask, or None when it hides nothing."""
    if mask is None or bool(mask.all()):
        return None
    return torch.as_tensor(mask, dtype=torch.bool)
