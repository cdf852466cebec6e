#!/usr/bin/env bash
# Compares OpenSM with ibsm and ibsa on the same simulated fabric, in one run: CPU time per query
# without the transport of either, writes, start, and answers while a link fails; see
# docs/benchmarks.md. Files are in a scratch directory and sockets are private; all are removed
# afterwards, on Ctrl-C too.
#
# usage: scripts/bench-vs-opensm.sh [--hosts N] [--json FILE] [--radix R] [--quick]
#            [--writes | --our-writes [--open N] [--etcd DIR] | --scale-out]
#
# Needs stock opensm: apt-get install opensm ibsim-utils infiniband-diags
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin # opensm, also for users other than root
if [[ " $* " == *" --help "* ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit
fi
command -v opensm >/dev/null || {
    echo "opensm is not installed: apt-get install opensm ibsim-utils infiniband-diags" >&2
    exit 1
}
IBSM_BENCHMARK=versus exec "$(dirname "$0")/bench.sh" "$@"
