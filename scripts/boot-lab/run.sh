#!/usr/bin/env bash
# Boots a Debian system with systemd in software emulation (QEMU without KVM), installs the packages
# there, and runs guest.sh: services, upgrades under a storm of queries, removal. Exit status: that
# of guest.sh.
#
# usage: scripts/boot-lab/run.sh [-t SECONDS]
#
# PROGRAMS: a directory with ibsm, ibsmctl, ibsa, packaging, ibfabric and ibstorm [target/debug].
# Needs root, Debian's debootstrap, qemu-system-x86, cpio and binutils, and the packages' tools,
# which scripts/package.sh installs. Keeps the system without our packages in target/boot-lab.
set -euo pipefail
lab=$(cd "$(dirname "$0")" && pwd)
cd "$lab/../.."
export PATH=$PATH:/usr/sbin:/sbin

seconds=600
while getopts t: option; do
    case $option in
        t) seconds=$OPTARG ;;
        *) exit 2 ;;
    esac
done
for program in debootstrap qemu-system-x86_64 cpio strip; do
    command -v "$program" >/dev/null || { echo "$program is missing: see the head of $0"; exit 1; }
done
[[ $(id -u) == 0 ]] || { echo "only root can make a Debian system"; exit 1; }

target=${CARGO_TARGET_DIR:-$PWD/target}
programs=${PROGRAMS:-$target/debug}
work=$target/boot-lab
root=$work/root
mkdir -p "$work"

# A minimal Debian with systemd, and opensm, which the packages must get along with.
if [[ ! -e $work/done ]]; then
    rm -rf "$root"
    debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,dbus,udev,kmod,logrotate,opensm,man-db \
        bookworm "$root" >"$work/debootstrap.log"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* \
        "$root"/usr/share/{doc,locale,info,i18n}/*
    # The consoles belong to the lab.
    ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
    ln -sf /dev/null "$root/etc/systemd/system/getty@tty1.service"
    ln -sf /dev/null "$root/etc/systemd/system/multi-user.target.wants/opensm.service"
    touch "$work/done"
fi
if [[ ! -e $work/vmlinuz ]]; then
    apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt-get update -qq
    package=$(apt-cache depends linux-image-amd64 |
        awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    (cd "$work" && apt-get download -qq "$package" && dpkg-deb -x "$package"_*.deb kernel)
    # ibsm asks the kernel, by netlink, which user owns a connection.
    version=$(ls "$work/kernel/lib/modules")
    modules=lib/modules/$version
    for module in net/ipv4/{inet,tcp,udp}_diag net/unix/unix_diag fs/autofs/autofs4; do
        [[ ! -e $work/kernel/$modules/kernel/$module.ko ]] ||
            install -D -m 644 "$work/kernel/$modules/kernel/$module.ko" \
                "$root/$modules/kernel/$module.ko"
    done
    cp "$work/kernel/$modules"/modules.{order,builtin} "$root/$modules/"
    chroot "$root" depmod "$version"
    touch "$work/done" # after the archive
    cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
    rm -rf "$work/kernel" "$work"/linux-image-*.deb
fi

# The programs and packages, in an archive of their own that the kernel unpacks after the first.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/boot-lab.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
ours=$scratch/ours
mkdir -p "$scratch/programs" "$ours/lab" "$ours/etc/systemd/system/multi-user.target.wants"
for program in ibsm ibsmctl ibsa packaging ibfabric ibstorm; do
    strip -o "$scratch/programs/$program" "$programs/$program"
done
PROGRAMS=$scratch/programs FAST=1 scripts/package.sh deb
cp "$target"/package/out/*.deb "$scratch"/programs/{ibfabric,ibstorm} "$lab/guest.sh" "$ours/lab/"
cp "$lab/lab.service" "$ours/etc/systemd/system/"
ln -s ../lab.service "$ours/etc/systemd/system/multi-user.target.wants/"
archive() { (cd "$1" && find . -xdev | cpio -o -H newc --quiet); }
[[ $work/root.cpio -nt $work/done ]] || archive "$root" >"$work/root.cpio"
archive "$ours" | cat "$work/root.cpio" - >"$scratch/initrd"

status=0
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 3072 -smp 1 \
    -display none -serial stdio -monitor none -nodefaults -no-reboot \
    -kernel "$work/vmlinuz" -initrd "$scratch/initrd" \
    -append "console=ttyS0 panic=-1 rdinit=/sbin/init systemd.show_status=0 quiet" \
    </dev/null | stdbuf -oL tr -d '\r' | tee "$scratch/output" || status=$?
((status != 124)) || echo "the guest did not finish within $seconds s"
exit "$(sed -n 's/^LAB-RC //p' "$scratch/output" | tail -n 1 | grep . || echo 1)"
