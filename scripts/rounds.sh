#!/usr/bin/env bash
# Rounds of failover and failback with real processes, while clients write: two managers that follow
# each other, the same with --follow-sync, and two that share an etcd of three members. In each
# round a manager, a responder or a member is killed, stopped, cut off or started again; then
# everything that was acknowledged must be there, and nothing that was deleted.
#
# usage: scripts/rounds.sh [-n ROUNDS] [-r RATE] [-s SEED] [-f FAULT] [MODE...]
#
#   -n ROUNDS  rounds of each mode [default: 20; 200 take 25 minutes]
#   -r RATE    writes a second [default: 5000]
#   -s SEED    another sequence of faults [default: 1]
#   -f FAULT   faults of one kind only, such as Kill or Pause
#   MODE       follow, sync, etcd [default: all]
#
# Builds optimised programs first. Prints a line for each round; docs/benchmarks.md has a run.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=20 rate=5000 seed=1 fault=
while getopts n:r:s:f:h option; do
    case $option in
        n) rounds=$OPTARG ;;
        r) rate=$OPTARG ;;
        s) seed=$OPTARG ;;
        f) fault=$OPTARG ;;
        *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
declare -A tests=(
    [follow]=rounds::nothing_is_lost_by_managers_that_follow
    [sync]=rounds::nothing_is_lost_by_managers_that_wait_for_those_that_follow
    [etcd]=rounds::nothing_is_lost_by_managers_that_share_etcd
)
names=()
for mode in "${@:-follow sync etcd}"; do
    for mode in $mode; do
        [[ ${tests[$mode]:-} ]] || {
            echo "unknown mode '$mode': follow, sync or etcd" >&2
            exit 2
        }
        names+=("${tests[$mode]}")
    done
done
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --quiet --release --bins
export IBSM_PROGRAMS=$target/release
export ROUNDS=$rounds ROUNDS_RATE=$rate ROUNDS_SEED=$seed ROUNDS_LOG=1
[[ -z $fault ]] || export ROUNDS_FAULT=$fault
exec cargo test --quiet -p benches --test it -- --exact --nocapture --test-threads=1 "${names[@]}"
