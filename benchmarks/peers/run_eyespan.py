"""Our methods as `runs/text_smollm2.toml` lists them, and transformers' own prompt look-up.

python -m benchmarks.peers.run_eyespan MODEL_DIR PROMPTS OUT [LIMIT]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.timed import Answer, Method, run, stock
from eyespan.bench.settings import load_settings
from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.target import load_target

RUN = Path(__file__).parents[2] / "runs" / "text_smollm2.toml"


def method(target: Any, drafter: str, budget: Any, **options: Any) -> Method:
    """One drafter on our loop; shared memories live from prompt to prompt."""
    made = make_drafter(drafter, vocab_size=target.info.vocab_size, **options)
    engine = Engine(target, made, budget=budget)

    def write(ids: Sequence[int], limit: int) -> Answer:
        found = engine.generate(target.prompt_from_ids(list(ids)), max_new_tokens=limit)
        return Answer(list(found.token_ids), found.forwards)

    return write


def main(model: str, prompts: str, out: str, limit: str = "96") -> None:
    """Stock `generate()` first, then plain decoding in our loop and every method of the run."""
    settings = load_settings(RUN)
    target = load_target(model, dtype="float32")
    methods: dict[str, Method] = {
        "stock": stock(target.model),
        "transformers prompt lookup": stock(target.model, prompt_lookup_num_tokens=10),
        "eyespan plain": method(target, "none", 0),
    }
    for one in settings.methods:
        name = f"eyespan {one.label}"
        methods[name] = method(target, one.drafter, one.budget, **one.options)
    run(methods, Path(prompts), Path(out), limit=int(limit), seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
