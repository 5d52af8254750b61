#!/usr/bin/env bash
# Everything that CI runs: packages, format, rooms, build, symbols, tests, and sanitizers on what parses
# input. Ends with "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.."

passed=0
failed=0
step() {  # step NAME COMMAND...: runs, counts, and goes on
  local name=$1
  shift
  echo "== $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
  fi
}
finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}
python_client() {  # the official client, for the tests that drive the server with it
  [ -x build/python/bin/python ] || python3 -m venv build/python
  build/python/bin/python -c 'import httpx, openai' 2>/dev/null ||
    build/python/bin/pip install --quiet --disable-pip-version-check 'openai>=1.60' httpx
}
tests() {  # tests PRESET NAME-OF-RUN CTEST-ARGS...: counts each test
  local preset=$1
  shift
  local log
  log=$(mktemp)
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@" |
    tee "$log"
  local total bad
  read -r bad total < <(sed -n 's/^.*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log")
  rm -f "$log"
  if [ -z "${total:-}" ]; then
    failed=$((failed + 1))
    echo "FAILED: ctest gave no result"
    return
  fi
  passed=$((passed + total - bad))
  failed=$((failed + bad))
}

step "packages" tools/install_packages.sh clang-format python3 python3-pip python3-venv ca-certificates
[ "$failed" -eq 0 ] || finish
step "format" tools/check/format
step "rooms" tools/check/rooms
step "fetch the small model" tools/fetch_model.sh build/models
step "openai client" python_client
step "configure" cmake --preset release -DATLAS_TEST_PYTHON="$PWD/build/python/bin/python"
step "build" cmake --build --preset release
[ "$failed" -eq 0 ] || finish
step "symbols" tools/check/symbols build/release/lib/atlas
tests release -LE slow
# Parsers, the plugin host and the device contract, with address and undefined-behaviour sanitizers.
step "configure asan" cmake --preset asan
step "build asan" cmake --build --preset asan --target asan_tests
tests asan -L asan
finish
