#!/usr/bin/env bash
# Plants each defect in a copy of this commit and expects the simulation to find it.
#
# usage: scripts/sim-mutants.sh [--seconds N] [--seed S] [NAME...]
#
# NAME is that of a patch in sim/mutants, or a defect of `--plant`; without one, all. Seeds from S
# (1) on are run for N (120) seconds, in the small fabric and the large one at once, each on a core.
# The registry is in etcd for defects whose names begin with etcd-.
# A seed that fails without the defect, too, does not count. Prints a line for each defect: whether
# it was found, after how many seconds and by which seed, and what did not hold. Ends with status 1
# if one was not found or its patch does not apply or build.
#
# The copy and its build stay in target/sim-mutants, so that each defect rebuilds only what depends
# on it. SIM_PROFILE is the profile (mutant).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=120 first=1
while [[ ${1-} == --* ]]; do
    case $1 in
        --seconds) seconds=$2 ;;
        --seed) first=$2 ;;
        *) echo "sim-mutants.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
plants=(no-sync lost-writes stale-tables deaf-clients)
names=("$@")
if ((${#names[@]} == 0)); then
    names=("${plants[@]}")
    for patch in sim/mutants/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi
profile=${SIM_PROFILE:-mutant}
root=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sim-mutants
tree=$root/tree

# The copy is a clone: git replaces only files that differ, so that others are not compiled again.
[[ -e $tree ]] || git clone --quiet --shared --no-checkout . "$tree"
git -C "$tree" fetch --quiet origin HEAD
restore() { git -C "$tree" checkout --quiet --force --detach FETCH_HEAD; }
build() {
    (cd "$tree" && CARGO_TARGET_DIR=$root/target cargo build --quiet -p sim --profile "$profile")
}
restore
program=$root/target/${profile/dev/debug}/sim
unchanged=$root/sim
build
cp "$program" "$unchanged"

# search_size SIZE PROGRAM OPTION...: prints the seconds, seed and violation of the first seed that
# fails because of the defect.
search_size() {
    local size=$1 began=$SECONDS seed=$first out failed
    shift
    while ((SECONDS < began + seconds)); do
        out=$("$@" ${size:+"$size"} --quiet --seed "$seed" \
            --seconds $((began + seconds - SECONDS)) 2>&1) && return 1
        failed=$(grep -m1 -oP '^seed \K[0-9]+(?=( --\w+)* FAILED)' <<<"$out") || {
            echo "$((SECONDS - began)) - $(grep -m1 -A1 'panicked at' <<<"$out" | tail -1)"
            return
        }
        if "$unchanged" "$store" ${size:+"$size"} --quiet --seed "$failed" --runs 1 \
            >"$root/out$size" 2>&1; then
            echo "$((SECONDS - began)) $failed${size:+ small}:" \
                "$(grep -m1 -oP '^seed [0-9]+( --\w+)* FAILED: \K.*' <<<"$out")"
            return
        fi
        echo "seed $failed $size fails without the defect, too" >&2
        seed=$((failed + 1))
    done
    return 1
}

# search PROGRAM OPTION...: searches in both sizes at once, and prints what is found first.
search() {
    local size status=1
    set -m # groups of their own
    for size in --small ''; do search_size "$size" "$@" >"$root/found$size" & done
    while [[ -n $(jobs -p) ]]; do
        if wait -n; then status=0; break; fi
    done
    for size in $(jobs -p); do kill -- -"$size" 2>/dev/null || true; done
    wait || true
    set +m
    awk 'NR == 1' "$root"/found{--small,}
    return "$status"
}

row() { printf '%-32s %-9s %s\n' "$1" "$2" "${3-}"; }
missed=()
miss() {
    row "$@"
    missed+=("$1")
}
# find_defect NAME PROGRAM OPTION...
find_defect() {
    local name=$1 result store=--files
    shift
    [[ $name != etcd-* ]] || store=--etcd
    if result=$(search "$@" "$store"); then
        row "$name" found "$result"
    else
        miss "$name" missed
    fi
}
row defect result 'seconds, seed, what does not hold'
for name in "${names[@]}"; do
    patch=$PWD/sim/mutants/$name.patch
    if [[ ! -e $patch ]]; then
        find_defect "$name" "$unchanged" --plant "$name"
        continue
    fi
    if ! git -C "$tree" apply "$patch" 2>"$root/out"; then
        miss "$name" 'no patch' "$(head -1 "$root/out")"
    elif ! build 2>"$root/out"; then
        miss "$name" 'no build' "$(grep -m1 '^error' "$root/out")"
    else
        find_defect "$name" "$program"
    fi
    restore
done
((${#missed[@]} == 0)) || { echo "not found: ${missed[*]}"; exit 1; }
