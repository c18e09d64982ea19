"""What drafters with weights read besides rows: hidden states and visual tokens, on the host."""

from __future__ import annotations

from typing import Any

import torch

from eyespan.errors import UnsupportedTarget
from eyespan.target.families import Family
from eyespan.types import Floats, Needs

_WORDS = {
    "hidden_layers": "states of its layers",
    "visual_tokens": "features of pictures",
    "visual_attention": "attention on pictures",
}


def refuse_withheld(needs: Needs, family: Family, name: str) -> None:
    """Refuse what a family's row says that it cannot hand out.

    Args:
        needs: what a drafter reads.
        family: the model's row.
        name: how the message calls the model.

    Raises:
        UnsupportedTarget: one of them is withheld.
    """
    wanted = [word for field, word in _WORDS.items() if getattr(needs, field)]
    withheld = [_WORDS[field] for field in family.withholds if getattr(needs, field)]
    if withheld:
        raise UnsupportedTarget(
            f"a drafter on '{name}' that reads {', '.join(wanted)}",
            found=f"{family.title} gives no {', no '.join(withheld)}",
            needed="a drafter is told all that it reads, or it would guess blindly",
            todo="Use a drafter that reads predictions or text alone, such as recap.",
        )


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
