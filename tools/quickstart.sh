#!/usr/bin/env bash
# From a bare Debian 12 machine to an answer: installs, builds, fetches a small real model, starts
# atlasd on the CPU and streams. The daemon stays up for more.
#   tools/quickstart.sh                  all of it, with a first question
#   tools/quickstart.sh --prompt TEXT    asks that
#   tools/quickstart.sh --stop           ends the daemon
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '4,6p' "$0" | sed 's/^# *//' >&2; exit 2; }

prompt="In one sentence: what is the capital of France?"
stop=no
while [ $# -gt 0 ]; do
  case $1 in
    --prompt) [ $# -ge 2 ] || usage; prompt=$2; shift 2 ;;
    --stop) stop=yes; shift ;;
    *) usage ;;
  esac
done

state=$PWD/build/quickstart
# A socket's path may have 107 characters, and a checkout's may be longer than that; each checkout has
# a socket of its own.
socket_folder=/tmp/atlas-quickstart-$(id -u)-$(printf %s "$PWD" | cksum | cut -d' ' -f1)
socket=$socket_folder/atlasd.sock
bin=$PWD/build/release/bin
pid_file=$state/atlasd.pid

# A number alone may be another program's by now: the process must be this checkout's daemon.
running() {
  local pid
  pid=$(cat "$pid_file" 2>/dev/null) && [ -n "$pid" ] &&
    [ "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")" = "$bin/atlasd --config $state/atlasd.yaml " ]
}

if [ "$stop" = yes ]; then
  running || { echo "No daemon of this quickstart is running."; exit 0; }
  kill "$(cat "$pid_file")"
  # Requests at hand have server.drain_timeout_s (30 s), and cancelling them takes up to 5 more.
  for _ in $(seq 400); do running || break; sleep 0.1; done
  running && { echo "atlasd has not ended yet: see $state/atlasd.log" >&2; exit 1; }
  rm -f "$pid_file"
  echo "Stopped."
  exit 0
fi

tools/install_packages.sh python3 python3-pip ca-certificates
if ! running; then
  cmake --preset release >"$(mkdir -p build && echo build)/configure.log" 2>&1 ||
    { tail -n 20 build/configure.log >&2; exit 1; }
  echo "Building (the first time this takes some minutes)"
  cmake --build --preset release --target atlasd atlasctl atlas_plugins atlas_packs >build/build.log 2>&1 ||
    { tail -n 40 build/build.log >&2; exit 1; }
  tools/fetch_model.sh "$state"
  mkdir -p "$socket_folder" && chmod 700 "$socket_folder"
  cat >"$state/atlasd.yaml" <<YAML
model: {path: "$state/SmolLM2-135M-Instruct.Q4_1.gguf", name: smollm2}
server: {socket: {path: "$socket"}}
YAML
  # The shell notes its own number and becomes the daemon.
  setsid --fork sh -c 'echo $$ >"$1"; exec "$2" --config "$3"' sh \
    "$pid_file" "$bin/atlasd" "$state/atlasd.yaml" >"$state/atlasd.log" 2>&1 </dev/null
  for _ in $(seq 100); do running && break; sleep 0.05; done
  for _ in $(seq 100); do
    running || { tail -n 5 "$state/atlasd.log" >&2; exit 1; }
    "$bin/atlasctl" --socket "$socket" status >/dev/null 2>&1 && break
    sleep 0.1
  done
  "$bin/atlasctl" --socket "$socket" status --wait || { tail -n 5 "$state/atlasd.log" >&2; exit 1; }
fi

printf '\n> %s\n' "$prompt"
"$bin/atlasctl" --socket "$socket" chat --max-tokens 256 --temperature 0 "$prompt"
cat <<HELP

atlasd goes on serving on $socket:
  tools/quickstart.sh --prompt "Why is the sky blue?"
  build/release/bin/atlasctl --socket $socket chat
  tools/quickstart.sh --stop
HELP
