#!/usr/bin/env bash
# Creates vmlinuz and base.cpio.gz in DIRECTORY: a stock Debian kernel with its InfiniBand MAD stack
# over soft-RoCE, busybox, and the programs that the guest's scripts call. Installs nothing; the
# kernel's package is only unpacked. Does nothing if base.cpio.gz is newer than all lab files.
#
# usage: mkinitramfs.sh DIRECTORY
set -euo pipefail
lab=$(cd "$(dirname "$0")" && pwd)
work=$1
mkdir -p "$work"
work=$(cd "$work" && pwd)

if [[ -e $work/base.cpio.gz && -z $(find "$lab" -newer "$work/base.cpio.gz") ]]; then
    echo "kernel $(ls "$work/kernel/lib/modules"), up to date"
    exit
fi

if [[ ! -e $work/kernel/done ]]; then
    apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt-get update -qq
    package=$(apt-cache depends linux-image-amd64 |
        awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    [[ -n $package ]] || {
        echo "package linux-image-amd64 not found: the kernel lab needs Debian"
        exit 1
    }
    rm -rf "$work/kernel" && mkdir "$work/kernel"
    (
        cd "$work" && apt-get download -qq "$package" &&
            dpkg-deb -x "$package"_*.deb kernel && rm "$package"_*.deb
    )
    touch "$work/kernel/done"
fi
version=$(ls "$work/kernel/lib/modules")
cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
[[ -e $work/kernel/lib/modules/$version/modules.dep.bin ]] || depmod -b "$work/kernel" "$version"

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,lab,modules,lib64}
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$lab/guest/init" "$root/init"
cp "$lab"/guest/*.sh "$root/lab/"
chmod +x "$root/init"

# Modules, in load order. rdma_rxe requests crc32 by name, so it is not among the dependencies.
for module in crc32_generic veth sch_netem rdma_rxe ib_umad ib_uverbs; do
    modprobe -d "$work/kernel" -S "$version" --show-depends "$module" 2>/dev/null |
        awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file" >>"$root/modules/order"
done

# put PROGRAM [NAME]: copies a program of this machine and the libraries it needs.
put() {
    cp "$(command -v "$1")" "$root/bin/${2:-$1}"
    "$lab/libraries.sh" "$root" "$(command -v "$1")"
}
# busybox has its own ip and tc, which its shell prefers.
put ip rip
put tc rtc
put rdma
put saquery

# libibverbs, which our programs load when they start, and its provider for soft-RoCE.
verbs=/usr/lib/x86_64-linux-gnu/libibverbs
if compgen -G "$verbs/librxe-rdmav*.so" >/dev/null; then
    mkdir -p "$root$verbs" "$root/etc/libibverbs.d"
    cp "$verbs"/librxe-rdmav*.so "$root$verbs/"
    cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
    cp -L /usr/lib/x86_64-linux-gnu/libibverbs.so.1 "$root/lib/x86_64-linux-gnu/"
    "$lab/libraries.sh" "$root" /usr/lib/x86_64-linux-gnu/libibverbs.so.1 "$verbs"/librxe-rdmav*.so
fi

(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/base.cpio.gz"
echo "kernel $version, $(wc -l <"$root/modules/order") modules," \
    "$(du -k "$work/base.cpio.gz" | cut -f1) KiB"
