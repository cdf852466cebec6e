#!/usr/bin/env bash
# Tests the .deb packages: contents, installation in an empty root, upgrade, removal. As root.
#
# usage: scripts/packages-test/deb.sh       PROGRAMS is set, and the packages are made of them
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/packages-test/common.sh

for name in ibsm ibsa; do
    deb=$(echo target/package/out/"$name"_*.deb)
    dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n 's#^\./*\(.*[^/]\)$#/\1#p' >"$work/packed"
    missing=$(files_of "$name" | grep -Fxv -f "$work/packed" | sed 's#$#.gz#' |
        grep -Fxv -f "$work/packed" || true)
    [[ -z $missing ]] || fail "$name: not packed: $missing"
    dpkg-deb --info "$deb" conffiles | grep -x "/etc/logrotate.d/$name" >/dev/null ||
        fail "$name: logrotate's file is no conffile"
done
# Regression: no unit ran the agent, and those of ibsa lack the capability that it needs.
dpkg-deb --info target/package/out/ibsa_*.deb conffiles | grep -x /etc/default/ibsa-agent \
    >/dev/null || fail "the options of the agent are no conffile"
dpkg-deb --fsys-tarfile target/package/out/ibsa_*.deb |
    tar -xO ./usr/lib/systemd/system/ibsa-agent.service |
    grep -x 'CapabilityBoundingSet=CAP_NET_ADMIN' >/dev/null || fail "the agent lacks CAP_NET_ADMIN"

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
echo ".deb packages are installed, upgraded, removed and purged"
