#!/usr/bin/env bash
# Rounds of faults with real processes, while clients write: a manager without others, two managers
# that follow each other, the same with --follow-sync, and two that share an etcd of three members.
# In each round a manager, a responder or a member is killed, stopped, cut off or started again, a
# clock is set by an hour, or a disk is full; then everything that was acknowledged must be there,
# and nothing that was deleted or whose lease has ended. The fabric is split in rounds of their own.
# Last, a manager is killed at each system call of a commit, and of its start.
#
# usage: scripts/rounds.sh [-n ROUNDS] [-r RATE] [-s SEED] [-f FAULT] [MODE...]
#
#   -n ROUNDS  rounds of each mode [default: 20; 200 take 25 minutes]
#   -r RATE    writes a second [default: 5000]
#   -s SEED    another sequence of faults [default: 1]
#   -f FAULT   faults of one kind only, such as Kill or Pause
#   MODE       alone, follow, sync, etcd, split, split-etcd, calls [default: all]
#
# Builds optimised programs first. Prints a line for each round; docs/benchmarks.md has a run. Disks
# are file systems in memory, which only root can mount; clocks need Debian's faketime, system calls
# strace.
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
    [alone]=rounds::nothing_is_lost_by_a_manager_without_others
    [follow]=rounds::nothing_is_lost_by_managers_that_follow
    [sync]=rounds::nothing_is_lost_by_managers_that_wait_for_those_that_follow
    [etcd]=rounds::nothing_is_lost_by_managers_that_share_etcd
    [split]=rounds::nothing_is_lost_when_the_fabric_is_split_unless_clients_are_asked
    [split-etcd]=rounds::nothing_is_lost_when_the_fabric_is_split_and_etcd_is_not
    [calls]='rounds::calls::nothing_is_lost_when_a_manager_is_killed_at_any_call_of_a_commit
        rounds::calls::a_manager_starts_after_it_was_killed_at_any_call_of_its_start'
)
names=()
for mode in "${@:-alone follow sync etcd split split-etcd calls}"; do
    for mode in $mode; do
        [[ ${tests[$mode]:-} ]] || {
            echo "unknown mode '$mode': one of ${!tests[*]}" >&2
            exit 2
        }
        # shellcheck disable=SC2206  # several tests
        names+=(${tests[$mode]})
    done
done
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --quiet --release --bins
export IBSM_PROGRAMS=$target/release
export ROUNDS=$rounds ROUNDS_RATE=$rate ROUNDS_SEED=$seed ROUNDS_LOG=1 ROUNDS_CALLS=1000
[[ -z $fault ]] || export ROUNDS_FAULT=$fault
exec cargo test --quiet -p benches --test it -- --exact --nocapture --test-threads=1 "${names[@]}"
