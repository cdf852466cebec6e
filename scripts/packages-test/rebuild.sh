#!/usr/bin/env bash
# Builds programs and packages of the last commit twice and compares their bytes: in a clone, and in
# another directory from an archive that git made, with another target directory, umask, time zone
# and number of processors. Takes the time of two builds.
#
# usage: scripts/packages-test/rebuild.sh FORMAT...      sbom, deb, rpm. PROFILE [demo]
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/packages-test/common.sh
export PROFILE=${PROFILE:-demo} PATH=$PWD/target/package/tools/bin:$PATH
unset CARGO_TARGET_DIR SOURCE_DATE_EPOCH IBSM_REVISION
commit=$(git rev-parse HEAD)

git clone --quiet --shared . "$work/clone"
"$work/clone/scripts/package.sh" "$@"
mkdir -p "$work/of/an/archive"
git archive HEAD | tar -x -m -C "$work/of/an/archive"
(
    umask 077
    export TZ=Asia/Tokyo LC_ALL=C CARGO_TARGET_DIR=$work/elsewhere
    taskset --cpu-list 0 "$work/of/an/archive/scripts/package.sh" "$@"
)
version=$("$work/clone/target/package/ibsm/usr/sbin/ibsm" --version)
[[ $version == *"(${commit:0:12})" ]] || fail "$version is not of commit $commit"
sums() { (cd "$1/target/package/$2" && find . -type f -print0 | sort -z | xargs -0 sha256sum --); }
for directory in ibsm ibsa out; do
    expect "$(sums "$work/clone" $directory)" "$(sums "$work/of/an/archive" $directory)"
done
echo "programs and packages that are built twice have the same bytes: $*"
