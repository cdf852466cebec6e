#!/usr/bin/env bash
# Compares our routing tables with stock OpenSM's. Generates fabrics of all kinds, some with missing
# parts, routes them with every engine of both, and prints one table. Fails if any of our figures is
# more than 2 % worse. `routing-vs-opensm --help` (cargo run -p benches --bin routing-vs-opensm)
# explains the table; the program compares other net files too.
#
# usage: scripts/routing-vs-opensm.sh [--set small|middle|large] [--seed N] [--nets DIR] [OPTION...]
#
#   --set    fabrics of about 100, 500 or 2,000 hosts [default: small]
#   --seed   selects the missing cables, switches and hosts [default: 1]
#   --nets   keeps the net files in DIR
#   OPTION   of routing-vs-opensm: --engines LIST, --vls N, --lmc N, --timeout S, --ours
#
# Needs Debian's opensm and ibsim-utils. IBSM_PROGRAMS names a directory with ibfabric and
# routing-vs-opensm; without it, the script builds them.
set -euo pipefail

set=small seed=1 nets=
options=()
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    --set) set=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --nets) nets=$(mkdir -p "$2" && cd "$2" && pwd); shift 2 ;;
    *) options+=("$1"); shift ;;
  esac
done

cd "$(dirname "$0")/.."
if [[ -z ${IBSM_PROGRAMS:-} ]]; then
  cargo build --release --quiet -p fabric-sim --bin ibfabric -p benches --bin routing-vs-opensm
  IBSM_PROGRAMS=$(pwd)/${CARGO_TARGET_DIR:-target}/release
fi
if [[ -z $nets ]]; then
  nets=$(mktemp -d)
  trap 'rm -rf "$nets"' EXIT
fi

files=()
# fabric NAME SHAPE [OPTION...]: generates a net file unless it exists.
fabric() {
  local file=$nets/$1.net
  shift
  [[ -s $file ]] || "$IBSM_PROGRAMS/ibfabric" generate "$@" --seed "$seed" -o "$file"
  files+=("$file")
}

case $set in
  small)
    fabric tree2 fat-tree --levels 2 --radix 16 --hosts 128
    fabric tree2-trunks fat-tree --levels 2 --radix 36 --hosts 100
    fabric tree2-holes fat-tree --levels 2 --radix 16 --hosts 128 --missing-links 6 \
        --missing-hosts 12
    fabric tree2-over fat-tree --levels 2 --radix 24 --hosts 150 --oversubscription 2:1
    fabric tree3 fat-tree --levels 3 --radix 8 --hosts 128
    fabric tree3-links fat-tree --levels 3 --radix 8 --hosts 128 --missing-links 4
    fabric tree3-holes fat-tree --levels 3 --radix 12 --hosts 200 --missing-links 3 \
        --missing-switches 3 --missing-hosts 8
    fabric tree3-part fat-tree --levels 3 --radix 16 --hosts 140
    fabric torus2 torus --dims 6x6 --hosts-per-switch 3
    fabric torus2-holes torus --dims 8x7 --hosts-per-switch 2 --missing-links 3
    fabric torus3 torus --dims 4x5x6 --hosts-per-switch 1
    fabric torus3-links torus --dims 5x5x5 --hosts-per-switch 1 --missing-links 2
    fabric torus3-switch torus --dims 5x5x5 --hosts-per-switch 1 --missing-switches 1
    fabric mesh2 mesh --dims 6x6 --hosts-per-switch 3
    fabric mesh3-holes mesh --dims 4x4x4 --hosts-per-switch 2 --missing-links 3 --missing-hosts 10
    fabric cube hypercube --dimensions 6 --hosts-per-switch 2
    fabric cube-holes hypercube --dimensions 6 --hosts-per-switch 2 --missing-links 4
    fabric dragonfly dragonfly --groups 9 --routers 4 --hosts-per-router 3 --global-links 2
    fabric dragonfly-holes dragonfly --groups 9 --routers 4 --hosts-per-router 3 \
        --global-links 2 --missing-links 5
    fabric random random --switches 40 --degree 4 --hosts 120
    fabric random-dense random --switches 30 --degree 8 --hosts 130
    ;;
  middle)
    fabric tree2-648 fat-tree --levels 2 --radix 36 --hosts 648
    fabric tree2-648-holes fat-tree --levels 2 --radix 36 --hosts 648 --missing-links 3 \
        --missing-switches 2 --missing-hosts 7
    fabric tree3-500 fat-tree --levels 3 --radix 16 --hosts 500
    fabric tree3-600-holes fat-tree --levels 3 --radix 16 --hosts 600 --missing-links 3 \
        --missing-hosts 7
    fabric tree3-600-lost fat-tree --levels 3 --radix 16 --hosts 600 --missing-switches 4 \
        --missing-hosts 5
    fabric tree3-540-over fat-tree --levels 3 --radix 18 --hosts 540 --oversubscription 2:1 \
        --missing-links 2
    fabric torus3-512 torus --dims 8x8x8 --hosts-per-switch 1
    fabric torus3-512-holes torus --dims 8x8x8 --hosts-per-switch 1 --missing-links 1
    fabric torus2-500 torus --dims 10x10 --hosts-per-switch 5
    fabric mesh2-500 mesh --dims 10x10 --hosts-per-switch 5 --missing-links 2
    fabric cube-512 hypercube --dimensions 8 --hosts-per-switch 2 --missing-links 2
    fabric dragonfly-540 dragonfly --groups 19 --routers 6 --hosts-per-router 5 --global-links 3 \
        --missing-links 3
    fabric random-500 random --switches 100 --degree 6 --hosts 500
    fabric random-600 random --switches 200 --degree 4 --hosts 600 --missing-hosts 10
    ;;
  large)
    fabric tree3-2000-holes fat-tree --levels 3 --radix 24 --hosts 2000 --missing-links 2 \
        --missing-hosts 6
    fabric tree2-1800-lost fat-tree --levels 2 --radix 64 --hosts 1800 --missing-switches 3
    fabric torus3-1728 torus --dims 12x12x12 --hosts-per-switch 1 --missing-links 1
    fabric mesh3-1000 mesh --dims 10x10x10 --hosts-per-switch 1
    fabric cube-2048 hypercube --dimensions 9 --hosts-per-switch 4
    fabric dragonfly-2000 dragonfly --groups 33 --routers 8 --hosts-per-router 8 --global-links 4
    fabric random-2000 random --switches 400 --degree 8 --hosts 2000
    ;;
  *)
    echo "$0: --set must be small, middle or large, not '$set'" >&2
    exit 2
    ;;
esac

"$IBSM_PROGRAMS/routing-vs-opensm" "${options[@]}" "${files[@]}"
