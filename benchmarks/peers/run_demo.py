"""Our methods and transformers' own prompt look-up on the demo model and its held-out pictures.

    python -m benchmarks.peers.run_demo PROMPTS PIXELS OUT [PICTURES]

Prompts and prepared pictures are written for the other libraries (`pictures.py`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from benchmarks.peers.run_eyespan import LOOKUP, ours
from benchmarks.peers.timed import Answer, Method, Request, run
from eyespan.bench.held_out import MAX_NEW_TOKENS, asks
from eyespan.bench.stock import stock_ids
from eyespan.target import load_target
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Prompt


def stock(target: HuggingFaceTarget, known: dict[str, Prompt], **options: int) -> Method:
    """Greedy `model.generate()` on pictures and words, with further options of it."""

    def write(request: Request, limit: int) -> Answer:
        return Answer(list(stock_ids(target, known[request["id"]], limit, **options)))

    return write


def main(prompts: str, pixels: str, out: str, pictures: str = "30") -> None:
    """Write prompts and pixels, then the answers: stock `generate()` first."""
    target = load_target("demo", dtype="float32")
    known: dict[str, Prompt] = {}
    lines = []
    for ask in asks(int(pictures)):
        prompt = known[ask.name] = target.prepare(ask.messages, [ask.image])
        ids = prompt.input_ids[0].tolist()
        lines.append(json.dumps({"id": ask.name, "category": ask.kind, "ids": ids}))
    save_file({name: prompt.media["pixel_values"] for name, prompt in known.items()}, pixels)
    Path(prompts).write_text("\n".join(lines) + "\n", encoding="utf-8")
    methods = {
        "stock": stock(target, known),
        "transformers prompt lookup": stock(target, known, prompt_lookup_num_tokens=LOOKUP),
        **ours(target, lambda request: known[request["id"]]),
    }
    run(methods, Path(prompts), Path(out), limit=MAX_NEW_TOKENS, seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
