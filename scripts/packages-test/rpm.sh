#!/usr/bin/env bash
# Tests the .rpm packages with rpm itself: dependencies, installation, upgrade and removal with
# their scripts, in a root that is a copy-on-write view of this host. The host may be a Debian: a
# package made here provides what rpm's own generator finds in its libraries. Prints `skipped:` and
# a reason for what cannot be tested here.
#
# usage: scripts/packages-test/rpm.sh       PROGRAMS is set, and the packages are made of them
set -euo pipefail
[[ -n ${IBSM_OWN_MOUNTS-} ]] || IBSM_OWN_MOUNTS=1 exec unshare --mount "$0"
cd "$(dirname "$0")/../.."
. scripts/packages-test/common.sh
export FAST=1 STAGED=1
out=target/package/out

# --- Contents.
for name in ibsm ibsa; do
    package=$(echo $out/$name-*-1.*.rpm)
    # Fedora has completions of zsh elsewhere.
    expect "$(files_of $name | sed 's#/zsh/vendor-completions/#/zsh/site-functions/#' | sort)" \
        "$(rpm -qpl "$package" | sort)"
    replaced=$(rpm -qp --qf '[%{FILEFLAGS:fflags} %{FILENAMES}\n]' "$package" |
        grep ' /etc/' | grep -v '^cn ' || true)
    [[ -z $replaced ]] || fail "$name: an upgrade replaces changed settings: $replaced"
    expect 0 "$(rpm -qp --qf '[%{FILEUSERNAME} %{FILEGROUPNAME}\n]' "$package" |
        grep -cvx 'root root' || true)"
done
if command -v rpmlint >/dev/null; then
    rpmlint --config packaging/rpmlint.toml $out/*.rpm >"$work/rpmlint" || true
    grep -q ' 0 errors, 0 warnings' "$work/rpmlint" || fail "rpmlint: $(cat "$work/rpmlint")"
else
    echo "skipped: rpmlint is not installed"
fi

# --- A root whose changes are in memory, and gone at the end.
layers=$work/layers
mkdir "$layers"
mount -t tmpfs -o mode=755 layers "$layers"
trap 'umount --recursive --lazy "$layers"; rm -rf "$work"' EXIT
mkdir "$layers"/{upper,scratch,root}
root=$layers/root
if ! mount -t overlay overlay "$root" \
    -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/scratch"; then
    echo "skipped: no installation of .rpm packages, a file system cannot be laid over another"
    exit
fi
mount -t tmpfs -o mode=755 run "$root/run"
mkdir -p "$root/run/systemd/system" "$root/run/udev"
# Nothing of an ibsm of the host.
sed -i '/^ibsm:/d' "$root"/etc/{passwd,group,shadow,gshadow}
rm -rf "$root"/{etc/ibsm,etc/default/ibs{m,a-agent},var/lib/ibsm,var/lib/rpm,usr/share/doc/ibs{m,a}}
# What scripts ask of systemd and udev is recorded.
for program in systemctl udevadm; do
    path=$root$(readlink -f "$(command -v $program || echo /usr/bin/$program)")
    printf '#!/bin/sh\necho "%s $*" >>/called\n' $program >"$work/recorder"
    rm -f "$path"
    install -m 755 "$work/recorder" "$path"
done
called() { grep -qFx "$*" "$root/called" || fail "not called: $*, but $(cat "$root/called")"; }
not_called() { ! grep -F "$*" "$root/called" || fail "called: $*"; }
in_root() {
    rpm --root "$root" --dbpath /var/lib/rpm "$@" >"$work/rpm" 2>&1 ||
        fail "rpm $*: $(cat "$work/rpm")"
}

cat >"$work/host.spec" <<EOF
Name: host
Version: 1
Release: 1
Summary: What the packages need and this host has
License: MIT
BuildArch: noarch
Provides: systemd /bin/sh /bin/bash rtld(GNU_HASH)
$(ldd "$PROGRAMS"/ibs{m,mctl,a} | grep -o '/[^ ]*\.so[^ ]*' | sort -u | xargs readlink -f |
    /usr/lib/rpm/find-provides | sed 's/^/Provides: /')
%description
%files
EOF
rpmbuild -bb --quiet --define "_topdir $work/rpmbuild" "$work/host.spec" >"$work/log" 2>&1 ||
    fail "rpmbuild: $(cat "$work/log")"
if (in_root -i --test $out/ibs{m,a}-*-1.*.rpm) 2>"$work/log"; then
    fail "packages are installed without what they need"
fi
grep -q 'libc.so.6(GLIBC_.* is needed' "$work/log" || fail "no version of libc is needed"
in_root -i "$work"/rpmbuild/RPMS/noarch/host-*.rpm

# --- Installation.
: >"$root/called"
in_root -i $out/ibs{m,a}-*-1.*.rpm
in_root -V ibsm ibsa
called systemctl daemon-reload
called udevadm trigger --subsystem-match=infiniband_mad
not_called restart
not_called start
not_called enable
expect "/var/lib/ibsm:/usr/sbin/nologin" "$(sed -n 's/^ibsm:.*:\(.*:.*\)$/\1/p' "$root/etc/passwd")"
for program in ibsm ibsa ibsmctl; do
    [[ $(chroot "$root" "$program" --version) == "$program "* ]] || fail "$program does not run"
done
chroot --userspec=ibsm:ibsm "$root" ibsm check >"$work/log" || fail "ibsm check: $(cat "$work/log")"

# --- An upgrade whose settings differ, as do those of this host.
echo 'PORTS=NONE' >"$root/etc/default/ibsm"
install -d -m 750 "$root/var/lib/ibsm"
touch "$root/var/lib/ibsm/guid2lid"
for file in etc/default/ibsm etc/logrotate.d/ibsm usr/lib/systemd/system/ibsm.service; do
    echo '# of the second package' >>"target/package/ibsm/$file"
done
RELEASE=2 scripts/package.sh rpm >/dev/null
STAGED='' scripts/package.sh stage
: >"$root/called"
in_root -U $out/ibs{m,a}-*-2.*.rpm
expect 'PORTS=NONE' "$(cat "$root/etc/default/ibsm")"
for file in etc/default/ibsm.rpmnew etc/logrotate.d/ibsm usr/lib/systemd/system/ibsm.service; do
    grep -q 'of the second package' "$root/$file" || fail "$file is not the second package's"
done
called systemctl try-restart ibsm.service 'ibsm@*.service'
called systemctl try-restart ibsa.service 'ibsa@*.service' ibsa-agent.service
not_called stop
not_called disable

# --- Removal.
: >"$root/called"
in_root -e ibsm ibsa
called systemctl disable --now ibsm.service
called systemctl stop 'ibsm@*.service'
called systemctl disable --now ibsa.service ibsa-agent.service
expect 'PORTS=NONE' "$(cat "$root/etc/default/ibsm.rpmsave")"
[[ -e $root/var/lib/ibsm/guid2lid ]] || fail "the state is removed"
grep -q '^ibsm:' "$root/etc/passwd" || fail "the user of the state is removed"
left=$(cd "$layers/upper" && find etc usr ! -type c -name '*ibs[ma]*' | sort)
expect $'etc/default/ibsm.rpmnew\netc/default/ibsm.rpmsave' "$left"
echo ".rpm packages are installed, upgraded and removed"
