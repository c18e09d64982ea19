"""The frozen target as a teacher: answers a conversation, then reads it whole and hands out, as
arrays, everything that a head learns from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import linear

from eyespan.errors import InputError, UnsupportedTarget
from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.target.weights import weights_of
from eyespan.train.entropy import EntropyMeter, candidate_layers
from eyespan.types import Floats, Ints, Needs

SUPERVISE_MEANING: Final = "true where the target's prediction is a token of its answer"
"""Off by one, a head would learn to repeat."""

_HEAD_TOLERANCE = 1e-3
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A conversation as the target reads it.

    Attributes:
        prompt: all tokens but the last answer's, with media.
        answer: [m] ids of the last answer.
        spans: half-open ranges of answer tokens within prompt + answer, this and earlier turns.
    """

    prompt: Prompt
    answer: Ints
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One sequence with everything a head learns from; shapes as in `TrainBatch`, without B.

    `mid`, `top_ids`, `top_logits` and `log_sum_exp` hold the supervised positions alone, in order.
    """

    input_ids: Ints
    final: Floats
    layers: dict[int, Floats]
    mid: Floats | None
    top_ids: Ints
    top_logits: Floats
    log_sum_exp: Floats
    supervise: npt.NDArray[np.bool_]
    media: npt.NDArray[np.bool_]
    visual: Floats


class Teacher:
    """Reads whole conversations with one target."""

    def __init__(
        self, target: HuggingFaceTarget, *, layers: Sequence[int], mid: bool, top: int
    ) -> None:
        """Check what is asked.

        Args:
            target: frozen.
            layers: indices of decoder layers whose entering states are wanted.
            mid: whether the intermediate target is wanted.
            top: predictions kept at a supervised position.

        Raises:
            UnsupportedTarget: it has no such layers, or too few for an intermediate target.
        """
        count = target.info.layers
        candidates = candidate_layers(count)
        if mid and not candidates:
            raise UnsupportedTarget(
                f"an intermediate target from '{target.info.name}'",
                found=f"{count} decoder layers",
                needed="at least 8 are needed: the search covers 1..floor(0.4 layers)-2",
                todo="Set store.mid = false.",
            )
        for layer in layers:
            if not 0 <= layer < count:
                raise UnsupportedTarget(
                    f"states entering layer {layer} of '{target.info.name}'",
                    found=f"{count} decoder layers",
                    needed=f"layers 0 to {count - 1} can be entered",
                    todo="Change store.layers.",
                )
        self.target = target
        self.layers, self.top = tuple(layers), min(top, target.info.vocab_size)
        self.candidates = candidates if mid else ()
        self._meter = EntropyMeter(target.model, candidates) if mid else None
        self._weights = weights_of(target.model, target.info.name)
        self._image_id = image_token_of(target)

    @torch.no_grad()
    def read(self, answered: Answered) -> Lesson:
        """One forward over a conversation.

        Raises:
            UnsupportedTarget: the LM head does something else than reading the final state.
            InputError: a state that is not finite.
        """
        prompt = extended(self.target, answered.prompt, answered.answer)
        needs = Needs(hidden_layers=(0, -1, *self.layers, *self.candidates), visual_tokens=True)
        with self._meter.watching() if self._meter else nullcontext():
            state, prefill = self.target.prefill(prompt, needs)
        state.close()
        hidden: Floats = prefill.extras["hidden"]
        final = np.ascontiguousarray(hidden[:, 1])
        supervise = np.zeros(len(prompt), np.bool_)
        for start, end in answered.spans:
            supervise[start - 1 : end - 1] = True
        at = np.flatnonzero(supervise)
        self._check_head(final[-1], prefill.logits)
        top_ids, top_logits, log_sum_exp = self._rows(final[at])
        visual = prefill.extras.get("visual_tokens")
        if visual is None:
            visual = np.zeros((0, final.shape[1]), np.float32)
        self._check_embeddings(prompt.input_ids[0], hidden[:, 0], visual)
        lesson = Lesson(
            input_ids=prompt.ids,
            final=final,
            layers={
                layer: np.ascontiguousarray(hidden[:, 2 + place])
                for place, layer in enumerate(self.layers)
            },
            mid=self._mid(hidden, at),
            top_ids=top_ids,
            top_logits=top_logits,
            log_sum_exp=log_sum_exp,
            supervise=supervise,
            media=np.isin(prompt.ids, list(self.target.info.media_ids)),
            visual=visual,
        )
        _check_finite(lesson)
        return lesson

    @torch.no_grad()
    def check_layers(self, prompt: Prompt) -> None:
        """Make sure that the states handed out for a layer are those that enter it.

        Args:
            prompt: any; read once.

        Raises:
            UnsupportedTarget: they are not, so that nothing trained on them would be right.
        """
        wanted = (*self.layers, *self.candidates)
        entered: dict[int, Tensor] = {}
        decoder = self.target.model.get_decoder().layers

        def remember(layer: int) -> Any:
            def hook(_: Any, args: Any, kwargs: Any) -> None:
                entered[layer] = args[0] if args else kwargs["hidden_states"]

            return hook

        hooks = [
            decoder[layer].register_forward_pre_hook(remember(layer), with_kwargs=True)
            for layer in wanted
        ]
        try:
            state, prefill = self.target.prefill(prompt, Needs(hidden_layers=wanted))
        finally:
            for hook in hooks:
                hook.remove()
        state.close()
        for place, layer in enumerate(wanted):
            if not np.array_equal(
                prefill.extras["hidden"][:, place], entered[layer][0].float().cpu().numpy()
            ):
                raise UnsupportedTarget(
                    f"states entering layer {layer} of '{self.target.info.name}'",
                    found="other states in the model's hidden_states",
                    needed="hidden_states[i] must be what enters layer i",
                    todo="Set store.layers = [] and store.mid = false.",
                )

    def _mid(self, hidden: Floats, at: npt.NDArray[np.intp]) -> Floats | None:
        """[m, D] the state entering each token's least scattered candidate layer."""
        if self._meter is None:
            return None
        layer = self._meter.lowest().cpu().numpy()[at]
        return np.ascontiguousarray(hidden[at, 2 + len(self.layers) + layer - self.candidates[0]])

    def _rows(self, final: Floats) -> tuple[Ints, Floats, Floats]:
        """Best ids, their logits and the log-sum-exp of all, a block of positions at a time."""
        weight = self._weights.lm_head
        ids, logits, sums = [], [], []
        for start in range(0, len(final), _ROWS_AT_ONCE):
            states = torch.from_numpy(final[start : start + _ROWS_AT_ONCE])
            scores = linear(states.to(weight.device, weight.dtype), weight).float()
            best = scores.topk(self.top, dim=-1)
            ids.append(best.indices.to("cpu", torch.int32))
            logits.append(best.values.cpu())
            sums.append(scores.logsumexp(dim=-1).cpu())
        return torch.cat(ids).numpy(), torch.cat(logits).numpy(), torch.cat(sums).numpy()

    def _check_embeddings(self, ids: Tensor, entering: Floats, visual: Floats) -> None:
        """A model that scales its embeddings or adds to them would be taught wrongly: a batch, and
        live decoding, put table rows and visual tokens together.
        """
        made = embeddings(ids, self._weights.embedding, torch.from_numpy(visual), self._image_id)
        if not np.array_equal(made.float().cpu().numpy(), entering):
            raise UnsupportedTarget(
                f"capturing '{self.target.info.name}'",
                found="a decoder that is entered by other values than its embedding table's rows "
                "and its projected visual tokens",
                needed="drafters are fed with those two",
                todo="This model scales or adds to its embeddings; it cannot be captured.",
            )

    def _check_head(self, final: Floats, logits: Tensor) -> None:
        """The head on the last final state must give the model's own logits: a model that scales or
        caps them, or whose last hidden state is not what the head reads, would be taught wrongly.
        """
        weight = self._weights.lm_head
        own = linear(torch.from_numpy(final).to(weight.device, weight.dtype), weight).float()
        gap = float((own - logits.float()).abs().max())
        spread = float(own.max() - own.min())
        coarse = 1.0 if weight.dtype == torch.float32 else 50.0
        if not gap <= _HEAD_TOLERANCE * coarse * spread:
            raise UnsupportedTarget(
                f"capturing '{self.target.info.name}'",
                found=f"logits {gap:.2g} away from its LM head on its last hidden state",
                needed="logits that are the head's own are needed (FOVEA eq. 12)",
                todo="This model scales or caps its logits; it cannot be captured.",
            )


def image_token_of(target: HuggingFaceTarget) -> int | None:
    """The id at whose places visual tokens enter; None for a model without pictures."""
    found = getattr(target.model.config, "image_token_id", None)
    return None if found is None else int(found)


def embeddings(ids: Tensor, table: Tensor, visual: Tensor, image_id: int | None) -> Tensor:
    """[L, D] what enters the decoder, in the table's dtype.

    Args:
        ids: [L].
        table: [V', D] token embeddings.
        visual: [N, D] projected visual tokens, in prompt order.
        image_id: at whose N places they stand.

    Raises:
        InputError: another number of places.
    """
    rows = torch.nn.functional.embedding(ids.to(table.device), table)
    places = (ids == (-1 if image_id is None else image_id)).nonzero()[:, 0]
    if len(places) != len(visual):
        raise InputError(
            "a captured sequence",
            found=f"{len(places)} places for {len(visual)} visual tokens",
            needed="one place each is needed",
            todo="The sequence is left out.",
        )
    rows[places.to(table.device)] = visual.to(rows)
    return rows


def extended(target: HuggingFaceTarget, prompt: Prompt, ids: Ints) -> Prompt:
    """The prompt with text tokens after it, as the target would have decoded them.

    Args:
        target: whose prompt it is.
        prompt: without padding and cache.
        ids: [m] text ids.
    """
    device = prompt.input_ids.device
    count = len(ids)
    steps = torch.arange(1, count + 1, device=device)
    family, media = target.family, dict(prompt.media)
    for name in media.keys() & {family.token_kinds, *family.step_inputs}:
        last = media[name][:, -1:]
        kind = torch.full_like(last, family.text_kind) if name == family.token_kinds else last
        media[name] = torch.cat([media[name], *[kind] * count], dim=1)
    return replace(
        prompt,
        ids=np.concatenate([prompt.ids, ids.astype(np.int32)]),
        input_ids=torch.cat(
            [prompt.input_ids, torch.from_numpy(ids.astype(np.int64)).to(device)[None]], dim=1
        ),
        position_ids=torch.cat(
            [prompt.position_ids, prompt.position_ids[..., -1:] + steps], dim=-1
        ),
        media=media,
    )


def _check_finite(lesson: Lesson) -> None:
    for name in ("final", "mid", "top_logits", "log_sum_exp", "visual"):
        values = getattr(lesson, name)
        if values is not None and not np.isfinite(values).all():
            raise InputError(
                "a captured sequence",
                found=f"values in '{name}' that are not finite",
                needed="finite states are needed, or training ends in NaN",
                todo="The sequence is left out.",
            )
