"""dejavuu's drafters on its own engine (MIT, Python 3.13).

python -m benchmarks.peers.run_dejavuu MODEL_DIR PROMPTS OUT [LIMIT]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dejavuu.core.engine import generate
from dejavuu.decoders.hf import HFBackend
from dejavuu.drafters import make_drafter

from benchmarks.peers.timed import Answer, Method, run, stock

TREES = ("token_recycling", "stand", "suffix_decoding")
CHAINS = ("pld", "sam_decoding", "suffix_decoding", "token_recycling")


def method(backend: HFBackend, name: str | None, *, tree: bool, eos: int) -> Method:
    """One drafter with the library's own default budget; what it learned lives from prompt to
    prompt, as in its own benchmark.
    """
    drafter = make_drafter(name) if name else None

    def write(ids: Sequence[int], limit: int) -> Answer:
        found = generate(backend, list(ids), limit, drafter, eos=eos, tree=tree)
        return Answer([int(one) for one in found.tokens], found.steps + 1)

    return write


def main(model: str, prompts: str, out: str, limit: str = "96") -> None:
    """Stock `generate()` first, then the library's own plain loop and its drafters."""
    backend = HFBackend(model, device="cpu", dtype="float32", attn_implementation="sdpa")
    eos = int(backend._model.generation_config.eos_token_id)  # its public API does not tell
    methods: dict[str, Method] = {"stock": stock(backend._model)}
    methods["dejavuu plain"] = method(backend, None, tree=False, eos=eos)
    for name in CHAINS:
        methods[f"dejavuu {name}"] = method(backend, name, tree=False, eos=eos)
    for name in TREES:
        methods[f"dejavuu {name} tree"] = method(backend, name, tree=True, eos=eos)
    run(methods, Path(prompts), Path(out), limit=int(limit), seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
