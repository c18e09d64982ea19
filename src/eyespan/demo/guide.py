"""Guided attention: where on the page an answer's token stands, and a loss that points heads there.

Reading aloud is two glances a token: where am I, and what stands next. Left alone, attention finds
them late; told for two heads, at the positions whose place is certain, it finds them in minutes.
The guide lives in training only.
"""

import re
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyespan.demo.canvas import COLS, Page, Shape
from eyespan.demo.lexicon import PLACE_NAMES
from eyespan.demo.model import PATCH, PATCHES, SHALLOW
from eyespan.demo.samples import Turn

NOWHERE: Final = -100
OWN_LAYER: Final = 1  # of SHALLOW; its last head looks at the token just written
NEXT_LAYER: Final = 2  # of SHALLOW; its last head looks at the token to write
_ROW: Final = COLS // 2


def places(turn: Turn, page: Page, offsets: list[tuple[int, int]]) -> list[int]:
    """Patch on which each answer token (half-open character offsets) stands, or NOWHERE.

    A piece that stands on the page more than once is placed on the line of the piece before it, or
    else at its first place after that one; what stays unclear is left out.
    """
    starts = [NOWHERE] * len(turn.answer)
    if page.shapes:
        _place_shapes(turn, page, starts)
    last = (-1, -1)
    for begin, end in turn.picture_spans:
        text = turn.answer[begin:end]
        hits = _find(text, page)
        if len(hits) > 1:
            same = [hit for hit in hits if hit[0] == last[0] and hit[1] != last[1]]
            after = [hit for hit in hits if hit > last]
            hits = same if len(same) == 1 else after[:1]
        if hits:
            last = row, col = hits[0]
            for at in range(begin, end):
                starts[at] = row * _ROW + (col + at - begin) // 2
    out = []
    for begin, end in offsets:
        while begin < end and turn.answer[begin] == " ":
            begin += 1
        out.append(starts[begin] if begin < end else NOWHERE)
    return out


def _place_shapes(turn: Turn, page: Page, starts: list[int]) -> None:
    """Put words about a shape on the patch at its middle; a place's name opens a new shape."""
    by_place = {PLACE_NAMES[shape.place]: shape for shape in page.shapes}
    current: Shape | None = None
    for begin, end in turn.picture_spans:
        text = turn.answer[begin:end]
        same = [s for s in page.shapes if text == f"{s.size} {s.color} {s.shape}"]
        if text in by_place:
            current = by_place[text]
        elif current is None and len(same) == 1:
            current = same[0]
        if current is not None and not text.isdigit():
            x0, y0, x1, y1 = current.box
            middle = (y0 + y1) // 2 // PATCH * _ROW + (x0 + x1) // 2 // PATCH
            starts[begin:end] = [middle] * (end - begin)


def _find(text: str, page: Page) -> list[tuple[int, int]]:
    """Row and column of every whole occurrence, in reading order."""
    pattern = rf"(?<![\w.]){re.escape(text)}(?!\w|\.\d)"
    return [
        (run.row, run.col + match.start())
        for run in page.runs
        for match in re.finditer(pattern, run.text, re.IGNORECASE)
    ]


class Guide:
    """Watches two attention layers of a text model while it runs, and scores their last heads."""

    def __init__(self, text_model: Any) -> None:
        self._seen: dict[int, tuple[Tensor, tuple[Tensor, Tensor]]] = {}
        self._layers = text_model.layers
        if len(self._layers) % SHALLOW:
            raise ValueError(
                f"asked to guide a text model of {len(self._layers)} layers; needed: a multiple of "
                f"{SHALLOW}, as `grow` makes from {SHALLOW}; build it with that many"
            )
        self._step = len(self._layers) // SHALLOW  # `grow` puts old layer i at i * step
        for index in (OWN_LAYER * self._step, NEXT_LAYER * self._step):
            self._layers[index].self_attn.register_forward_pre_hook(
                lambda _module, _args, kwargs, index=index: self._seen.__setitem__(
                    index, (kwargs["hidden_states"], kwargs["position_embeddings"])
                ),
                with_kwargs=True,
            )

    def losses(self, sources: Tensor) -> dict[str, Tensor]:
        """From [B, L], the patch of each input token or NOWHERE."""
        out: dict[str, Tensor] = {}
        following = F.pad(sources[:, 1:], (0, 1), value=NOWHERE)
        for name, index, target in (("own", OWN_LAYER, sources), ("next", NEXT_LAYER, following)):
            chosen = target != NOWHERE
            scores = self._scores(index * self._step, chosen)
            wanted = target[chosen]
            out[f"{name}_loss"] = F.cross_entropy(scores, wanted)
            out[f"{name}_right"] = (scores.detach().argmax(-1) == wanted).float().mean()
        self._seen.clear()
        return out

    def _scores(self, index: int, chosen: Tensor) -> Tensor:
        """[m, PATCHES] attention logits of the last head at the chosen positions."""
        hidden, (cos, sin) = self._seen[index]
        attention = self._layers[index].self_attn
        size = attention.head_dim

        def head(linear: nn.Linear) -> Tensor:
            part = F.linear(hidden, linear.weight[-size:])
            half = size // 2
            turned = torch.cat([-part[..., half:], part[..., :half]], dim=-1)
            return part * cos + turned * sin

        keys = head(attention.k_proj)[:, 1 : 1 + PATCHES]
        queries = head(attention.q_proj)[chosen]
        rows = chosen.nonzero()[:, 0]
        scores: Tensor = torch.einsum("md,mpd->mp", queries, keys[rows]) * attention.scaling
        return scores
