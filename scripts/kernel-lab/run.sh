#!/usr/bin/env bash
# Boots a stock Debian kernel in software emulation (QEMU without KVM, as any user), with two
# soft-RoCE ports, and runs one of guest/*.sh there with our programs. Exit status: the script's.
#
# usage: run.sh [-n] [-t SECONDS] [NAME]     runs guest/NAME.sh (default: ibsa); -n builds nothing
#
# Needs Debian and its packages qemu-system-x86 busybox-static cpio gzip kmod iproute2
# infiniband-diags; root only if apt-get has no package lists. Keeps its files in
# target/kernel-lab.
set -euo pipefail
lab=$(cd "$(dirname "$0")" && pwd)
cd "$lab/../.."
export PATH=$PATH:/usr/sbin:/sbin

seconds=300
build=yes
while getopts nt: option; do
    case $option in
        n) build= ;;
        t) seconds=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
script=$lab/guest/${1:-ibsa}.sh
[[ -f $script ]] || { echo "$script does not exist" >&2; exit 2; }

target=${CARGO_TARGET_DIR:-target}
work=$target/kernel-lab
"$lab/mkinitramfs.sh" "$work"
if [[ -n $build ]]; then
    # Built like the workspace's other tests, so that little has to be compiled.
    [[ -n ${IBSM_PROGRAMS-} ]] || cargo build --quiet --workspace --bins
    cargo build --quiet -p ib-mad --example sa_client --example sa_port_manager --example add_grh
    # The transport verbs needs additional build tools.
    rm -f "$target/debug/examples/ud_client"
    if command -v cmake >/dev/null &&
        [[ -n $(compgen -G '/usr/lib/llvm-*/lib/libclang*.so*') ]]; then
        cargo build --quiet -p ib-mad -p sa-server --features sa-server/verbs,ib-mad/verbs \
            --bin ibsa --example ud_client
    else
        echo "skipped: verbs, because cmake or libclang is missing"
    fi
fi

# Our files follow the base archive; the kernel unpacks one archive after the other.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/kernel-lab.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
ours=$scratch/ours
mkdir -p "$ours"/{bin,lib,lab}
programs=("$target"/debug/{ibsa,examples/sa_client,examples/sa_port_manager})
[[ ! -e $target/debug/examples/ud_client ]] || programs+=("$target/debug/examples/ud_client")
for program in "${programs[@]}"; do strip -o "$ours/bin/${program##*/}" "$program"; done
strip -o "$ours/lib/libadd_grh.so" "$target/debug/examples/libadd_grh.so"
"$lab/libraries.sh" "$ours" "${programs[@]}"
"$target/debug/lab-snapshot" "$ours/lab/cache"
cp "$script" "$ours/lab/main"
(cd "$ours" && find . | cpio -o -H newc --quiet | gzip -1) |
    cat "$work/base.cpio.gz" - >"$scratch/initrd"

status=0
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 1024 -smp 1 \
    -display none -serial stdio -monitor none -nodefaults -no-reboot \
    -kernel "$work/vmlinuz" -initrd "$scratch/initrd" -append "console=ttyS0 panic=-1 quiet" \
    </dev/null | tr -d '\r' | tee "$scratch/output" || status=$?
((status != 124)) || echo "the guest did not finish within $seconds s"
exit "$(sed -n 's/^LAB-RC //p' "$scratch/output" | tail -n 1 | grep . || echo 1)"
