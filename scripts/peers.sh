#!/usr/bin/env bash
# Other libraries' training-free drafters and ours (runs/text_smollm2.toml), each in its own
# environment: same prompts, same limits, float32, outputs compared. On the demo model and 30 of its
# pictures, then on SmolLM2-135M and text.
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

mkdir -p "$place"/{demo,smollm2}
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
    "$peer" -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation \
    arctic-inference==0.3.0 || true
  touch "$venv/.ready"
fi

# compare DIR MODEL NEW_TOKENS [PIXELS]: the others, on the prompts that ours have answered in DIR
compare() {
  local dir=$1 given=("$2" "$1/prompts.jsonl") more=("$3" "${@:4}")
  "$peer" -m benchmarks.peers.run_dejavuu "${given[@]}" "$dir/dejavuu.jsonl" "${more[@]}"
  "$peer" -m benchmarks.peers.run_flashspec "${given[@]}" "$dir/flashspec.jsonl" "${more[@]}"
  local results=("$dir"/{eyespan,dejavuu,flashspec}.jsonl)
  if "$peer" -c "import arctic_inference.suffix_decoding" 2>/dev/null; then
    "$peer" -m benchmarks.peers.replay_arctic "$dir"/{prompts,eyespan,arctic}.jsonl
    results+=("$dir/arctic.jsonl")
  fi
  $python -m benchmarks.peers.table "${results[@]}" --out "$dir/table.json" | tee "$dir/table.md"
}

demo=$place/demo
$python -m benchmarks.peers.run_demo "$demo"/{prompts.jsonl,pixels.safetensors,eyespan.jsonl}
compare "$demo" src/eyespan/demo/model 256 "$demo/pixels.safetensors"
text=$place/smollm2
$python -m benchmarks.peers.prompts "$model" "$text/prompts.jsonl" "$count"
$python -m benchmarks.peers.run_eyespan "$model" "$text"/{prompts,eyespan}.jsonl "$limit"
compare "$text" "$model" "$limit"
