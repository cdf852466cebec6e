#!/usr/bin/env bash
# Plants each defect and expects the simulation to find it.
#
# usage: scripts/sim-mutants.sh [--seconds N] [NAME...]    all defects unless NAMEs are given
#
# NAME is that of a patch in sim/mutants, applied to a copy of this tree, or a defect of `--plant`.
# N (300) limits the search for each.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=300
if [[ ${1-} == --seconds ]]; then seconds=$2; shift 2; fi
plants=(no-sync lost-writes stale-tables deaf-clients)
names=("$@")
if ((${#names[@]} == 0)); then
    names=("${plants[@]}")
    for patch in sim/mutants/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi
profile=${SIM_PROFILE:-release}
binary=target/${profile/dev/debug}/sim
copy=$(mktemp -d "${TMPDIR:-/tmp}/sim-mutants.XXXXXX")
trap 'rm -rf "$copy"' EXIT
missed=()
for name in "${names[@]}"; do
    options=(--seconds "$seconds" --quiet)
    if [[ -e sim/mutants/$name.patch ]]; then
        rm -rf "$copy/tree"
        mkdir "$copy/tree"
        git archive HEAD | tar -x -C "$copy/tree"
        patch --quiet -p1 -d "$copy/tree" <"sim/mutants/$name.patch"
        (cd "$copy/tree" && CARGO_TARGET_DIR=$copy/target cargo build --quiet -p sim --profile "$profile")
        program=$copy/${binary}
    else
        cargo build --quiet -p sim --profile "$profile"
        program=$binary
        options+=(--plant "$name")
    fi
    began=$SECONDS
    if "$program" "${options[@]}" >"$copy/out"; then
        missed+=("$name")
        printf '%-20s not found in %d s\n' "$name" "$((SECONDS - began))"
    else
        printf '%-20s found in %d s: %s\n' "$name" "$((SECONDS - began))" "$(grep -m1 FAILED "$copy/out")"
    fi
done
((${#missed[@]} == 0)) || { echo "not found: ${missed[*]}"; exit 1; }
