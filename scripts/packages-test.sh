#!/usr/bin/env bash
# Tests the packages: the start script's choice of ports, contents, installation in a root of its
# own, upgrade, removal. Prints `skipped:` and a reason for what cannot be tested here.
#
# usage: scripts/packages-test.sh PROGRAMS       a directory with ibsm, ibsmctl, ibsa, packaging
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages-test/common.sh
export PATH=$PWD/target/package/tools/bin:$PATH
# Without the symbols of debug builds, which are most of what would be packed.
programs=$work/programs
mkdir "$programs"
for program in ibsm ibsmctl ibsa packaging; do
    strip -o "$programs/$program" "$1/$program" 2>/dev/null || cp "$1/$program" "$programs/"
done

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
if ! command -v python3 >/dev/null; then
    echo "skipped: the packages are not tested, python3 is not installed"
    exit
fi
PROGRAMS=$programs scripts/package.sh stage
for name in ibsm ibsa; do
    files_of $name >"$work/files.$name"
done
for page in ibsm ibsmctl ibsa; do
    grep -qx "/usr/share/man/man8/$page.8.gz" "$work"/files.ibs{m,a} ||
        fail "$page has no manual"
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
# Those of Fedora's package, and of RHEL's: opensm.spec of 3.3.24.
cat >"$work/opensm" <<'EOF'
/usr/(sbin|bin)/(opensm|osmtest|sldd.*)
/usr/libexec/.*
/usr/lib/systemd/system/opensm.*
/usr/share/man/.*/(opensm|osmtest|torus).*
/usr/share/(doc|licenses)/opensm.*
/etc/(rdma/.*|(sysconfig|logrotate.d|rwtab.d)/opensm)
EOF
common=$(cat "$work"/files.ibs{m,a} | grep -xE -f "$work/opensm" || true)
[[ -z $common ]] || fail "files of Fedora's opensm, too: $common"


# With the checker of CycloneDX where scripts/test.sh packages has installed it.
python=target/package/tools/python/bin/python3
[[ -x $python ]] || python=python3
"$python" scripts/packages-test/sbom.py ibsm ibsa

# --- Packages, in the formats whose tools are here.
formats=(sbom)
for format in deb rpm; do
    case $format in
        deb) needs=(cargo-deb dpkg-deb) ;;
        rpm) needs=(cargo-generate-rpm rpm rpmbuild unshare) ;;
    esac
    missing=''
    for program in "${needs[@]}"; do
        command -v "$program" >/dev/null || missing+=" $program"
    done
    if [[ -n $missing ]]; then
        echo "skipped: .$format packages are not tested, this is not installed:$missing"
    else
        formats+=("$format")
    fi
done
export PROGRAMS=$programs
rm -rf target/package/out
FAST=1 STAGED=1 scripts/package.sh "${formats[@]}" >/dev/null
scripts/packages-test/reproducible.sh "${formats[@]}"
for format in "${formats[@]:1}"; do
    if [[ $(id -u) == 0 ]]; then
        "scripts/packages-test/$format.sh"
    else
        echo "skipped: .$format packages are not installed, which only root can do"
    fi
done
