#!/usr/bin/env bash
# Checks this build on a machine with a GPU: the device contract, and the conformance of every kernel of
# the platform's pack, run on the device; whole engines and daemons there, if the tree is at hand; then
# the kernels under compute-sanitizer where that is installed.
#
#   tools/gpu_check.sh --here                      on this machine
#   tools/gpu_check.sh --host USER@MACHINE         there, by ssh; results come back
#   tools/gpu_check.sh --bundle FOLDER             only gathers what such a machine needs
#   FOLDER/gpu_check.sh --here                     runs a bundle, however it was carried
#
# Options: --platform NAME (h200; gb10, strix-hip), --build FOLDER (build/release), --only PATTERN (names of
# test programs), --sanitizer TOOLS (memcheck; a list with commas, or none), --jobs N (programs at a time, 1; what
# measures runs alone), --no-build, --with PROGRAMS (a list with commas of what else travels: atlasd, atlas-bench, ...;
# all plugins go with them).
#
# The other machine needs the GPU's driver and a glibc and libstdc++ as new as the build machine's; other
# libraries travel. Exit status: 0 all passed, 1 something failed, 2 wrong use, 77 no device.
set -uo pipefail

script=$(readlink -f "$0")
mode="" target="" platform=h200 build="" only="*" sanitizer=memcheck jobs=1 build_first=yes with=""
usage() {
  sed -n '2,19s/^# \{0,1\}//p' "$script" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --here) mode=here ;;
    --host) mode=host target=${2:-} && shift ;;
    --bundle) mode=bundle target=${2:-} && shift ;;
    --platform) platform=${2:-} && shift ;;
    --build) build=${2:-} && shift ;;
    --only) only=${2:-} && shift ;;
    --sanitizer) sanitizer=${2:-} && shift ;;
    --jobs) jobs=${2:-} && shift ;;
    --no-build) build_first=no ;;
    --with) with=${2:-} && shift ;;
    *) usage ;;
  esac
  shift
done
[ -n "$mode" ] || usage
[[ $jobs =~ ^[1-9][0-9]{0,2}$ ]] || { echo "gpu_check: --jobs '$jobs' is no number from 1 to 999" >&2 && exit 2; }
case $platform in
  h200 | gb10) plugin=platform_cuda ;;
  strix-hip) plugin=platform_hip ;;
  *) echo "gpu_check: no platform '$platform'; there are h200, gb10, strix-hip" >&2 && exit 2 ;;
esac

# A bundle has the layout of a build, and this script in its root.
folder=$(dirname "$script")
bundled=no
if [ -f "$folder/bundle.txt" ]; then
  bundled=yes build=$folder
else
  root=$(dirname "$folder")
  build=${build:-$root/build/release}
fi

programs() {  # test programs of this build that run on a device
  local program
  for program in "$build"/tests/device_contract "$build"/tests/conformance_gpu*; do
    [ -f "$program" ] && [ -x "$program" ] && basename "$program"
  done
}

# Suites of whole engines and daemons: they read models of the tree, so they stay where it is.
engines="engine_core engine_feed engine_prefix parity_identity daemon_flash_mini daemon_swap"

build_all() {
  local pack=atlas_kernels_${platform//-/_} targets
  targets=$(cmake --build "$build" --target help |
    grep -oE '^(tests/[a-z/]*)?(conformance_gpu[a-z0-9_]*|device_contract|device_overhead)(:|$)' | tr -d : | sort -u)
  [ -z "$with" ] || targets="$targets atlas_plugins ${with//,/ }"
  [ "$mode" != here ] || targets="$targets atlas_plugins $engines"
  # shellcheck disable=SC2086
  cmake --build "$build" --target $pack $plugin atlas_kernels_cpu $targets
}

# Copies a file of the build to its place in the bundle, without debug lines.
take() {
  mkdir -p "$1/$(dirname "$2")"
  cp "$build/$2" "$1/$2"
  case $2 in *.cubin | *.hsaco) ;; *) strip -g "$1/$2" ;; esac
}

# Libraries that a bare system with a driver lacks: all but those of glibc and the compiler.
take_libraries() {
  local to=$1 library
  shift
  mkdir -p "$to/deps"
  for library in $(ldd "$@" 2>/dev/null | sed -n 's/^.* => \(\/[^ ]*\) .*/\1/p' | sort -u); do
    case $(basename "$library") in
      libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | ld-linux* | libgcc_s.so* | libstdc++.so*) ;;
      *) cp -L "$library" "$to/deps/" && strip -g "$to/deps/$(basename "$library")" ;;
    esac
  done
}

bundle() {  # bundle FOLDER
  local to=$1 name file
  [ $build_first = no ] || build_all || { echo "gpu_check: the build failed" >&2 && exit 1; }
  if [ -e "$to" ] && [ ! -f "$to/bundle.txt" ]; then
    echo "gpu_check: '$to' exists and is no bundle" >&2 && exit 2
  fi
  rm -rf "$to"
  mkdir -p "$to"
  for name in $(programs) device_overhead; do take "$to" "tests/$name"; done
  for file in "$build"/lib/atlas/kernels/cpu/*.so "$build/lib/atlas/plugins/$plugin.so" \
    "$build/lib/atlas/kernels/$platform"/* "$build/tests/gpu_test_pack/$platform"/* "$build/tests/emulated/$platform.so"; do
    if [ -f "$file" ]; then take "$to" "${file#"$build"/}"; fi
  done
  if [ -n "$with" ]; then
    for name in ${with//,/ }; do take "$to" "bin/$name"; done
    for file in "$build"/lib/atlas/plugins/*.so; do take "$to" "${file#"$build"/}"; done
    take_libraries "$to" "$to"/bin/* "$to"/lib/atlas/plugins/*.so
  fi
  take_libraries "$to" "$build"/tests/device_contract "$build"/tests/conformance_gpu* "$build/lib/atlas/plugins/$plugin.so"
  cp "$script" "$to/gpu_check.sh"
  echo "platform $platform, $(git -C "$(dirname "$script")" rev-parse --short HEAD 2>/dev/null || echo 'unknown revision')" >"$to/bundle.txt"
  echo "gpu_check: bundle '$to' for $(cat "$to/bundle.txt"): $(du -sh "$to" | cut -f1)"
}

has_device() {
  case $plugin in
    platform_cuda) [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1 ;;
    platform_hip) [ -e /dev/kfd ] ;;
  esac
}

run() {  # run NAME COMMAND...: one line with its result and time; the log and the verdict in results
  local name=$1 log=$results/$1.log start status seconds line
  shift
  start=$(date +%s%N)
  timeout 600 "$@" >"$log" 2>&1
  status=$?
  seconds=$(awk "BEGIN{printf \"%.1f\", ($(date +%s%N) - $start) / 1e9}")
  if [ $status -eq 0 ]; then
    line="pass  $name  (${seconds} s)  $(sed -n 's/^\[doctest\] assertions: *//p' "$log")"
    echo pass >"$results/$name.verdict"
  else
    line="FAIL  $name  (${seconds} s, status $status)
$(grep -vE '^\[doctest\] (doctest version|run with)' "$log" | head -40 | sed 's/^/      /')"
    echo fail >"$results/$name.verdict"
  fi
  echo "$line"
}
begin() {  # the same beside up to `jobs` others
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  run "$@" &
}
count() {  # count VERDICT
  cat "$results"/*.verdict 2>/dev/null | grep -c "^$1$"
}

here() {
  has_device || { echo "gpu_check: no driver or no device for platform $platform on this machine" >&2 && exit 77; }
  [ $bundled = yes ] || [ $build_first = no ] || build_all || { echo "gpu_check: the build failed" >&2 && exit 1; }
  results=$build/gpu_check
  rm -rf "$results"
  mkdir -p "$results"
  export LD_LIBRARY_PATH="$build/deps:$build/tests/support/simt${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  [ $bundled = no ] || echo "bundle: $(cat "$build/bundle.txt")"
  echo "machine: $(uname -srm), $(nproc) cores"
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,clocks.sm --format=csv,noheader | sed 's/^/gpu: /'
  fi
  local name tool checker
  [ $bundled = no ] || engines=""
  for name in $(programs) $engines; do
    [ -x "$build/tests/$name" ] || { echo "skip  $name is not built" && continue; }
    # shellcheck disable=SC2254
    case $name in $only) begin "$name" "$build/tests/$name" --device "$platform" ;; esac
  done
  wait
  name=device_overhead
  if [ -x "$build/tests/$name" ]; then
    # shellcheck disable=SC2254
    case $name in $only) run "$name" "$build/tests/$name" --device "$platform" ;; esac
  else
    echo "skip  $name is not built"
  fi
  if [ -f "$results/device_overhead.log" ]; then  # a measurement: what it says is shown
    sed -n '/^\[doctest\] run/,/^====/{//!p}' "$results/device_overhead.log"
  fi
  if [ "$sanitizer" != none ] && [ $plugin = platform_cuda ]; then
    checker=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
    if [ -z "$checker" ]; then
      echo "skip  compute-sanitizer is not installed"
    else
      for tool in ${sanitizer//,/ }; do
        # A kernel that is not in one module is looked for in the next: no error of ours.
        local api=()
        [ "$tool" != memcheck ] || api=(--report-api-errors no)
        for name in $(programs); do
          # Its own bounds checks need buffers of their own size, so without guards.
          # shellcheck disable=SC2254
          case $name in $only) begin "$name.$tool" "$checker" --tool "$tool" "${api[@]}" --error-exitcode 9 \
            "$build/tests/$name" --device "$platform" --guards off ;; esac
        done
      done
      wait
    fi
  fi
  local passed failed
  passed=$(count pass) failed=$(count fail)
  echo "$passed passed, $failed failed; logs in $results"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

host() {
  local local_bundle remote status
  local_bundle=$(mktemp -d)/bundle
  bundle "$local_bundle"
  remote=$(ssh "$target" 'mktemp -d /tmp/atlas-gpu-check.XXXXXX') || { echo "gpu_check: no ssh to $target" >&2 && exit 1; }
  tar -C "$local_bundle" -czf - . | ssh "$target" "tar -C '$remote' -xzf -" || exit 1
  ssh "$target" "cd '$remote' && ./gpu_check.sh --here --platform '$platform' --only '$only' --sanitizer '$sanitizer' --jobs '$jobs'"
  status=$?
  mkdir -p "$build/gpu_check"
  ssh "$target" "tar -C '$remote' -czf - gpu_check 2>/dev/null; rm -rf '$remote'" | tar -C "$build" -xzf - 2>/dev/null
  rm -rf "$(dirname "$local_bundle")"
  return $status
}

case $mode in
  here) here ;;
  bundle) [ -n "$target" ] || usage && bundle "$(readlink -m "$target")" ;;
  host) [ -n "$target" ] || usage && host ;;
esac
