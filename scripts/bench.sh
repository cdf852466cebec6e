#!/usr/bin/env bash
# Measures how long a subnet takes from the start of its programs to answered queries: ibsm and ibsa
# on a simulated fat tree of 10,000 hosts, and stock opensm for comparison where it is installed.
# Files are in a scratch directory and sockets are private; all are removed afterwards, on Ctrl-C
# too.
#
# usage: scripts/bench.sh [--hosts N] [--radix R] [--rounds N] [--no-opensm] [--json FILE]
#
# IBSM_BENCHMARK selects another benchmark that starts programs; scripts/bench-vs-opensm.sh sets it.
# The in-process benchmarks: cargo bench -p benches (see docs/benchmarks.md).
set -euo pipefail

if [[ " $* " == *" --help "* ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit
fi
command -v cargo >/dev/null || {
    echo "bench: cargo is missing; install Rust from https://rustup.rs" >&2
    exit 1
}

# Paths are relative to the caller's directory; cargo runs benchmarks in the package's.
arguments=()
while (($#)); do
    case $1 in
    --json) arguments+=("$1" "$(realpath -m -- "${2:?--json takes a file}")"); shift 2 ;;
    --json=*) arguments+=(--json "$(realpath -m -- "${1#--json=}")"); shift ;;
    *) arguments+=("$1"); shift ;;
    esac
done
cd "$(dirname "$0")/.."

TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-bench.XXXXXX")
export TMPDIR
run=

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    # The benchmark and all programs that it starts are one process group.
    if [[ $run ]]; then
        kill -- "-$run" 2>/dev/null || true
        wait "$run" 2>/dev/null || true
    fi
    rm -rf "$TMPDIR"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "building" >&2
cargo build --quiet --release --bins
set -m
cargo bench --quiet -p benches --bench "${IBSM_BENCHMARK:-whole_system}" -- "${arguments[@]}" &
run=$!
set +m
wait "$run"
