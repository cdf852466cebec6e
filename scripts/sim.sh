#!/usr/bin/env bash
# Simulates the whole system, seed after seed, in one process and one thread.
#
# usage: scripts/sim.sh [--seconds N | --hours N] [--seed S] [OPTION...]
#
# Runs for that much real time, beginning with seed S (default 1), reports what was simulated, and
# ends with an error at the first seed that fails, after the last lines of its trace. `--seed S
# --runs 1 --trace` shows all of one. See docs/architecture/sim.md.
set -euo pipefail
cd "$(dirname "$0")/.."
args=()
while (($#)); do
    case $1 in
        --hours) args+=(--seconds "$(($2 * 3600))"); shift 2 ;;
        *) args+=("$1"); shift ;;
    esac
done
profile=${SIM_PROFILE:-release}
cargo build --quiet -p sim --profile "$profile"
exec "${CARGO_TARGET_DIR:-target}/${profile/dev/debug}/sim" "${args[@]}"
