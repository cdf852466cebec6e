#!/usr/bin/env bash
# Tests the packages: the start script's choice of ports, contents, installation in an empty root,
# removal. Prints `skipped:` and a reason for what cannot be tested here.
#
# usage: scripts/packages-test.sh PROGRAMS       a directory with ibsm, ibsmctl, ibsa, packaging
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }

# expect WANTED GOT: both are texts.
expect() { [[ $1 == "$2" ]] || fail "want '$1', got '$2'"; }

# --- The start script, at a host with two InfiniBand ports and an Ethernet one.
port() {
    mkdir -p "$work/sys/$1/gids"
    echo "$2" >"$work/sys/$1/link_layer"
    echo "$3" >"$work/sys/$1/gids/0"
}
port mlx5_0/ports/1 InfiniBand fe80:0000:0000:0000:0002:c903:0002:fce9
port mlx5_1/ports/1 Ethernet fe80:0000:0000:0000:0002:c9ff:fe02:fb06
port mlx5_2/ports/1 InfiniBand fe80:0000:0000:0000:0002:c903:0002:fb06
export IBSM_SYS=$work/sys IBSM_PROGRAM=echo IBSM_SYSTEMCTL=echo
start() { packaging/bin/ibsm-start "$@"; }
expect "" "$(PORTS='' OPTIONS='' start)"
expect "-v -s 5" "$(OPTIONS='-v -s 5' start)"
expect "--guid 0x0002c9030002fce9 -v" "$(PORTS=ALL OPTIONS=-v start)"
expect "--guid 0xb" "$(PORTS='0xb 0xa' start)"
expect "" "$(PORTS='' start others)$(PORTS=0xb start others)"
expect "--no-block start ibsm@0xa.service" "$(PORTS='0xb 0xa' start others)"
expect "--no-block start ibsm@0x0002c9030002fb06.service" "$(PORTS=ALL start others)"
expect "--guid 0xa --publish 127.0.0.1:7472 --state-dir /var/lib/ibsm-0xa -v" \
    "$(PORTS='0xb 0xa' OPTIONS=-v start rail 0xa)"
expect "--state-dir /var/lib/ibsm-r1 -F r1.conf" "$(PORTS=ALL OPTIONS='-F r1.conf' start rail r1)"

# --- The files of each package.
PROGRAMS=$programs scripts/package.sh stage
for name in ibsm ibsa; do
    (cd "target/package/$name" && find . -type f -printf '/%P\n') >"$work/files.$name"
done
common=$(sort "$work"/files.ibs{m,a} | uniq -d)
[[ -z $common ]] || fail "in both packages: $common"
if dpkg -L opensm >"$work/opensm" 2>/dev/null; then
    # Files are in /lib or in /usr/lib, which are one directory.
    common=$(cat "$work"/files.ibs{m,a} | grep -Fx -f <(sed 's#^/lib/#/usr/lib/#' "$work/opensm") ||
        true)
    [[ -z $common ]] || fail "files of opensm, too: $common"
else
    echo "skipped: no comparison with the files of opensm, which is not installed"
fi

# --- Debian packages.
if ! cargo-deb --version >/dev/null 2>&1; then
    echo "skipped: no packages are made, cargo-deb is not installed"
    exit
fi
PROGRAMS=$programs FAST=1 scripts/package.sh deb
for name in ibsm ibsa; do
    deb=$(echo target/package/out/"$name"_*.deb)
    dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n 's#^\./*\(.*[^/]\)$#/\1#p' >"$work/packed"
    missing=$(grep -Fxv -f "$work/packed" "$work/files.$name" | sed 's#$#.gz#' |
        grep -Fxv -f "$work/packed" || true)
    [[ -z $missing ]] || fail "$name: not packed: $missing"
    dpkg-deb --info "$deb" conffiles | grep -qx "/etc/logrotate.d/$name" ||
        fail "$name: logrotate's file is no conffile"
done

if [[ $(id -u) != 0 ]]; then
    echo "skipped: no installation in a root directory, which only root can do"
    exit
fi
# A root with the libraries and programs of this host, read-only, and an /etc and /var of its own.
root=$work/root
mkdir -p "$root"/{etc/default,var/lib/dpkg/{info,updates,triggers},var/log,run,tmp,usr/sbin}
touch "$root/var/lib/dpkg/"{status,available}
install_in() {
    dpkg --root="$root" --force-depends --force-script-chrootless --no-triggers "$@" \
        >"$work/dpkg" 2>&1 || { cat "$work/dpkg"; fail "dpkg $*"; }
}
# Scripts run without a chroot: what they would change on this host is replaced.
mkdir "$work/bin"
for program in systemd-sysusers udevadm systemctl adduser; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/called"\n' "$program" "$work" >"$work/bin/$program"
    chmod +x "$work/bin/$program"
done
# A purge's `rm -rf /var/...` as well; dpkg itself needs the others.
cat >"$work/bin/rm" <<EOF
#!/bin/sh
case "\$*" in *" /var/"*) echo "rm \$*" >>"$work/called" ;; *) exec /bin/rm "\$@" ;; esac
EOF
chmod +x "$work/bin/rm"
PATH=$work/bin:$PATH
install_in --install target/package/out/ibs{m,a}_*.deb
grep -qx 'systemd-sysusers ibsm.conf' "$work/called" || fail "the user is not made"
"$root/usr/sbin/ibsm" --version >/dev/null && "$root/usr/sbin/ibsa" --version >/dev/null
echo 'PORTS=NONE' >"$root/etc/default/ibsm"
install_in --install target/package/out/ibsm_*.deb
expect 'PORTS=NONE' "$(cat "$root/etc/default/ibsm")"
install_in --remove ibsm ibsa
[[ -e $root/etc/default/ibsm && ! -e $root/usr/sbin/ibsm ]] || fail "remove keeps settings only"
install_in --purge ibsm ibsa
left=$(find "$root" \( -name '*ibsm*' -o -name '*ibsa*' \) -print)
[[ -z $left ]] || fail "left after a purge: $left"
grep -q '^rm -rf /var/lib/ibsm ' "$work/called" || fail "a purge keeps the state"
echo "packages are installed, upgraded, removed and purged"
