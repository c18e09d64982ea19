"""Acceptance of both ways to verify, on the demo model with its trained drafter:
`python -m benchmarks.rejection [PICTURES]`.

The same held-out pictures and questions, sampled at several temperatures; a tree and a chain each
of one size for both, so that what differs is the rule and how guesses are chosen.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

import eyespan
from eyespan.demo import held_out
from eyespan.generation import Engine

TEMPERATURES = (0.3, 0.7, 1.0, 1.5)
SHAPES: dict[str, dict[str, int]] = {
    "tree of 16": {"nodes": 16, "depth": 4, "width": 4},
    "chain of 4": {"nodes": 4, "depth": 4, "width": 1},
}
TOKENS = 64


def measure(engine: Engine, count: int, temperature: float) -> tuple[float, float]:
    """Tokens a forward, and seconds, over all pictures."""
    tokens = forwards = 0
    began = perf_counter()
    for at, sample in enumerate(held_out(count)):
        options: dict[str, Any] = {"temperature": temperature, "seed": at}
        question = sample.turns[0].question
        answer = engine.generate(question, [sample.image], max_new_tokens=TOKENS, **options)
        tokens += len(answer.token_ids)
        forwards += answer.forwards
    return tokens / forwards, perf_counter() - began


def main() -> None:
    """Print one line for each shape and temperature."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    target = eyespan.load("demo", "none", budget=0).target
    print(f"{count} held-out pictures, answers of at most {TOKENS} tokens, FOVEA on the demo model")
    heads = f"{'walk tau':>8} {'rejection':>9}  {'walk s':>7} {'rejection s':>11}"
    print(f"{'shape':12} {'T':>4}  {heads}")
    for shape, options in SHAPES.items():
        engines = [
            Engine(target, "fovea", budget="fixed", verification=way, checkpoint="demo", **options)
            for way in ("walk", "rejection")
        ]
        for temperature in TEMPERATURES:
            (walk, walked), (rejection, rejected) = (
                measure(engine, count, temperature) for engine in engines
            )
            print(
                f"{shape:12} {temperature:4}  {walk:8.3f} {rejection:9.3f}"
                f"  {walked:7.1f} {rejected:11.1f}"
            )


if __name__ == "__main__":
    main()
