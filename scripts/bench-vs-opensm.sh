#!/usr/bin/env bash
# OpenSM and us on the same simulated fabric, in one go: CPU time a query with the transport taken
# out of both, writes, start, and answers while a link fails; see docs/benchmarks.md. Everything
# lives in a scratch directory and on private sockets, and is gone afterwards, on Ctrl-C too.
#
# usage: scripts/bench-vs-opensm.sh [--hosts N] [--json FILE] [--radix R] [--quick]
#
# Needs stock opensm: apt-get install opensm ibsim-utils infiniband-diags
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin # opensm, for users too
command -v opensm >/dev/null || [[ " $* " == *" --help "* ]] || {
    echo "opensm is not installed: apt-get install opensm ibsim-utils infiniband-diags" >&2
    exit 1
}
IBSM_BENCHMARK=versus exec "$(dirname "$0")/bench.sh" "$@"
