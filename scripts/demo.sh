#!/usr/bin/env bash
# Runs an InfiniBand subnet on this machine: a simulated fat tree of 648 hosts, the subnet manager,
# two SA responders and two storms of PathRecord queries. Everything listens on loopback, uses a
# scratch directory, and is removed at the end, on Ctrl-C too.
#
# usage: scripts/demo.sh [SECONDS]     length of each storm [default: 5]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-5}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/demo.sh [SECONDS]" >&2; exit 2; }
command -v cargo >/dev/null || {
    echo "demo: cargo is missing; install Rust from https://rustup.rs" >&2
    exit 1
}
command -v cc >/dev/null || {
    echo "demo: a C compiler is missing; try: apt-get install gcc libc6-dev" >&2
    exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-demo.XXXXXX")
socket=demo-$$
pids=()

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    if ((status != 0 && status != 130)); then
        echo; echo "demo: failed; last lines of each log:" >&2
        tail -n 5 "$work"/*.log >&2 2>/dev/null || true
    fi
    rm -rf "$work"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

# A free loopback port below the range from which the kernel assigns ports to other programs.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

# start NAME COMMAND...: runs it in the background; prefixes its output with NAME and logs it.
start() {
    local name=$1
    shift
    "$@" > >(tee "$work/$name.log" | sed -u "s/^/  $(printf %-9s "$name") | /") 2>&1 &
    pids+=($!)
}

# wait_for NAME TEXT: waits until NAME has logged TEXT, for at most a minute.
wait_for() {
    local pid=${pids[-1]}
    for ((i = 0; i < 1200; i++)); do
        grep -q -- "$2" "$work/$1.log" 2>/dev/null && return
        kill -0 "$pid" 2>/dev/null || {
            sleep 0.2
            echo "demo: $1 ended before it logged '$2'" >&2
            exit 1
        }
        sleep 0.05
    done
    echo "demo: $1 did not log '$2' within a minute" >&2
    exit 1
}

programs=(ibsm ibsa ibsmctl ibstorm ibfabric)
bin=${CARGO_TARGET_DIR:-target}/demo
say "Building ${programs[*]}"
[[ -x $bin/ibsm ]] ||
    echo "  The first build takes about 3 minutes on 2 cores (downloads not included)."
begun=$SECONDS
cargo build --profile demo "${programs[@]/#/--bin=}"
echo "  Built in $((SECONDS - begun)) s, with few optimisations;" \
    "use 'cargo build --release' to measure."

say "A three-level fat tree of 648 hosts"
"$bin/ibfabric" generate fat-tree --levels 3 --radix 36 --hosts 648 --seed 1 -o "$work/fat-tree.net"
start ibfabric "$bin/ibfabric" serve "$work/fat-tree.net" --socket "$socket"
wait_for ibfabric ready

say "The subnet manager brings up the fabric"
publish=127.0.0.1:$(free_port)
udp=127.0.0.1:$(free_port)
start ibsm "$bin/ibsm" --transport ibsim --socket "$socket" --node "node00001 HCA-1" \
    --publish "$publish" --state-dir "$work/state"
wait_for ibsm "SUBNET UP"

say "Two SA responders: one at a port of the fabric, one behind the subnet manager's front door"
start ibsa-1 "$bin/ibsa" --sm "http://$publish" --name ibsa-1 --transport ibsim --socket "$socket" \
    --node "node00002 HCA-1" --cache-dir "$work/cache-1"
wait_for ibsa-1 'serving generation'
start ibsa-2 "$bin/ibsa" --sm "http://$publish" --name ibsa-2 --transport udp --listen "$udp" \
    --cache-dir "$work/cache-2"
wait_for ibsa-2 'serving generation'

say "Clients query the subnet manager's port; it forwards to the responders ($seconds s)"
"$bin/ibstorm" --transport ibsim --socket "$socket" --node "node00003 HCA-1" \
    --sm "http://$publish" --duration "$seconds" --concurrency 8 --check --show 5

say "A storm on one responder, over UDP ($seconds s)"
"$bin/ibstorm" --transport udp --target "$udp" --sm "http://$publish" --duration "$seconds" \
    --concurrency 512 --check

say "State of the subnet"
"$bin/ibsmctl" --sm "http://$publish" status

say "Done"
