"""One of several processes of a training run; started by torchrun in tests."""

from __future__ import annotations

import sys
from pathlib import Path

from eyespan.target import load_target
from eyespan.train.report import Report
from eyespan.train.strategies import make_strategy
from eyespan.train.trainer import train
from tests.unit.test_train_trainer import artifacts_of, config_of, trainee_of


def main(name: str, folder: Path, out: Path) -> None:
    """Four of six updates with a strategy."""
    target = load_target("demo")
    strategy = make_strategy(name, precision="float32", device="cpu")
    train(
        config_of(out, folder),
        trainee_of(target, folder, noise=0.1),
        artifacts_of(folder, target),
        strategy,
        Report(silent=True),
        stop_after=4,
    )
    strategy.leave()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
