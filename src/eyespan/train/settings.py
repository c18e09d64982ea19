"""The TOML of `eyespan train run`, typed; docs/train.md explains every key."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from eyespan.errors import ConfigError
from eyespan.train.schedule import WarmUp
from eyespan.train.strategies import OptimizerSettings, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """What is trained.

    Attributes:
        method: a trained drafter's name: fovea, eagle3, msd, dream or vispec.
        options: fields of its config; the others follow from the target.
        start: folder of a trained drafter of the same shape to start from.
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """What it learns from.

    Attributes:
        artifacts: folder of a capture.
        model: the captured target, for its embedding table and head; None takes the name that the
            capture recorded.
        validation: sequences kept apart.
    """

    artifacts: Path
    model: str | None = None
    validation: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """For how long.

    Attributes:
        epochs: passes over the data.
        batch: sequences an update, over all processes and accumulation.
        warmup: updates until the peak rate.
        shape: of the warm-up.
        seed: of order, initial weights and noise.
    """

    epochs: int = 12
    batch: int = 16
    warmup: int = 0
    shape: WarmUp = "linear"
    seed: int = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Where and how.

    Attributes:
        out: folder of checkpoints and log.
        micro_batch: sequences in one forward of one process.
        strategy: "auto" is fsdp2 under torchrun with several processes, else single.
        precision: of the forward.
        device: None is the GPU if there is one.
        evaluate_every: updates between evaluations; 0 evaluates after every epoch.
        replay: validation sequences whose answers are replayed for the accept length.
        save_dtype: of the drafters that are written.
    """

    out: Path
    micro_batch: int = 2
    strategy: Literal["auto", "single", "ddp", "fsdp2", "deepspeed"] = "auto"
    precision: Precision = "float32"
    device: str | None = None
    evaluate_every: int = 0
    replay: int = 16
    save_dtype: Literal["float32", "float16"] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run; the tables of the TOML file."""

    drafter: DrafterSettings
    data: DataSettings
    run: RunSettings
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        lowest = {
            "schedule.epochs": (self.schedule.epochs, 1),
            "schedule.batch": (self.schedule.batch, 1),
            "schedule.warmup": (self.schedule.warmup, 0),
            "run.micro_batch": (self.run.micro_batch, 1),
            "run.evaluate_every": (self.run.evaluate_every, 0),
            "run.replay": (self.run.replay, 0),
            "data.validation": (self.data.validation, 0),
        }
        for name, (value, least) in lowest.items():
            if value < least:
                raise _wrong(name, value, f"at least {least}")
        if not self.optimizer.lr > 0:
            raise _wrong("optimizer.lr", self.optimizer.lr, "more than 0")
        if not self.optimizer.clip > 0:
            raise _wrong("optimizer.clip", self.optimizer.clip, "more than 0")

    def identity(self) -> dict[str, Any]:
        """What makes a run this run, JSON-ready: a resumed run must agree in all of it."""
        return {
            "drafter": asdict(self.drafter),
            "validation": self.data.validation,
            "optimizer": asdict(self.optimizer),
            "schedule": asdict(self.schedule),
        }


def _wrong(name: str, value: object, needed: str) -> ConfigError:
    return ConfigError(
        f"config key '{name}'",
        found=str(value),
        needed=f"{needed} is needed",
        todo="See docs/train.md.",
    )
