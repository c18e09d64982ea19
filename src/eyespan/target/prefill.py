"""Read a prompt once: fill the cache, compute image features and the rows a drafter asked for.

Logits are computed only where they are needed (`logits_to_keep` with positions): a prompt of 3000
image positions and a 150k vocabulary would otherwise cost 1.8 GB in float32. Media positions never
get rows: what the model would say in the middle of an image is not text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eyespan.target import cache as caches
from eyespan.target.attention import row_watched
from eyespan.target.base import Prompt, SequenceState
from eyespan.target.capabilities import Capabilities
from eyespan.target.extras import hidden_states, visual_tokens
from eyespan.target.families import Family
from eyespan.target.features import Encoder
from eyespan.target.rows import top_rows
from eyespan.target.tree_forward import call_model
from eyespan.types import Ints, Needs, Prefill, PromptRows


def read_prompt(
    model: Any,
    capabilities: Capabilities,
    prompt: Prompt,
    needs: Needs,
    *,
    family: Family,
    encoder: Encoder,
    media_ids: frozenset[int],
    picture_ids: frozenset[int],
    last_layer: Sequence[torch.nn.Module],
) -> tuple[SequenceState, Prefill]:
    """Run the prompt's forward.

    Args:
        model: a transformers model.
        capabilities: what `inspect_model` found.
        prompt: one request; what its cache already holds is not run again.
        needs: what the drafter wants from the prompt.
        family: the model's row; its per-token arguments are cut to the tokens that are run.
        encoder: brings the pictures that are run.
        media_ids: ids whose positions get no rows.
        picture_ids: ids in whose place the features of pictures stand.
        last_layer: the decoder's last modules where attention is asked for, else none.

    Returns:
        The sequence's state, with every prompt token in the cache, and what the prompt brought.
    """
    cache = caches.new_cache(model.config) if prompt.cache is None else prompt.cache
    past = caches.length(cache)
    positions = row_positions(prompt.ids, media_ids, needs.prompt_rows)
    positions = positions[positions >= past]
    last = len(prompt) - 1
    wanted = positions if positions.size and positions[-1] == last else np.append(positions, last)
    per_token = {family.token_kinds, *family.step_inputs}
    media = {
        key: value[:, past:] if key in per_token else value
        for key, value in encoder.inputs(prompt.media, prompt.ids, past, prompt.features).items()
    }
    with row_watched(last_layer, row=-1) as watched:
        output = call_model(
            model,
            capabilities,
            family,
            cache,
            input_ids=prompt.input_ids[:, past:],
            position_ids=prompt.position_ids[..., past:],
            mask=prompt.padding,
            logits_to_keep=_to_keep(wanted - past, capabilities.device),
            hidden=bool(needs.hidden_layers),
            **media,
        )
    logits = output.logits[0]
    row_ids, row_logits = top_rows(logits)
    extras: dict[str, Any] = {}
    if needs.hidden_layers:
        extras["hidden"] = hidden_states(output, needs.hidden_layers)
    if needs.visual_tokens:
        extras["visual_tokens"] = visual_tokens(output)
    pictures = torch.from_numpy(np.flatnonzero(np.isin(prompt.ids, list(picture_ids))))
    if needs.visual_attention:
        name = type(model).__name__
        extras["visual_attention"] = watched.share(pictures, len(prompt), name)
    caches.begin_recording(cache)
    state = SequenceState(
        cache,
        length=len(prompt),
        next_position=prompt.position_ids[..., -1:] + 1,
        padding=prompt.padding,
        capacity=caches.capacity(cache),
        pictures=pictures,
        step_inputs={
            key: prompt.media[key][:, -1:] for key in family.step_inputs if key in prompt.media
        },
    )
    state.borrowed = prompt.cache is not None
    return state, Prefill(
        next_row_ids=row_ids[-1],
        next_row_logits=row_logits[-1],
        logits=logits[-1],
        positions=positions.astype(np.int32),
        row_ids=row_ids[: len(positions)],
        row_logits=row_logits[: len(positions)],
        extras=extras,
    )


def row_positions(ids: Ints, media_ids: frozenset[int], which: PromptRows) -> Ints:
    """[m] ascending positions that get rows.

    Args:
        ids: [L] the prompt.
        media_ids: never among them.
        which: "none", "first" (first occurrence of every text token) or "all".
    """
    if which == "none":
        return np.empty(0, np.int32)
    text = np.flatnonzero(~np.isin(ids, list(media_ids)))
    if which == "first":
        _, first = np.unique(ids[text], return_index=True)
        text = text[np.sort(first)]
    return text.astype(np.int32)


def _to_keep(positions: Ints, device: torch.device) -> int | torch.Tensor:
    """1 when only the last position counts (stock's own fast path), else the positions."""
    if len(positions) == 1:
        return 1
    return torch.from_numpy(positions.astype(np.int64)).to(device)
