"""flashspec's look-up drafter on its own engine (Apache-2.0).

python -m benchmarks.peers.run_flashspec MODEL_DIR PROMPTS OUT [LIMIT [PIXELS]]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine.ngram import NgramDrafter
from flashspec.engine.verifier import TargetModel
from transformers import AutoModelForCausalLM

from benchmarks.peers.pictures import Pictures
from benchmarks.peers.timed import Answer, Method, Request, run, stock

GAMMAS = (4, 8)


def method(target: TargetModel, gamma: int, eos: int) -> Method:
    """Its n-gram drafter with drafts of `gamma` tokens."""
    config = FlashSpecConfig(
        device="cpu",
        dtype="float32",
        drafter_strategy="bandit",
        bandit=BanditConfig(n_arms=1),
        sampling=SamplingConfig(gamma=gamma, temperature=0.0, variant="greedy"),
    )
    engine = SpeculativeEngine(config, [NgramDrafter()], target)

    def write(request: Request, limit: int) -> Answer:
        found = engine.generate(torch.tensor([request["ids"]]), limit, [eos])
        written = [one for one in found.output_ids[0].tolist() if one >= 0]
        return Answer(written, len(found.arm_steps) + 1)

    return write


def main(model: str, prompts: str, out: str, limit: str = "96", pixels: str = "") -> None:
    """Stock `generate()` first, then its drafter at two draft lengths."""
    pictures = Pictures(model, pixels) if pixels else None
    loaded = (
        pictures.model
        if pictures
        else AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    )
    target = TargetModel(model, torch.device("cpu"), torch.float32, model=loaded)
    eos = int(loaded.generation_config.eos_token_id)
    methods: dict[str, Method] = {"stock": stock(loaded)}
    for gamma in GAMMAS:
        methods[f"flashspec ngram {gamma}"] = method(target, gamma, eos)
    if pictures:
        methods = {name: pictures.showing(method) for name, method in methods.items()}
    run(methods, Path(prompts), Path(out), limit=int(limit), seed=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
