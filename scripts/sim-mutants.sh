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
work=$PWD/${CARGO_TARGET_DIR:-target}/sim-mutants
program=$work/target/${profile/dev/debug}/sim
plants=(no-sync lost-writes stale-tables deaf-clients)
names=("$@")
if ((${#names[@]} == 0)); then
    names=("${plants[@]}")
    for patch in sim/mutants/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi

# What differs from the copy of an earlier run is replaced; other files keep their times, so that
# they are not compiled again.
mkdir -p "$work/tree" "$work/new"
git archive HEAD | tar -x -C "$work/new"
(cd "$work/new" && find . -type f) | while read -r file; do
    cmp -s "$work/new/$file" "$work/tree/$file" || {
        mkdir -p "$work/tree/$(dirname "$file")"
        cp "$work/new/$file" "$work/tree/$file"
    }
done
rm -rf "$work/new"

build() { (cd "$work/tree" && CARGO_TARGET_DIR=$work/target cargo build -q --profile "$profile" -p sim); }

# find_defect NAME OPTION...: whether the simulation fails; how and when is in `found`.
find_defect() {
    local name=$1 size
    shift
    for size in --small ''; do
        # shellcheck disable=SC2086  # no word if it is empty
        if ! "$program" $size --seconds "$seconds" --quiet "$@" >"$work/$name.txt" 2>&1; then
            found=$(grep -m 1 -e FAILED -e panicked "$work/$name.txt" || tail -n 1 "$work/$name.txt")
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
        patch --quiet -p1 -d "$work/tree" <"$patch"
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
    if [[ -e $patch ]]; then
        patch --quiet -R -p1 -d "$work/tree" <"$patch"
        # The old contents are newer than what was built.
        sed -n 's|^+++ b/||p' "$patch" | (cd "$work/tree" && xargs touch)
    fi
done
((${#missed[@]} == 0)) || { echo "not found: ${missed[*]}"; exit 1; }
