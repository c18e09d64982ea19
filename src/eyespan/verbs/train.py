"""`eyespan train`: capture what a target says, train a drafter, describe and convert heads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from eyespan.errors import ConfigError
from eyespan.verbs import console

app = typer.Typer(
    help="Train a drafter: capture, run, describe, convert, export (docs/train.md).",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file.")]
OverrideArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Override keys of the file.")
]


@app.command(epilog="Example:\n\neyespan train capture runs/capture_demo.toml data.count=50")
def capture(config: ConfigArgument, overrides: OverrideArgument = None) -> None:
    """Let the frozen target answer a data set, and keep everything a drafter learns from.

    Goes on where it was interrupted. Start it once for each RANK of WORLD_SIZE to share the work.
    """
    from eyespan.train.capture import CaptureConfig
    from eyespan.train.capture import capture as capture_now
    from eyespan.train.config import load_config
    from eyespan.train.report import Report
    from eyespan.verbs.options import Setup

    settings = load_config(CaptureConfig, config, overrides or ())
    asked = settings.target
    target = Setup(model=asked.model, dtype=asked.dtype, device=asked.device).load_target()
    capture_now(settings, target, Report(silent=os.environ.get("RANK", "0") != "0"))


@app.command(
    epilog="Examples:\n\neyespan train run runs/train_fovea_demo.toml\n\n"
    "torchrun --nproc-per-node 2 -m eyespan train run FILE run.precision=bfloat16"
)
def run(config: ConfigArgument, overrides: OverrideArgument = None) -> None:
    """Train a drafter on captured states; goes on where it was interrupted."""
    from eyespan.train.config import load_config
    from eyespan.train.run import run_training
    from eyespan.train.settings import TrainConfig

    settings = load_config(TrainConfig, config, overrides or ())
    outcome = run_training(settings)
    if os.environ.get("RANK", "0") == "0":
        length = outcome.accept_length
        spoken = "" if length is None else f", accept length {length:.2f}"
        said = f"{settings.run.out / 'best'}: {outcome.updates} updates{spoken}"
        console.answers().print(said, soft_wrap=True)


@app.command(epilog="Example:\n\neyespan train describe --method fovea")
def describe(
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="A trained drafter.")
    ] = "fovea",
) -> None:
    """Count a head's trainable parameters on the FOVEA paper's three backbones."""
    from eyespan.train.describe import sizes, undetermined

    found = sizes(method)
    table = Table("billions", box=None, pad_edge=False)
    for size in found:
        table.add_column(size.backbone, justify="right")
    for name in dict.fromkeys(name for size in found for name in size.parts):
        table.add_row(name, *(f"{size.parts.get(name, 0) / 1e9:.3f}" for size in found))
    for name, said in (
        ("published", ["-" if s.published is None else f"{s.published / 1e9:.3f}" for s in found]),
        ("off", ["-" if size.off is None else f"{size.off:+.0%}" for size in found]),
    ):
        table.add_row(name, *said)
    console.answers().print(table)
    if words := undetermined(found):
        console.answers().print(words, style="dim", soft_wrap=True)


@app.command(
    epilog="Example:\n\neyespan train convert DOWNLOADED --target MODEL --to drafters/mine"
)
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of a public checkpoint.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write.")],
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="MODEL", help="The model it drafts for.")
    ],
    read_layers: Annotated[
        str | None,
        typer.Option(
            "--read-layers",
            metavar="A,B,C",
            help="EAGLE-3: layers whose entering states it reads, where its config is unclear.",
        ),
    ] = None,
) -> None:
    """Read a published EAGLE-3, speculators, ViSpec, MSD or DREAM head and write it as ours.

    Nothing is downloaded and no pickle is executed: *.bin files are read as tensors only.
    """
    from eyespan.train.checkpoints import convert as convert_now
    from eyespan.verbs.options import Setup

    layers = _numbers(read_layers)
    weights = Setup(model=target).load_target().weights()
    said = convert_now(source, to, weights, read_layers=layers)
    console.answers().print(said, soft_wrap=True)


@app.command(epilog="Example:\n\neyespan train export drafters/mine --layout eagle3 --to served")
def export(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A trained EAGLE-3 drafter.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write.")],
    layout: Annotated[
        str, typer.Option("--layout", metavar="LAYOUT", help="eagle3 or speculators.")
    ] = "eagle3",
) -> None:
    """Write an EAGLE-3 drafter in a layout that vLLM, SGLang and speculators read."""
    from eyespan.train.checkpoints import export as export_now

    console.answers().print(export_now(source, to, layout), soft_wrap=True)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """`A,B,C` as numbers."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--read-layers {text}",
            found="no numbers",
            needed="layer indices such as 2,16,29 are needed",
            todo="Leave it out for the usual ones.",
        ) from None
