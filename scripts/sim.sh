#!/usr/bin/env bash
# Simulates the whole system, seed after seed, in one process and one thread.
#
# usage: scripts/sim.sh [--seconds N | --hours N] [--seed S] [OPTION...]
#
# Runs for that much real time, beginning with seed S (default 1), and reports what was simulated.
# With --seconds it ends at the first seed that fails. With --hours it goes on, and writes the
# traces of seeds that fail to target/sim-failures. `--seed S --runs 1 --trace` shows all of one;
# --help lists the other options. See docs/architecture/sim.md.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
args=()
while (($#)); do
    case $1 in
        --hours) args+=(--seconds "$(($2 * 3600))" --keep "$target/sim-failures"); shift 2 ;;
        *) args+=("$1"); shift ;;
    esac
done
profile=${SIM_PROFILE:-release}
cargo build --quiet -p sim --profile "$profile"
exec "$target/${profile/dev/debug}/sim" "${args[@]}"
