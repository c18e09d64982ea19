"""Our drafters, and transformers' own prompt look-up.

python -m benchmarks.peers.run_eyespan MODEL_DIR PROMPTS OUT [LIMIT]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.timed import Answer, Method, run, stock
from eyespan.generation import Engine
from eyespan.target import load_target

DRAFTERS = (
    "recap",
    "prompt_lookup",
    "token_recycling",
    "sam",
    "suffix",
    "stand",
    "lookahead",
)


def method(target: Any, drafter: str, budget: Any) -> Method:
    """One drafter through the drop-in; shared memories live from prompt to prompt."""
    engine = Engine(target, drafter, budget=budget)

    def write(ids: Sequence[int], limit: int) -> Answer:
        found = engine.generate(target.prompt_from_ids(list(ids)), max_new_tokens=limit)
        return Answer(list(found.token_ids), found.forwards)

    return write


def main(model: str, prompts: str, out: str, limit: str = "96") -> None:
    """Stock `generate()` first, then plain decoding in our loop and every drafter."""
    target = load_target(model, dtype="float32")
    methods: dict[str, Method] = {
        "stock": stock(target.model),
        "transformers prompt lookup": stock(target.model, prompt_lookup_num_tokens=10),
        "eyespan plain": method(target, "none", 0),
    }
    for name in DRAFTERS:
        methods[f"eyespan {name}"] = method(target, name, "auto")
    methods["eyespan recap fixed"] = method(target, "recap", "fixed")
    run(methods, Path(prompts), Path(out), limit=int(limit), seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
