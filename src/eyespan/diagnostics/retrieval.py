"""Where FOVEA's retrieval looks in the picture as an answer goes on (FOVEA figure 5).

At every draft state of an answer the root asks the visual memory; the entries that it takes and
their weights are the map. States are the rounds of decoding: a new one begins behind what the tree
before it got right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from eyespan.diagnostics.matched import matched_length
from eyespan.diagnostics.questions import Question
from eyespan.diagnostics.readings import Reading, read
from eyespan.drafters.fovea import Fovea
from eyespan.errors import ConfigError, InputError, UnsupportedTarget, unwritable
from eyespan.target import HuggingFaceTarget
from eyespan.types import Floats

COLUMNS = 4
"""Maps side by side."""
COLOR = (0.82, 0.22, 0.05)
MOST_INK = 0.7
"""The strongest entry is covered so much; others in proportion to their weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One draft state.

    Attributes:
        step: tokens of the answer before the drafted ones, the root included.
        before, drafted: text of the answer's tokens before, and of the next ones that the draft
            got right, with the target's own.
        weights: [rows, columns] of the entries over the picture; they sum to 1.
    """

    step: int
    before: str
    drafted: str
    weights: Floats

    @property
    def entries(self) -> int:
        """How many are taken."""
        return int(np.count_nonzero(self.weights))


def trajectory(
    target: HuggingFaceTarget, drafter: Fovea, query: Question, *, max_new_tokens: int
) -> list[Look]:
    """The maps of an answer about one picture.

    Args:
        target: the model.
        drafter: FOVEA, bound to it.
        query: a question about one picture.
        max_new_tokens: longest answer.

    Raises:
        ConfigError: a head without corrections.
        InputError: not one picture, or an answer without a draft state.
        UnsupportedTarget: visual tokens that are no grid over the picture.
    """
    if not drafter.config.corrects:
        raise ConfigError(
            "retrieval maps",
            found=f"a head with correction {drafter.config.correction} and interface "
            f"'{drafter.config.interface}'",
            needed="a head whose nodes ask the visual memory is needed",
            todo="Use another checkpoint, or leave the interface at 'correction'.",
        )
    if len(query.pictures) != 1:
        raise InputError(
            "retrieval maps",
            found=f"{len(query.pictures)} pictures",
            needed="one is needed to draw on",
            todo="Ask about one picture.",
        )
    one = read(target, query, drafter.needs, max_new_tokens=max_new_tokens)
    if one is None:
        raise InputError(
            "retrieval maps",
            found="an answer of one token",
            needed="a longer one is needed: drafting begins behind the first token",
            todo="Ask for more.",
        )
    rows, columns = grid_of(target, one)
    found = []
    end = one.prompt + 1
    while end < len(one.ids):
        session, prefix = one.open(drafter, end)
        tree = session.propose(prefix, drafter.fixed_budget)
        right = matched_length(tree, one.ids[end:].tolist())
        found.append(
            Look(
                step=end - one.prompt,
                before=target.decode(one.ids[one.prompt : end]),
                drafted=target.decode(one.ids[end : end + right + 1]),
                weights=_weights(drafter, session, len(one.pictures)).reshape(rows, columns),
            )
        )
        end += right + 1
    return found


@torch.no_grad()
def _weights(drafter: Fovea, session: object, count: int) -> Floats:
    """[count] the root's weights of all visual tokens."""
    context = session.context  # type: ignore[attr-defined]
    taken = drafter.head.attention(context.root, 0, context.condition, drafter.generator([0]))
    weights: Floats = taken[0, 0].float().cpu().numpy()
    if len(weights) != count:
        raise ConfigError(
            "retrieval maps",
            found=f"a memory of {len(weights)} entries for {count} visual tokens",
            needed="an entry for each is needed",
            todo="Raise memory_limit.",
        )
    return weights


def grid_of(target: HuggingFaceTarget, one: Reading) -> tuple[int, int]:
    """Rows and columns that the visual tokens of one picture are over it.

    Raises:
        UnsupportedTarget: tiles, thumbnails or separators lie between them.
    """
    count = len(one.pictures)
    grid = one.media.get("image_grid_thw")
    if grid is not None:
        _, high, wide = grid.reshape(-1, 3)[0].tolist()
        merge = max(1, round((high * wide / count) ** 0.5))
        rows, columns = high // merge, wide // merge
    else:
        rows = columns = round(count**0.5)
        pixels = one.media.get("pixel_values")
        if pixels is not None and pixels.ndim > 4:  # several tiles
            rows = columns = 0
    if rows * columns != count:
        raise UnsupportedTarget(
            f"retrieval maps over pictures of '{target.info.name}'",
            found=f"{count} visual tokens that are not one grid",
            needed="one grid over the picture is needed to draw on it",
            todo="Use a model that does not cut pictures into tiles.",
        )
    return rows, columns


def even(found: Sequence[Look], most: int) -> list[Look]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if len(found) <= most:
        return list(found)
    return [found[at] for at in np.linspace(0, len(found) - 1, most).round().astype(int)]


def draw(picture: Image.Image, shown: Sequence[Look], folder: Path) -> tuple[Path, Path]:
    """Draw maps over the picture, one panel a state, as PNG and SVG.

    Args:
        picture: what the model saw.
        shown: states, at least one.
        folder: where `retrieval.png` and `retrieval.svg` go.

    Raises:
        ConfigError: matplotlib is not installed.
        OutputError: the folder cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "drawing retrieval maps",
            found="matplotlib is not installed",
            needed="it draws them",
            todo="pip install 'eyespan[bench]'",
        ) from error
    wide = min(COLUMNS, len(shown))
    high = -(-len(shown) // wide)
    figure = Figure(figsize=(2.6 * wide, 3.1 * high), layout="constrained")
    grey = np.asarray(picture.convert("L"))
    for axes, look in zip(figure.subplots(high, wide, squeeze=False).flat, shown, strict=False):
        axes.imshow(grey, cmap="gray", vmin=-120, vmax=255)
        ink = np.empty((*look.weights.shape, 4))
        ink[..., :3] = COLOR
        ink[..., 3] = MOST_INK * look.weights / look.weights.max()
        axes.imshow(ink, extent=(-0.5, picture.width - 0.5, picture.height - 0.5, -0.5))
        words = look.drafted.replace("\n", " ")
        axes.set_title(
            f"t = {look.step}, {look.entries} entries\n“{words:.34}”", fontsize=8, parse_math=False
        )
    for axes in figure.axes:
        axes.set_axis_off()
    files = (folder / "retrieval.png", folder / "retrieval.svg")
    try:
        for file in files:
            figure.savefig(file, dpi=160)
    except OSError as error:
        raise unwritable(f"figure in {folder}", error) from error
    return files
