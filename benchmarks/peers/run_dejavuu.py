"""dejavuu's drafters on its own engine (MIT, Python 3.13).

python -m benchmarks.peers.run_dejavuu MODEL_DIR PROMPTS OUT [LIMIT [PIXELS]]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from dejavuu.core.engine import generate
from dejavuu.decoders.hf import HFBackend
from dejavuu.drafters import make_drafter

from benchmarks.peers.pictures import Pictures
from benchmarks.peers.timed import Answer, Method, Request, run, stock

TREES = ("token_recycling", "stand", "suffix_decoding")
CHAINS = ("pld", "sam_decoding", "suffix_decoding", "token_recycling")


def method(backend: HFBackend, name: str | None, *, tree: bool, eos: int) -> Method:
    """One drafter with the library's own default budget; what it learned lives from prompt to
    prompt, as in its own benchmark.
    """
    drafter = make_drafter(name) if name else None

    def write(request: Request, limit: int) -> Answer:
        found = generate(backend, request["ids"], limit, drafter, eos=eos, tree=tree)
        return Answer([int(one) for one in found.tokens], found.steps + 1)

    return write


class Seeing(HFBackend):
    """The library's backend on a model that is shown pictures."""

    def __init__(self, pictures: Pictures) -> None:
        self._given = pictures.model
        super().__init__("", device="cpu", attn_implementation="sdpa")

    def __post_init__(self) -> None:
        self._torch, self._model = torch, self._given


def main(model: str, prompts: str, out: str, limit: str = "96", pixels: str = "") -> None:
    """Stock `generate()` first, then the library's own plain loop and its drafters."""
    pictures = Pictures(model, pixels) if pixels else None
    backend = (
        Seeing(pictures)
        if pictures
        else HFBackend(model, device="cpu", dtype="float32", attn_implementation="sdpa")
    )
    eos = int(backend._model.generation_config.eos_token_id)  # its public API does not tell
    methods: dict[str, Method] = {"stock": stock(backend._model)}
    methods["dejavuu plain"] = method(backend, None, tree=False, eos=eos)
    for name in CHAINS:
        methods[f"dejavuu {name}"] = method(backend, name, tree=False, eos=eos)
    for name in TREES:
        methods[f"dejavuu {name} tree"] = method(backend, name, tree=True, eos=eos)
    if pictures:
        methods = {name: pictures.showing(method) for name, method in methods.items()}
    run(methods, Path(prompts), Path(out), limit=int(limit), seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
