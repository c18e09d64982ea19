"""Measures what a verify pass costs on this machine, once, and remembers it on disk.

The curve belongs to a model, device, dtype, attention kernel, thread count and library version;
any of them changing measures anew. A curve is a hint about speed: a damaged or unwritable file is
simply measured again, and no value in it can change a generated token.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import torch

from eyespan.budget import CostCurve
from eyespan.moment import Moment
from eyespan.target.base import SequenceState, Target
from eyespan.target.probe import binary_tree, text_prompt
from eyespan.types import MAX_PACK, Needs, PackedTree, empty_ints

SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 256
ROUNDS = 25
SECONDS = 2.0
"""No new round begins after this long; a model with slow passes is measured once or twice."""
SLOW_MS = 400.0
"""Past this a single pass is too dear to repeat; larger trees are extrapolated."""


def cost_curve(target: Target, needs: Needs) -> CostCurve:
    """The target's curve: from disk when it was measured before, else measured and stored."""
    file = _cache_folder() / f"{_key(target, needs)}.json"
    known = _read(file)
    if known is not None:
        return known
    curve = measure(target, needs)
    _write(file, curve)
    return curve


def measure(target: Target, needs: Needs) -> CostCurve:
    """Time verify passes of several sizes after a text of 256 tokens; takes a second or a few.

    The minimum of the rounds is kept, and of wall and processor time: what disturbs a timing only
    ever adds to it. Sizes take turns, so that a machine slowing down does not bend the curve.
    """
    widths = target.info.passes
    sizes = (*widths, MAX_PACK) if widths else SIZES  # what exceeds compiled passes is dearer
    warm = bool(widths)  # each width is a program of its own: the first pass behind another is slow
    passes = ROUNDS * len(sizes) * (1 + warm)  # each leaves its root in the cache
    length = max(2, min(CONTEXT, target.info.max_context - sizes[-1] - passes))
    state, _ = target.prefill(text_prompt(target, length), Needs())
    trees = {size: binary_tree(target, size) for size in sizes}
    best = dict.fromkeys(sizes, float("inf"))
    ends = perf_counter() + SECONDS
    try:
        for at in range(ROUNDS):
            if at > 0 and perf_counter() > ends:
                break
            for size, tree in trees.items():
                if state.length + size + warm > target.info.max_context:
                    break  # the passes' own roots have filled a short context
                if warm:
                    _time_pass(target, state, tree, needs)
                best[size] = min(best[size], _time_pass(target, state, tree, needs))
                if best[size] > SLOW_MS:
                    break
    finally:
        state.close()
    sizes = tuple(size for size in sizes if best[size] < float("inf"))
    return CostCurve(sizes=sizes, ms=tuple(best[size] for size in sizes), steps=bool(widths))


def _time_pass(target: Target, state: SequenceState, tree: PackedTree, needs: Needs) -> float:
    """Milliseconds of one pass, its rows and the roll-back."""
    began = Moment.now()
    target.forward([state], [tree], needs)
    target.keep(state, empty_ints())
    return began.ms_until(Moment.now(), on_cpu=target.info.device == "cpu")


def _key(target: Target, needs: Needs) -> str:
    parts = (
        repr(target.info),
        repr(needs),
        torch.__version__,
        version("transformers"),
        str(torch.get_num_threads()),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(root)) / "eyespan" / "cost"  # Path's own fails without a home


def _read(file: Path) -> CostCurve | None:
    try:
        data = json.loads(file.read_text())
        curve = CostCurve(
            sizes=tuple(map(int, data["sizes"])),
            ms=tuple(map(float, data["ms"])),
            steps=data.get("steps", False) is True,
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    sane = curve.sizes[:1] == (1,) and len(curve.sizes) == len(curve.ms)
    sane = sane and all(0 < ms < float("inf") for ms in curve.ms)
    return curve if sane and list(curve.sizes) == sorted(set(curve.sizes)) else None


def _write(file: Path, curve: CostCurve) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"sizes": curve.sizes, "ms": curve.ms, "steps": curve.steps}))
        part.replace(file)  # a reader sees the old file or the whole new one
    except OSError:
        pass
