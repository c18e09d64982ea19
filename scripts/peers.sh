#!/usr/bin/env bash
# Other libraries' training-free drafters and ours (runs/text_smollm2.toml) on SmolLM2-135M, each in
# its own environment: same prompts, same limits, float32, outputs compared.
#   scripts/peers.sh [NEW_TOKENS] [PROMPTS_A_CATEGORY]      96 and 16, all 64 prompts, by default
# Results and the other libraries' environment go to build/peers; started again it goes on.
# The others need a Python 3.13 (dejavuu asks for it): PYTHON313=... where it has another name. They
# get the last transformers 4: dejavuu crops caches in a way that transformers 5 refuses.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${1:-96} count=${2:-16}
place=${PEERS_OUT:-build/peers}
model=${MODEL:-$HOME/.cache/eyespan/models/smollm2-135m-instruct}
python=.venv/bin/python
venv=build/peers/venv
peer=$venv/bin/python
export OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

mkdir -p "$place"
$python scripts/get_smollm2.py "$model"
if [ ! -e "$venv/.ready" ]; then
  newer=${PYTHON313:-python3.13}
  command -v "$newer" >/dev/null || {
    echo "the other libraries need Python 3.13, and there is no $newer; set PYTHON313" >&2
    exit 2
  }
  "$newer" -m venv "$venv"
  "$peer" -m pip install --quiet torch==2.13.0 transformers==4.57.6 dejavuu==0.2.0 flashspec==0.3.1
  # Its suffix tree needs numpy alone; vLLM, which the package is made for, stays out. It is built
  # from source, so it may fail: the table then does without.
  "$peer" -m pip install --quiet "setuptools<81" wheel ninja cmake nanobind==2.9.2 protobuf grpcio-tools
  CMAKE_ARGS="-DPython_EXECUTABLE=$PWD/$peer" PATH="$PWD/$venv/bin:$PATH" \
    "$peer" -m pip install --quiet --no-deps --no-build-isolation arctic-inference==0.3.0 || true
  touch "$venv/.ready"
fi
given=("$model" "$place/prompts.jsonl")
$python -m benchmarks.peers.prompts "${given[@]}" "$count"
$python -m benchmarks.peers.run_eyespan "${given[@]}" "$place/eyespan.jsonl" "$limit"
"$peer" -m benchmarks.peers.run_dejavuu "${given[@]}" "$place/dejavuu.jsonl" "$limit"
"$peer" -m benchmarks.peers.run_flashspec "${given[@]}" "$place/flashspec.jsonl" "$limit"
results=("$place"/{eyespan,dejavuu,flashspec}.jsonl)
if "$peer" -c "import arctic_inference.suffix_decoding" 2>/dev/null; then
  "$peer" -m benchmarks.peers.replay_arctic "$place"/{prompts,eyespan,arctic}.jsonl
  results+=("$place/arctic.jsonl")
fi
$python -m benchmarks.peers.table "${results[@]}" --out "$place/table.json" | tee "$place/table.md"
