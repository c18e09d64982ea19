"""Dense supervision of the tower: what stands in every 16 x 16 patch.

A page teaches 144 patches at once, so the tower reads after minutes; the language model then only
has to copy. The heads live in training only and are not shipped.
"""

import re
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from eyespan.demo import lexicon
from eyespan.demo.canvas import CHARS, COLS, ROWS, Page
from eyespan.demo.model import PATCH, PATCHES
from eyespan.demo.tokenizer import PIECE

NOTHING: Final = -100
_SIZES: Final = {word: index + 1 for index, word in enumerate(lexicon.SIZES)}
_COLORS: Final = {word: index + 1 for index, word in enumerate(lexicon.COLORS)}
_SHAPES: Final = {word: index + 1 for index, word in enumerate(lexicon.SHAPES)}
_PIECE: Final = re.compile(PIECE)
_ROW: Final = COLS // 2  # patches in a row
VISUAL_NORM: Final = 4.0  # of a visual token; far above it, text layers could not change one
_AHEAD: Final = 2  # patches to the right whose characters a patch must name too


@dataclass(frozen=True, slots=True)
class DenseLabels:
    """Targets of one batch; NOTHING where there is none."""

    chars: Tensor  # [B, PATCHES, 2] character in the left and right half, 0 = space
    tokens: Tensor  # [B, PATCHES, 3, 2] token starting left, right, the one before; two spellings
    shapes: Tensor  # [B, PATCHES, 3] size, colour, shape; 0 = none; NOTHING on pages without shapes


class Labeller:
    """Turns pages into dense labels with the tokenizer's ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._forms: dict[str, tuple[int, int]] = {}

    def _ids(self, word: str) -> tuple[int, int]:
        """First token of the word without and with a leading space."""
        if word not in self._forms:
            bare = self._tokenizer.encode(word).ids[0]
            spaced = self._tokenizer.encode(f" {word}").ids
            self._forms[word] = (bare, spaced[0] if len(spaced) == 1 else bare)
        return self._forms[word]

    def __call__(self, pages: list[Page]) -> DenseLabels:
        chars = torch.zeros(len(pages), ROWS, COLS, dtype=torch.long)
        tokens = torch.full((len(pages), PATCHES, 3, 2), NOTHING)
        shapes = torch.full((len(pages), PATCHES, 3), NOTHING)
        for index, page in enumerate(pages):
            self._text(page, chars[index], tokens[index])
            if page.shapes:
                self._shapes(page, tokens[index], shapes[index])
        return DenseLabels(chars.view(len(pages), PATCHES, 2), tokens, shapes)

    def _text(self, page: Page, chars: Tensor, tokens: Tensor) -> None:
        before = self._ids("|")
        for run in page.runs:
            codes = torch.tensor([CHARS.index(char) for char in run.text])
            chars[run.row, run.col : run.col + len(run.text)] = codes
            for match in _PIECE.finditer(run.text):
                word = match.group().strip()
                if not word:
                    continue
                col = run.col + match.end() - len(word)
                patch, slot = run.row * _ROW + col // 2, col % 2
                ids = self._ids(word)
                tokens[patch, slot] = torch.tensor(ids)
                if tokens[patch, 2, 0] == NOTHING:
                    tokens[patch, 2] = torch.tensor(before)
                before = ids

    def _shapes(self, page: Page, tokens: Tensor, shapes: Tensor) -> None:
        shapes.zero_()
        for shape in page.shapes:
            x0, y0, x1, y1 = shape.box
            rows = torch.arange((y0 + 4) // PATCH, (y1 - 5) // PATCH + 1)
            cols = torch.arange((x0 + 4) // PATCH, (x1 - 5) // PATCH + 1)
            patches = (rows[:, None] * _ROW + cols).flatten()
            shapes[patches] = torch.tensor(
                [_SIZES[shape.size], _COLORS[shape.color], _SHAPES[shape.shape]]
            )
            words = [self._ids(word) for word in (shape.color, shape.shape, shape.size)]
            tokens[patches] = torch.tensor(words)


class DenseHeads(nn.Module):
    """Linear readers of tower features (characters, shapes) and of visual tokens (the language
    model's own words).
    """

    def __init__(self, tower_width: int, text_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(tower_width)
        self.chars = nn.Linear(tower_width, 2 * len(CHARS))
        self.ahead = nn.Linear(tower_width, 2 * _AHEAD * len(CHARS))
        self.shapes = nn.Linear(tower_width, len(_SIZES) + len(_COLORS) + len(_SHAPES) + 3)
        self.place = nn.Linear(text_width, ROWS + _ROW)
        self.slots = nn.Parameter(torch.empty(3, text_width, text_width))
        for slot in self.slots:
            nn.init.orthogonal_(slot)
        with torch.no_grad():
            self.slots[0] = torch.eye(text_width)

    def forward(
        self, tower: Tensor, visual: Tensor, table: Tensor, labels: DenseLabels
    ) -> dict[str, Tensor]:
        """Mean losses in nats and shares right, from tower [B, P, T], visual tokens [B, P, D],
        embeddings [V, D].
        """
        features = self.norm(tower)
        out: dict[str, Tensor] = {}
        weight = torch.ones(len(CHARS), device=tower.device)
        weight[0] = 0.15  # most of a page is blank
        logits = self.chars(features).view(-1, len(CHARS))
        target = labels.chars.flatten()
        out["char_loss"] = F.cross_entropy(logits, target, weight)
        ink = target > 0
        out["char_right"] = (logits.detach()[ink].argmax(-1) == target[ink]).float().mean()
        logits = self.ahead(features).view(-1, len(CHARS))
        target = _chars_ahead(labels.chars).flatten()
        out["ahead_loss"] = F.cross_entropy(logits, target, weight, ignore_index=NOTHING)
        ink = target > 0
        out["ahead_right"] = (logits.detach()[ink].argmax(-1) == target[ink]).float().mean()
        self._shape_losses(features, labels, out)
        out["scale_loss"] = (visual.norm(dim=-1) / VISUAL_NORM).log().square().mean()
        visual = F.rms_norm(visual, visual.shape[-1:])  # so that nothing drives their scale up
        parts = self.place(visual).split([ROWS, _ROW], dim=-1)
        patches = torch.arange(PATCHES).expand(len(visual), -1)
        places = (patches // _ROW, patches % _ROW)
        out["place_loss"] = sum(
            (
                F.cross_entropy(part.flatten(0, 1), place.flatten())
                for part, place in zip(parts, places, strict=True)
            ),
            start=visual.new_zeros(()),
        )
        out["place_right"] = (
            torch.stack(
                [part.argmax(-1) == place for part, place in zip(parts, places, strict=True)]
            )
            .all(0)
            .float()
            .mean()
        )
        direct = (visual @ table.T).log_softmax(-1)
        for slot, name in enumerate(("left", "right", "before")):
            chosen = labels.tokens[:, :, slot, 0] != NOTHING
            logits = visual[chosen] @ self.slots[slot].T @ table.T
            forms = labels.tokens[:, :, slot][chosen]
            out[f"{name}_loss"] = -_either(logits.log_softmax(-1), forms).mean()
            if name != "before":
                out[f"direct_{name}_loss"] = -0.5 * _either(direct[chosen], forms).mean()
            best = logits.detach().argmax(-1, keepdim=True)
            out[f"{name}_right"] = (best == forms).any(-1).float().mean()
        return out

    def _shape_losses(self, features: Tensor, labels: DenseLabels, out: dict[str, Tensor]) -> None:
        chosen = labels.shapes[:, :, 0] != NOTHING
        if not chosen.any():
            return
        parts = self.shapes(features[chosen]).split(
            [len(_SIZES) + 1, len(_COLORS) + 1, len(_SHAPES) + 1], dim=-1
        )
        right = torch.ones(int(chosen.sum()), dtype=torch.bool, device=features.device)
        loss = features.new_zeros(())
        for part, target in zip(parts, labels.shapes[chosen].unbind(-1), strict=True):
            loss = loss + F.cross_entropy(part, target)
            right &= part.detach().argmax(-1) == target
        out["shape_loss"] = loss
        covered = labels.shapes[chosen][:, 0] > 0
        out["shape_right"] = right[covered].float().mean()


def _either(log_probs: Tensor, forms: Tensor) -> Tensor:
    """Log-probability of either spelling: [N] from [N, V] and [N, 2]."""
    picked = log_probs.gather(1, forms)
    same = torch.stack([torch.zeros_like(forms[:, 0]), forms[:, 0] == forms[:, 1]], 1).bool()
    return picked.masked_fill(same, float("-inf")).logsumexp(-1)


def _chars_ahead(chars: Tensor) -> Tensor:
    """Characters of the next patches of the row: [B, PATCHES, 2 * _AHEAD], NOTHING past its end.

    Naming them teaches attention to the neighbours, without which no word is read whole.
    """
    rows = chars.view(len(chars), ROWS, _ROW, 2)
    shifted = [F.pad(rows[:, :, step:], (0, 0, 0, step), value=NOTHING) for step in (1, 2)]
    return torch.cat(shifted, dim=-1).view(len(chars), PATCHES, 2 * _AHEAD)


def total_loss(parts: dict[str, Tensor]) -> Tensor:
    """Sum of the dense losses; the hardest and least needed, the token before, counts a quarter."""
    weights = {"before_loss": 0.25}
    losses = [weights.get(name, 1.0) * part for name, part in parts.items() if "_loss" in name]
    return torch.stack(losses).sum()
