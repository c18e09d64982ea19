"""A run on disk: DIR/last to go on from, DIR/best to serve, DIR/log.jsonl to look at.

A checkpoint is an artifact (safetensors and a manifest, whole or not there). Everything random in
training follows from the seed and the number of the update, so those two are its random state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from eyespan.artifacts import MANIFEST, read_artifact, swap_in, write_artifact
from eyespan.errors import InputError, unwritable

KIND: Final = "training state"


def write_state(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a checkpoint to go on from.

    Args:
        folder: replaced when it is whole.
        tensors: what a strategy saved.
        about: {"step", "best", "config", ...}, JSON-ready.

    Raises:
        OutputError: the folder cannot be written.
    """
    arrays = {name: value.numpy() for name, value in tensors.items()}
    write_artifact(folder, kind=KIND, about=about, tensors=arrays)


def read_state(folder: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]] | None:
    """A checkpoint's tensors and facts; None when there is none.

    Raises:
        InputError: damaged, or another kind of artifact.
    """
    if not (folder / MANIFEST).exists():
        return None
    found = read_artifact(folder, kind=KIND)
    return {name: torch.from_numpy(value) for name, value in found.tensors.items()}, found.about


def check_same_run(
    before: Mapping[str, Any], config: Mapping[str, Any], target: Mapping[str, Any]
) -> None:
    """A run may go on with other processes, precision or folders, but not as another run.

    Args:
        before: what the checkpoint recorded.
        config: `TrainConfig.identity()`.
        target: record of the target that was captured.

    Raises:
        InputError: the checkpoint is of another drafter, data or schedule.
    """
    now = json.loads(json.dumps({**config, "target": target}))
    for key, value in now.items():
        if before.get(key) != value:
            raise InputError(
                "resuming a run",
                found=f"{key} is {value!r}, in the checkpoint {before.get(key)!r}",
                needed="the same drafter, target and schedule are needed",
                todo="Change run.out to begin another run, or put the setting back.",
            )


def trim_log(file: Path, update: int) -> None:
    """Drop what a run logged after its last checkpoint: it will say it again.

    Args:
        file: made, with its folder, when missing.
        update: of the checkpoint; 0 drops everything.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        kept = [line for line in lines if _update_of(line) <= update]
        swap_in(file, "".join(f"{line}\n" for line in kept).encode())
    except OSError as error:
        raise unwritable(f"training log {file}", error) from error


def _update_of(line: str) -> float:
    """Number of the update that a line is about; a half-written line is about none."""
    try:
        return float(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def evaluations(file: Path) -> list[dict[str, Any]]:
    """The evaluations that a log holds, in order."""
    lines = map(json.loads, file.read_text("utf-8").splitlines())
    return [line for line in lines if "validation" in line]


def append_log(file: Path, record: Mapping[str, Any]) -> None:
    """One JSON line more.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dict(record)) + "\n")
    except OSError as error:
        raise unwritable(f"training log {file}", error) from error
