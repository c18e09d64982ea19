"""`eyespan doctor`: what is installed, what this machine is, and what a model can do here."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from eyespan import __version__
from eyespan.drafters import DRAFTERS
from eyespan.errors import UnsupportedTarget
from eyespan.verbs import console, options

if TYPE_CHECKING:
    from eyespan.target import HuggingFaceTarget

EPILOG = """
Examples:

eyespan doctor

eyespan doctor demo

eyespan doctor ./my-model --dtype bfloat16
"""


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="'demo', a folder or a Hugging Face id."),
    ] = None,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    compiled: options.CompiledOption = False,
) -> None:
    """Say what is installed and, for a MODEL, what it can do here and why not.

    Exit codes: 0 all well, 1 the model cannot be verified in trees (it says why), 2 bad input.
    """
    wanted = options.setup(
        model=model or "demo",
        drafter="recap",
        budget="auto",
        dtype=dtype,
        device=device,
        option=None,
    )
    out = console.answers()
    out.print(_facts(_machine()))
    if model is not None and not _examine(wanted, compiled, out):
        raise typer.Exit(1)


def _facts(pairs: dict[str, str]) -> Table:
    """Names and values, wrapped to the terminal."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=_NAMES)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, value)
    return table


_NAMES = len("dtype, device")
"""Width of the longest name, so that all blocks line up."""


def _machine() -> dict[str, str]:
    import torch

    devices = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return {
        "eyespan": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "system": f"{platform.system()} {platform.machine()}",
        "GPUs": ", ".join(devices) or "none",
        "CPU threads": str(torch.get_num_threads()),
        "core": _core(),
        "drafters": ", ".join(sorted(DRAFTERS)),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _core() -> str:
    """Whether the compiled core loads, from where, and what it was built for."""
    try:
        from eyespan import _core
    except ImportError as error:
        return f"does not load ({error}); install eyespan again"
    return f"{_core.__file__}, packs of up to {_core.MAX_PACK} nodes"


def _examine(wanted: options.Setup, compiled: bool, out: Console) -> bool:
    """Load a model, try a tree on it and time it; whether speculation works."""
    from eyespan.cost import cost_curve
    from eyespan.target import self_test
    from eyespan.types import Needs

    try:
        target = wanted.load_target()
        out.print(_facts({"": "", **_abilities(target)}))
        self_test(target)
    except UnsupportedTarget as reason:
        out.print(_facts({"verification": "refused", "speculation": f"cannot: {reason}"}))
        return False
    if compiled:
        out.print(_facts({"compiled": _compile(target)}))
    with console.waiting("timing forwards"):
        curve = cost_curve(target, Needs(rows=True))
    passes = "  ".join(f"{size}: {ms:.1f}" for size, ms in zip(curve.sizes, curve.ms, strict=True))
    out.print(
        _facts(
            {
                "self-test": "passed: a tree's logits are those of single steps",
                "forward cost": f"{passes}  (packed nodes: milliseconds)",
                "speculation": "works, losslessly in float32",
            }
        )
    )
    return True


def _compile(target: HuggingFaceTarget) -> str:
    """Compile passes; which widths there are, or why none."""
    from eyespan.types import MAX_PACK

    try:
        target.compile_passes()
        target.ready(MAX_PACK)
    except UnsupportedTarget as reason:
        return f"refused: {reason}"
    return f"passes of {', '.join(map(str, target.info.passes))}; packs are filled up to the next"


def _videos(target: HuggingFaceTarget) -> str:
    """How videos get in."""
    trouble, family = target.video_trouble, target.family
    if trouble is None:
        return "files, folders and lists of frames" + ", or tensors" * bool(family.video_inputs)
    return f"tensors alone: {trouble}" if family.video_inputs else f"none: {trouble}"


def _abilities(target: HuggingFaceTarget) -> dict[str, str]:
    """What the adapter found out about a model."""
    info, family = target.info, target.family
    passes = {
        "trees": "a tree in one pass",
        "chains": "a chain in one pass; what a rejection undid rides along in the next",
    }
    drafts = {
        "trees": "trees",
        "chains": "chains: its recurrent states only move forward",
    }
    masks = {
        "explicit": "one explicit tree mask for all layers",
        "hook": "joined with the model's own mask rule, layer by layer",
        "own": "the model's own, since a chain is ordinary text",
    }
    return {
        "model": info.name,
        "family": f"{family.name}: {family.title}",
        "decoder": f"{info.layers} layers, width {info.hidden_size}, {info.vocab_size} ids",
        "dtype, device": f"{info.dtype}, {info.device}",
        "attention": info.attention,
        "drafts": drafts[info.drafts],
        "verification": passes[info.drafts],
        "batches": "all rows in one pass" if info.one_pass else "row by row, same answers",
        "tree masks": masks[info.masks],
        "cache": f"{target.remembers}; keeps accepted nodes and drops the rest, checked on a "
        "filled cache",
        "static cache": "taken where a prompt brings one; generate() with one runs stock's own loop"
        if target.takes_static
        else f"not taken: its layers remember {target.remembers}",
        "context": f"{info.max_context} tokens",
        "takes": ", ".join(["text"] + ["pictures"] * family.sees + ["videos"] * family.watches),
        "videos": _videos(target),
        "positions": "time, height and width, asked from the model for each request"
        if family.positions == "mrope"
        else "one by one",
        "media ids": ", ".join(map(str, sorted(info.media_ids))) or "none",
        "end ids": ", ".join(map(str, sorted(info.eos_ids))) or "none",
    }
