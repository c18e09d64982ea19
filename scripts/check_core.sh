#!/usr/bin/env bash
# The core's own tests under the sanitizers with internal checks, and whether its stub is fresh.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
build=build/check
"$python" -m cmake -S . -B "$build" -G "Unix Makefiles" \
  -DCMAKE_BUILD_TYPE=Debug -DEYESPAN_BINDINGS=OFF -DEYESPAN_TESTS=ON \
  -DEYESPAN_SANITIZE=ON -DEYESPAN_CHECKS=ON >/dev/null
"$python" -m cmake --build "$build" --parallel 2 >/dev/null
ASAN_OPTIONS=detect_leaks=1 "$python" -c "import cmake; raise SystemExit(cmake.ctest())" \
  --test-dir "$build" --output-on-failure
"$python" scripts/write_stub.py --check
