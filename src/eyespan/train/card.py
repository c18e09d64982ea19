"""The model card of a trained drafter: a page beside its weights that says whose it is, what it
learned from and how well, so that nobody has to ask whoever trained it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyespan.artifacts import swap_in
from eyespan.errors import unwritable
from eyespan.train.settings import TrainConfig

CARD = "README.md"
_BATCHED = (
    "{batch} sequences an update, AdamW {lr:g}, {warmup} updates of {shape} warm-up, seed {seed}"
)


def write_card(
    folder: Path,
    config: TrainConfig,
    capture: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
    *,
    parameters: int,
    sequences: tuple[int, int],
) -> None:
    """Write the card of a head.

    Args:
        folder: of its weights.
        config: of the run.
        capture: facts of what it learned from, as the manifest has them.
        evaluations: so far, as the log has them.
        parameters: trainable ones.
        sequences: learned from, and kept apart.

    Raises:
        OutputError: it cannot be written.
    """
    text = "\n".join(_lines(config, capture, evaluations, parameters, sequences)) + "\n"
    try:
        swap_in(folder / CARD, text.encode())
    except OSError as error:
        raise unwritable(f"model card in '{folder}'", error) from error


def _lines(
    config: TrainConfig,
    capture: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
    parameters: int,
    sequences: tuple[int, int],
) -> list[str]:
    target, schedule = capture["target"], config.schedule
    revision = f", revision {capture['revision']}" if capture.get("revision") else ""
    said = "the target itself" if capture["answers"]["regenerate"] else "the data set"
    options = json.dumps(config.drafter.options) if config.drafter.options else "as published"
    shape = f"{target['layers']} layers of {target['hidden_size']}"
    learned, apart = sequences
    rows = {
        "target": f"{target['name']}{revision}, {shape}",
        "options": options,
        "parameters": f"{parameters:,}",
        "data": f"{capture['data']['source']}, answered by {said}: {learned:,} sequences to learn "
        f"from, {apart:,} kept apart",
        "schedule": f"{schedule.epochs} epochs, "
        + _BATCHED.format(
            batch=schedule.batch,
            lr=config.optimizer.lr,
            warmup=schedule.warmup,
            shape=schedule.shape,
            seed=schedule.seed,
        ),
    }
    return [
        f"# {config.drafter.method} for {target['name']}",
        "",
        "A trained drafter of eyespan. It guesses what this target would say and is refused by any "
        "other; a wrong guess of it costs time, never a word.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        "On the sequences kept apart (the accept length is replayed, the target's own token "
        "included; the weights here are those of its highest value, or else of the lowest loss):",
        "",
        "| updates | loss | accuracy at depth 1, 2, ... | accept length |",
        "|---:|---:|---|---:|",
        *map(_evaluated, evaluations),
    ]


def _evaluated(line: Mapping[str, Any]) -> str:
    found = line["validation"]
    loss = f"{found['loss']:.3f}" if "loss" in found else "-"
    accuracy = " ".join(f"{value:.2f}" for value in found.get("accuracy", ())) or "-"
    length = f"{line['accept_length']:.2f}" if "accept_length" in line else "-"
    return f"| {line['update']:,} | {loss} | {accuracy} | {length} |"
