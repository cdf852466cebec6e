#!/usr/bin/env bash
# Plants each defect and expects the simulation to find it.
#
# usage: scripts/sim-mutants.sh [--seconds N] [NAME...]    all defects unless NAMEs are given
#
# NAME is that of a patch in sim/mutants, or a defect of `--plant`. Patches are applied to a copy of
# this commit in target/sim-mutants, which is built incrementally. Each defect is searched for with
# small fabrics for N seconds (300), then with large ones for as long. The output is kept there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=300
if [[ ${1-} == --seconds ]]; then seconds=$2; shift 2; fi
profile=${SIM_PROFILE:-dev}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/sim-mutants
program=$work/target/${profile/dev/debug}/sim
plants=(no-sync lost-writes stale-tables deaf-clients)
names=("$@")
if ((${#names[@]} == 0)); then
    names=("${plants[@]}")
    for patch in sim/mutants/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi

# The copy is a clone: git replaces only files that differ, so that others are not compiled again.
[[ -e $work/tree ]] || git clone --quiet --shared --no-checkout . "$work/tree"
git -C "$work/tree" fetch --quiet origin HEAD
git -C "$work/tree" checkout --quiet --force --detach FETCH_HEAD

build() {
    (
        cd "$work/tree"
        CARGO_TARGET_DIR=$work/target cargo build --quiet --profile "$profile" -p sim
    )
}

# find_defect NAME OPTION...: whether the simulation fails; how and when is in `found`.
find_defect() {
    local name=$1 size
    shift
    for size in --small ''; do
        # shellcheck disable=SC2086  # no word if it is empty
        if ! "$program" $size --seconds "$seconds" --quiet "$@" >"$work/$name.txt" 2>&1; then
            found=$(grep -m 1 -e FAILED -e panicked "$work/$name.txt" || tail -1 "$work/$name.txt")
            found=${found:0:200}
            return
        fi
    done
    return 1
}

missed=()
for name in "${names[@]}"; do
    patch=$PWD/sim/mutants/$name.patch
    options=()
    if [[ -e $patch ]]; then
        git -C "$work/tree" apply "$patch"
    else
        options=(--plant "$name")
    fi
    build
    began=$SECONDS
    if find_defect "$name" "${options[@]}"; then
        printf '%-32s found in %d s: %s\n' "$name" "$((SECONDS - began))" "$found"
    else
        missed+=("$name")
        printf '%-32s not found in %d s\n' "$name" "$((SECONDS - began))"
    fi
    git -C "$work/tree" checkout --quiet --force .
done
((${#missed[@]} == 0)) || { echo "not found: ${missed[*]}"; exit 1; }
