#!/usr/bin/env bash
# Everything that wants a GPU, in one run of under ten minutes: the tests of tests/gpu, what a pass
# costs there by its size, and RECAP's main table on the demo model.
#   scripts/gpu_check.sh [OUT]     writes OUT/gpu_check.json, OUT/tests.txt and OUT/bench (default: build/gpu)
# PYTHON names an interpreter that has torch with CUDA and the packages of requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

$python -c 'import torch, sys; sys.exit(None if torch.cuda.is_available() else "no CUDA device")'
$python -m pytest -m gpu tests/gpu 2>&1 | tee "$out/tests.txt"
$python -m eyespan bench run runs/recap_table1.toml device=cuda max_inputs=4 --out "$out/bench"
$python -m benchmarks.gpu_costs --out "$out/gpu_check.json"
