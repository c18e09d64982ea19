"""What drafters with weights read besides rows: hidden states and visual tokens, on the host."""

from __future__ import annotations

from typing import Any

import torch

from eyespan.types import Floats


def hidden_states(output: Any, layers: tuple[int, ...], row: int = 0) -> Floats:
    """[n, layers, d] float32 states of one row of a call; 0 is the embedding, i the output of layer
    i, and -1 the state after the final norm, which is what the language-model head reads.
    """
    states = torch.stack([output.hidden_states[layer][row] for layer in layers], dim=1)
    host: Floats = states.float().cpu().numpy()
    return host


def visual_tokens(output: Any) -> Floats | None:
    """[v, d] float32 projected image features in prompt order, as they enter the decoder; None for
    a prompt without pictures.
    """
    images = getattr(output, "image_outputs", None)
    if images is None:
        return None
    host: Floats = torch.cat(list(images.pooler_output)).float().cpu().numpy()
    return host
