#!/usr/bin/env bash
# Simulates the whole system, seed after seed.
#
# usage: scripts/sim.sh [--seconds N | --hours N] [--seed S] [OPTION...]
#
# Runs for that much real time, beginning with seed S (default 1), and reports what was simulated.
# Without further options two processes with one thread each do so, one with the large fabric and
# one with the small, and managers share a registry in etcd in about every third seed. With
# --seconds it ends at the first seed that fails. With --hours it goes on, and writes the traces of
# seeds that fail to target/sim-failures. Ends with status 1 if one failed.
#
# With other options it is one process: `--small --files --seed S --runs 1 --trace` shows all of one
# seed; --help lists them. See docs/architecture/sim.md.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
args=() sizes=('' --small)
while (($#)); do
    case $1 in
        --hours) args+=(--seconds "$(($2 * 3600))" --keep "$target/sim-failures"); shift 2 ;;
        --seconds | --seed) args+=("$1" "$2"); shift 2 ;;
        --quiet) args+=("$1"); shift ;;
        *) args+=("$1") sizes=(''); shift ;;
    esac
done
[[ " ${args[*]} " == *" --seconds "* ]] || sizes=('')
profile=${SIM_PROFILE:-release}
cargo build --quiet -p sim --profile "$profile"
sim=$target/${profile/dev/debug}/sim
((${#sizes[@]} > 1)) || exec "$sim" "${args[@]}"

status=0 running=()
for size in "${sizes[@]}"; do
    "$sim" "${args[@]}" ${size:+"$size"} &
    running+=($!)
done
trap 'kill "${running[@]}" 2>/dev/null' EXIT
# With --keep each runs to its end; otherwise the other one ends with the first that fails.
for _ in "${sizes[@]}"; do
    wait -n || { status=$?; [[ " ${args[*]} " == *" --keep "* ]] || break; }
done
exit "$status"
