#!/usr/bin/env bash
# Tests that equal sources give equal packages: the revision in `--version` is that of the commit,
# from git's work tree and from an archive of it; and packages of the same programs have the same
# bytes, from another directory, with other times of files, umask, time zone, language and number
# of processors. (rebuild.sh tests that with programs that are built twice.)
#
# usage: scripts/packages-test/reproducible.sh FORMAT...     sbom, deb, rpm: made with FAST=1 of
#        what is in PROGRAMS
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/packages-test/common.sh

# --- The revision, as daemon/build.rs finds it in a directory with the sources.
rustc --edition 2024 -o "$work/build" daemon/build.rs
revision_in() { (cd "$1/daemon" && "$work/build" | sed -n 's/.*_SUFFIX=//p'); }
export PROFILE=release
if [[ $(git rev-parse --show-toplevel 2>/dev/null) -ef $PWD ]]; then
    commit=$(git rev-parse HEAD)
    git clone --quiet --shared . "$work/clone"
    expect " (${commit:0:12})" "$(revision_in "$work/clone")"
    mkdir "$work/archive"
    git archive HEAD daemon .gitattributes | tar -x -C "$work/archive"
    expect " (${commit:0:12})" "$(revision_in "$work/archive")"
    # The same in the work tree of another project, which has other commits.
    git init --quiet "$work/other"
    git -C "$work/other" -c user.name=a -c user.email=a@b commit --quiet --allow-empty -m other
    cp -r "$work/archive" "$work/other/archive"
    expect " (${commit:0:12})" "$(revision_in "$work/other/archive")"
    mkdir "$work/other/copy"
    cp -r daemon "$work/other/copy/"
    expect "" "$(revision_in "$work/other/copy")"
else
    echo "skipped: the revision is not compared with git's, this is not its work tree"
fi
expect " (1.2-3)" "$(IBSM_REVISION=1.2-3 revision_in .)"
expect "" "$(PROFILE=debug IBSM_REVISION='' revision_in .)"

# --- The packages.
sums() { (cd "$1/target/package/out" && sha256sum -- *); }
# Its time may be that of a file, which a copy does not have.
SOURCE_DATE_EPOCH=$(stat -c %Y target/package/ibsm/usr/sbin/ibsm)
export SOURCE_DATE_EPOCH
mkdir "$work/second"
tar -c --exclude=./target --exclude=./.git . | tar -x -m -C "$work/second"
(
    cd "$work/second"
    umask 077
    find . -type d -exec chmod g-rx,o-rx {} + -o -type f -exec chmod go= {} +
    export TZ=Asia/Tokyo LC_ALL=C FAST=1
    taskset --cpu-list 0 scripts/package.sh "$@" >/dev/null
)
expect "$(sums .)" "$(sums "$work/second")"
echo "packages that are made twice have the same bytes: $*"
