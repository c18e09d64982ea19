"""What a verify pass costs on a GPU, by its size and precision: is a tree nearly free there?

    python -m benchmarks.gpu_costs --out FILE

The demo model and a Llama-shaped one of random weights (1.1 B parameters, 22 layers of 2,048) after
256 tokens, measured as the budget rule measures; times do not depend on what weights say.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eyespan.bench.manifest import manifest, write_json
from eyespan.cost import measure
from eyespan.target import load_target
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.types import Needs


def billion(dtype: torch.dtype, device: str) -> HuggingFaceTarget:
    """Random weights in the shape of a 1.1 B model."""
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=2048,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype)
    return HuggingFaceTarget(model, name=f"random 1.1 B {dtype}")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    targets: list[HuggingFaceTarget] = [load_target("demo", dtype="float32", device=args.device)]
    targets += [billion(dtype, args.device) for dtype in (torch.float32, torch.bfloat16)]
    curves: dict[str, Any] = {}
    for target in targets:
        curve = measure(target, Needs(rows=True))
        curves[target.info.name] = dict(zip(map(str, curve.sizes), curve.ms, strict=True))
        print(target.info.name, curves[target.info.name])
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    write_json(args.out, {"manifest": manifest(), "device": name, "milliseconds": curves})


if __name__ == "__main__":
    main()
