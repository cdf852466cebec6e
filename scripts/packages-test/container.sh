#!/usr/bin/env bash
# Builds the image twice, without a registry: from a Debian that debootstrap makes, kept in
# target/container. Runs a simulated fabric, ibsm and ibsa in containers of it, in a network of
# their own, and asks for paths. As root.
#
# usage: scripts/packages-test/container.sh PROGRAMS
#        a directory with ibsm, ibsmctl, ibsa, packaging, ibfabric and ibstorm
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/sbin:/sbin

# --- The base, as docs/installing.md has it for a site without a registry.
base=target/container/base.tar
if [[ ! -e $base ]]; then
    mkdir -p target/container
    root=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-base.XXXXXX")
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase bookworm "$root" >"$base.log" || { cat "$base.log"; exit 1; }
    tar -C "$root" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' \
        --numeric-owner -cf "$base.new" .
    rm -rf "$root"
    mv "$base.new" "$base"
fi
# Only here, since debootstrap needs the host's network.
[[ -n ${IBSM_OWN_NETWORK-} ]] ||
    IBSM_OWN_NETWORK=1 exec unshare --net --mount scripts/packages-test/container.sh "$@"
ip link set lo up
. scripts/packages-test/common.sh

# --- The image.
# crun does not run with version 1 of cgroups. Nothing here may raise a limit.
runtime=$(command -v runc || command -v crun)
PODMAN="podman --root $work/store --runroot $work/runroot --runtime $runtime \
    --cgroup-manager cgroupfs --events-backend none"
export PODMAN
podman() { command $PODMAN "$@" 2> >(grep -v 'systemd connection' >&2); }
clean_up() {
    podman rm --all --force --time 0 >/dev/null || true
    umount "$work/store/overlay" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
podman import --quiet "$base" localhost/base >/dev/null
mkdir "$work/programs"
for program in ibsm ibsmctl ibsa packaging ibfabric ibstorm; do
    strip -o "$work/programs/$program" "$1/$program"
done
export PROGRAMS=$work/programs BASE=localhost/base BUILDAH_ISOLATION=chroot
for image in ibsm second; do
    IMAGE=$image scripts/package.sh image >"$work/log" 2>&1 || fail "$(cat "$work/log")"
done
show() { podman image inspect --format "$1" "$2"; }
expect "$(show '{{.RootFS.Layers}}' ibsm)" "$(show '{{.RootFS.Layers}}' second)"
expect "7471:7471" "$(show '{{.User}}' ibsm)"

# --- Containers, with as few rights as they get by.
run() {
    podman run --network host --read-only --cap-drop all --security-opt no-new-privileges \
        --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --health-interval disable \
        --volume "$work/programs:/lab:ro" "$@"
}
# until_true SECONDS COMMAND...
until_true() {
    local left=$1
    shift
    until "$@" >"$work/log" 2>&1; do
        ((left-- > 0)) || fail "$*: $(cat "$work/log")"
        sleep 1
    done
}
manager() {
    run --detach --volume state:/var/lib/ibsm "$@" localhost/ibsm \
        ibsm --transport ibsim --socket lab --http 127.0.0.1:9400 >/dev/null
}
is_up() { podman exec "$1" ibsmctl status --json | grep '"subnet_up": *true' >/dev/null; }
"$work/programs/ibfabric" generate fat-tree --levels 2 --radix 8 --hosts 16 \
    -o "$work/programs/small.net" 2>/dev/null
run --detach --name fabric localhost/ibsm \
    /lab/ibfabric serve --socket lab /lab/small.net >/dev/null
manager --name first
run --detach --name responder --env HEALTH_PORT=9401 localhost/ibsm \
    ibsa --sm http://127.0.0.1:7471 --transport udp --cache-dir /var/cache/ibsa \
    --http 127.0.0.1:9401 >/dev/null
until_true 60 is_up first
until_true 60 podman healthcheck run responder
podman healthcheck run first >/dev/null
for container in first responder; do
    expect 7471 "$(podman exec $container id -u)"
    expect 'CapEff: 0000000000000000' \
        "$(podman exec $container grep CapEff /proc/1/status | tr '\t' ' ')"
done
run --rm localhost/ibsm /lab/ibstorm --transport ibsim --socket lab --node "node00003 HCA-1" \
    --sm http://127.0.0.1:7471 --queries 100 --concurrency 4 --check >"$work/storm" ||
    fail "$(cat "$work/storm")"

# --- A stop is in order, the state is in the volume, and a healthcheck can fail.
lids=$(podman exec first cat /var/lib/ibsm/guid2lid)
podman stop --time 20 first >/dev/null
expect 0 "$(podman inspect --format '{{.State.ExitCode}}' first)"
manager --name again --env HEALTH_PORT=9499
until_true 60 is_up again
expect "$lids" "$(podman exec again cat /var/lib/ibsm/guid2lid)"
! podman healthcheck run again >/dev/null 2>&1 || fail "healthy at a port without a server"
answered=$(awk '$1 == "answered" { print $2 }' "$work/storm")
expect 100 "$answered"
echo "ibsm and ibsa answer $answered queries in containers"
