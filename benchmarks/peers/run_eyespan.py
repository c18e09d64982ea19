"""Our methods as `runs/text_smollm2.toml` lists them, and transformers' own prompt look-up.

python -m benchmarks.peers.run_eyespan MODEL_DIR PROMPTS OUT [LIMIT]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.timed import Answer, Method, Request, run, stock
from eyespan.bench.settings import load_settings
from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.target import load_target
from eyespan.target.base import Prompt

LOOKUP = 10
"""Tokens that transformers' prompt look-up proposes, as its documentation advises."""
RUN = Path(__file__).parents[2] / "runs" / "text_smollm2.toml"


def method(
    target: Any, prompt_of: Callable[[Request], Prompt], drafter: str, budget: Any, **options: Any
) -> Method:
    """One drafter on our loop; shared memories live from prompt to prompt."""
    made = make_drafter(drafter, vocab_size=target.info.vocab_size, **options)
    engine = Engine(target, made, budget=budget)

    def write(request: Request, limit: int) -> Answer:
        found = engine.generate(prompt_of(request), max_new_tokens=limit)
        return Answer(list(found.token_ids), found.forwards)

    return write


def ours(target: Any, prompt_of: Callable[[Request], Prompt]) -> dict[str, Method]:
    """Plain decoding in our loop, and every method of the run."""
    methods = {"eyespan plain": method(target, prompt_of, "none", 0)}
    for one in load_settings(RUN).methods:
        name = f"eyespan {one.label}"
        methods[name] = method(target, prompt_of, one.drafter, one.budget, **one.options)
    return methods


def main(model: str, prompts: str, out: str, limit: str = "96") -> None:
    """Stock `generate()` first, then transformers' prompt look-up and ours."""
    target = load_target(model, dtype="float32")
    methods: dict[str, Method] = {
        "stock": stock(target.model),
        "transformers prompt lookup": stock(target.model, prompt_lookup_num_tokens=LOOKUP),
        **ours(target, lambda request: target.prompt_from_ids(request["ids"])),
    }
    run(methods, Path(prompts), Path(out), limit=int(limit), seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
