#!/usr/bin/env bash
# Plants each defect in a copy of this tree and expects the simulation to find it.
#
# usage: scripts/sim-mutants.sh [--seconds N] [--seed S] [NAME...]
#
# NAME is that of a patch in sim/mutants, or a defect of `--plant`; without one, all. Seeds from S
# (1) on are run for N (120) seconds in the small fabric, and then, if none failed, in the large one.
# A seed that fails without the defect, too, does not count. Prints a line for each defect: whether
# it was found, after how many seconds and by which seed, and what did not hold. Ends with status 1
# if one was not found or its patch does not apply or build.
#
# The copy and its build stay in target/sim-mutants, so that each defect rebuilds only what depends
# on it. SIM_PROFILE is the profile (dev).
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
profile=${SIM_PROFILE:-dev}
root=$PWD/target/sim-mutants
tree=$root/tree
mkdir -p "$tree"
# What is unchanged keeps its time: cargo builds again what is newer than its last build.
git ls-files -z | while IFS= read -r -d '' file; do
    [[ -f $file ]] || continue
    cmp -s "$file" "$tree/$file" && continue
    mkdir -p "$tree/$(dirname "$file")"
    cp "$file" "$tree/$file"
    touch "$tree/$file"
done
(cd "$tree" && find . -type f -printf '%P\0') | while IFS= read -r -d '' file; do
    [[ -f $file ]] || rm "$tree/$file"
done
build() {
    (cd "$tree" && CARGO_TARGET_DIR=$root/target cargo build --quiet -p sim --profile "$profile")
}
program=$root/target/${profile/dev/debug}/sim
unchanged=$root/sim
build
cp "$program" "$unchanged"

# search PROGRAM OPTION...: prints the seconds, seed and violation of the first seed that fails
# because of the defect.
search() {
    local began=$SECONDS size seed out failed
    for size in --small ''; do
        seed=$first
        local end=$((SECONDS + seconds))
        while ((SECONDS < end)); do
            out=$("$@" ${size:+"$size"} --quiet --seed "$seed" --seconds $((end - SECONDS)) 2>&1) &&
                break
            failed=$(grep -m1 -oP '^seed \K[0-9]+(?= FAILED)' <<<"$out") || {
                echo "$((SECONDS - began)) - $(grep -m1 -A1 'panicked at' <<<"$out" | tail -1)"
                return
            }
            if "$unchanged" ${size:+"$size"} --quiet --seed "$failed" --runs 1 >"$root/out" 2>&1; then
                echo "$((SECONDS - began)) $failed${size:+ small}:" \
                    "$(grep -m1 -oP '^seed [0-9]+ FAILED: \K.*' <<<"$out")"
                return
            fi
            echo "seed $failed $size fails without the defect, too" >&2
            seed=$((failed + 1))
        done
    done
    return 1
}

missed=()
row() { printf '%-32s %-9s %s\n' "$1" "$2" "${3-}"; }
row defect result 'seconds, seed, what does not hold'
for name in "${names[@]}"; do
    patch=sim/mutants/$name.patch
    if [[ ! -e $patch ]]; then
        if result=$(search "$unchanged" --plant "$name"); then
            row "$name" found "$result"
        else
            row "$name" missed
            missed+=("$name")
        fi
        continue
    fi
    if ! patch --quiet --forward -p1 -d "$tree" <"$patch" >"$root/out" 2>&1; then
        row "$name" 'no patch' "$(head -1 "$root/out")"
        missed+=("$name")
        for file in $(sed -n 's|^+++ b/||p' "$patch"); do
            cp "$file" "$tree/$file"
            rm -f "$tree/$file.rej" "$tree/$file.orig"
        done
        continue
    fi
    if ! build 2>"$root/out"; then
        row "$name" 'no build' "$(grep -m1 '^error' "$root/out")"
        missed+=("$name")
    elif result=$(search "$program"); then
        row "$name" found "$result"
    else
        row "$name" missed
        missed+=("$name")
    fi
    for file in $(sed -n 's|^+++ b/||p' "$patch"); do
        cp "$file" "$tree/$file"
        touch "$tree/$file"
        rm -f "$tree/$file.orig"
    done
done
((${#missed[@]} == 0)) || { echo "not found: ${missed[*]}"; exit 1; }
