#!/usr/bin/env bash
# Drives `ibsm --api` with the UFM plug-in of ib-kubernetes, unchanged, on a simulated fabric of
# 10,000 hosts, and checks that every acknowledged GUID is listed and no removed one is.
#
# usage: scripts/ib-kubernetes/run.sh CHECKOUT [GUIDS [KILLS]]
#
# CHECKOUT is a clone of https://github.com/Mellanox/ib-kubernetes. GUIDS [3000] are added, a third
# of them is removed again; the manager is killed KILLS [0] times, 20 s apart, and started again.
# PROGRAMS names the directory of ibsm, ibsmctl and ibfabric [target/release].
#
# Needs Debian's golang-go, golang-github-rs-zerolog-dev and golang-github-caarlos0-env-dev. They
# are older than go.mod of ib-kubernetes requires, so the plug-in is built without modules; env, of
# which it imports version 11, has the same functions.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[[ ${1-} && -e $1/pkg/sm/plugins/ufm/ufm.go ]] || {
    echo "usage: $0 CHECKOUT [GUIDS [KILLS]]; CHECKOUT is a clone of ib-kubernetes" >&2
    exit 2
}
checkout=$(cd "$1" && pwd) guids=${2:-3000} kills=${3:-0}
programs=$(cd "${PROGRAMS:-$here/../../target/release}" && pwd)
libraries=/usr/share/gocode/src/github.com
for library in rs/zerolog caarlos0/env; do
    [[ -d $libraries/$library ]] || {
        echo "$libraries/$library is missing: see the head of $0" >&2
        exit 1
    }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/ib-kubernetes.XXXXXX")
pids=()
cleanup() {
    local status=$?
    trap - EXIT
    for pid in "${pids[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    ((status == 0)) || tail -n 5 "$work"/*.log >&2
    rm -rf "$work"
    exit "$status"
}
trap cleanup EXIT

source=$work/src/github.com
mkdir -p "$source/Mellanox" "$source/caarlos0/env"
ln -s "$checkout" "$source/Mellanox/ib-kubernetes"
cp -r "$libraries/caarlos0/env" "$source/caarlos0/env/v11"
mkdir "$work/src/drive" && cp "$here/drive.go" "$work/src/drive"
export GO111MODULE=off GOPATH=$work:/usr/share/gocode GOFLAGS=
(
    cd "$source/Mellanox/ib-kubernetes"
    go build -buildmode=plugin -o "$work/ufm.so" \
        github.com/Mellanox/ib-kubernetes/pkg/sm/plugins/ufm
    go build -o "$work/drive" drive
)

# The publishing address and that of the API: free ports of loopback.
read -r publish api < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(socket.getsockname()[1] for socket in sockets))')
name=k8s-$$
"$programs/ibfabric" generate fat-tree --levels 3 --radix 40 --hosts 10000 -o "$work/net" \
    2>/dev/null
"$programs/ibfabric" serve --socket "$name" "$work/net" >"$work/ibfabric.log" 2>&1 &
pids+=($!)
until grep -q ready "$work/ibfabric.log"; do sleep 0.1; done
echo secret | "$programs/ibsmctl" password admin >"$work/users"

start_manager() {
    "$programs/ibsm" --transport ibsim --socket "$name" --node "node00001 HCA-1" \
        --state-dir "$work/state" --publish "127.0.0.1:$publish" \
        --api "127.0.0.1:$api" --api-users "$work/users" >>"$work/ibsm.log" 2>&1 &
    manager=$!
    pids+=("$manager")
}
start_manager
until grep -q 'SUBNET UP' "$work/ibsm.log"; do sleep 0.1; done

UFM_USERNAME=admin UFM_PASSWORD=secret UFM_ADDRESS=127.0.0.1 UFM_PORT=$api UFM_HTTP_SCHEMA=http \
    "$work/drive" "$work/ufm.so" "$guids" &
driver=$!
pids+=("$driver")
for ((kill = 0; kill < kills; kill++)); do
    sleep 20
    kill -0 "$driver" 2>/dev/null || break
    kill -9 "$manager"
    wait "$manager" 2>/dev/null || true # its state directory is free then
    start_manager
done
wait "$driver"
