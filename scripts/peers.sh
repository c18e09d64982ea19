#!/usr/bin/env bash
# Other libraries' training-free drafters and ours on SmolLM2-135M, each in its own environment.
#   scripts/peers.sh [NEW_TOKENS] [PROMPTS_A_CATEGORY]      results and environments go to runs/peers; rerun to resume
# Needs a python3.13 (dejavuu asks for it) beside the repo's own environment. The other libraries get
# the last transformers 4: dejavuu crops caches in a way that transformers 5 refuses.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${1:-96} count=${2:-16}
place=runs/peers
model=${MODEL:-$HOME/.cache/eyespan/models/smollm2-135m-instruct}
python=.venv/bin/python
peer=${PEER_PYTHON:-$place/venv/bin/python}
export OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

mkdir -p "$place"
$python scripts/get_smollm2.py "$model"
if [ ! -x "$peer" ]; then
  python3.13 -m venv "$place/venv"
  "$peer" -m pip install --quiet torch==2.13.0 "transformers==4.57.6" dejavuu==0.2.0 flashspec==0.3.1
fi
$python -m benchmarks.peers.prompts "$model" "$place/prompts.jsonl" "$count"
$python -m benchmarks.peers.run_eyespan "$model" "$place/prompts.jsonl" "$place/eyespan.jsonl" "$limit"
"$peer" -m benchmarks.peers.run_dejavuu "$model" "$place/prompts.jsonl" "$place/dejavuu.jsonl" "$limit"
"$peer" -m benchmarks.peers.run_flashspec "$model" "$place/prompts.jsonl" "$place/flashspec.jsonl" "$limit"
$python -m benchmarks.peers.table "$place"/{eyespan,dejavuu,flashspec}.jsonl --out "$place/table.json"
