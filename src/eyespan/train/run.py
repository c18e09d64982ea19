"""From a TOML file to a trained drafter: load what is borrowed from the target, build the head, and
hand both to the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from eyespan.drafters import DRAFTERS
from eyespan.drafters._checkpoint import write_head
from eyespan.drafters._head import DraftHead
from eyespan.drafters._trained import Trained
from eyespan.errors import ConfigError, InputError, unknown_name
from eyespan.target import HuggingFaceTarget, load_target
from eyespan.train.data import Artifacts
from eyespan.train.report import Report
from eyespan.train.settings import TrainConfig
from eyespan.train.shards import Entry, read_about
from eyespan.train.simulate import AcceptLength, accept_length, answer_spans
from eyespan.train.strategies import make_strategy
from eyespan.train.trainer import Outcome, Trainee, train

_SHOWN = 90
"""Characters of a sample's answer shown before training."""


def method_of(name: str) -> type[Trained[Any, Any]]:
    """The drafter class of a trained method.

    Raises:
        ConfigError: unknown, or a method without weights.
    """
    known = {}
    for each, place in DRAFTERS.items():
        module, _, attribute = place.partition(":")
        kind = getattr(import_module(module), attribute)
        if isinstance(kind, type) and issubclass(kind, Trained):
            known[each] = kind
    if name not in known:
        raise unknown_name("trained drafter", name, known)
    return known[name]


def run_training(config: TrainConfig, report: Report | None = None) -> Outcome:
    """Train a drafter as a file says; `RANK`, `WORLD_SIZE` and `LOCAL_RANK` as torchrun sets them.

    Args:
        config: of the run.
        report: where to say what happens; ranks beside the first stay silent.

    Raises:
        EyespanError: the data, the target or the schedule do not fit.
    """
    kind = method_of(config.drafter.method)
    about = read_about(config.data.artifacts)
    strategy = make_strategy(
        config.run.strategy, precision=config.run.precision, device=config.run.device
    )
    report = report or Report(silent=strategy.rank > 0)
    model = config.data.model or str(about["target"]["name"])
    target = load_target(model, dtype=about["target_dtype"], device=str(strategy.device))
    artifacts = Artifacts(config.data.artifacts, target.weights())
    trainee = build_trainee(config, kind, target, artifacts)
    target.model = None  # its other layers are not needed any more
    outcome = train(config, trainee, artifacts, strategy, report)
    strategy.leave()
    return outcome


def build_trainee(
    config: TrainConfig,
    kind: type[Trained[Any, Any]],
    target: HuggingFaceTarget,
    artifacts: Artifacts,
) -> Trainee:
    """The head with its initial weights, and what the trainer does with it.

    Args:
        config: of the run.
        kind: of drafter.
        target: that was captured.
        artifacts: of it.

    Raises:
        ConfigError: options that the method does not have, or a start of another shape.
        InputError: a capture without the states that the head reads.
    """
    weights = target.weights()
    shape = kind.config_type.for_target(weights.shape, **config.drafter.options)
    torch.manual_seed(config.schedule.seed)
    head, twin = kind.head_type(shape), kind.head_type(shape)
    _check_reads(head, artifacts)
    head.attach(weights.embedding, weights.lm_head)
    if config.drafter.start is None:
        head.prepare(artifacts.token_counts())
    else:
        _start_from(head, kind, weights.shape.vocab_size, config.drafter.start)
    media_ids, decode = target.info.media_ids, target.decode

    def save(folder: Path, trained: DraftHead, training: Mapping[str, Any]) -> None:
        write_head(
            folder, trained, weights.record(), dtype=config.run.save_dtype, training=training
        )

    def measure(folder: Path, entries: Sequence[Entry]) -> AcceptLength:
        drafter = kind(vocab_size=weights.shape.vocab_size, checkpoint=str(folder))
        drafter.attach(weights)
        sequences = [artifacts.sequence(entry) for entry in entries]
        return accept_length(drafter, sequences, media_ids=media_ids)

    def show(entry: Entry) -> str:
        kept = artifacts.sequence(entry)
        first, last = answer_spans(kept)[0]
        text = decode(kept["input_ids"][first : last + 1].numpy())
        return f"{entry.supervised} of {entry.length} tokens taught: {text!r:.{_SHOWN}}"

    return Trainee(head=head, twin=twin, save=save, measure=measure, show=show)


def _check_reads(head: DraftHead, artifacts: Artifacts) -> None:
    """Refuse a capture that lacks what the head will be fed with in decoding."""
    needed = sorted(layer for layer in head.reads if layer > 0)
    captured = artifacts.about["layers"]
    if not set(needed) <= set(captured):
        raise InputError(
            f"training '{head.method}' on '{artifacts.folder}'",
            found=f"states entering layers {captured}",
            needed=f"those entering layers {needed} are needed",
            todo="Capture again with store.layers.",
        )


def _start_from(head: DraftHead, kind: type[Trained[Any, Any]], size: int, start: str) -> None:
    saved = kind(vocab_size=size, checkpoint=start).head.state_dict()
    own = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    if {name: tuple(value.shape) for name, value in saved.items()} != own:
        raise ConfigError(
            f"drafter.start = '{start}'",
            found="weights of another shape",
            needed="the same method with the same options is needed",
            todo="Change drafter.options, or leave start out.",
        )
    head.load_state_dict(saved)
