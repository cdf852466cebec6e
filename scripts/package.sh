#!/usr/bin/env bash
# Makes packages of ibsm and ibsa: .deb with cargo-deb, .rpm with cargo-generate-rpm.
#
# usage: scripts/package.sh [tools|stage|sbom|deb|rpm|image]...      deb by default
#
# tools  installs cargo-deb and cargo-generate-rpm in target/package/tools, as deb and rpm do
# stage  collects the files of each package as they will be installed, in target/package/NAME
# sbom   target/package/out/*.cdx.json, the bills of materials, which the packages contain, too
# deb    target/package/out/*.deb
# rpm    target/package/out/*.rpm
# image  a container image, in podman's storage; see packaging/Containerfile
#
# PROFILE (release): Cargo's profile; `demo` builds in a few minutes. PROGRAMS: a directory with
# ibsm, ibsmctl, ibsa and packaging, in place of a build. STAGED=1 packs what an earlier run has
# staged. RELEASE (1): counts packages of one version. FAST=1 compresses less. Of the image: IMAGE
# (ibsm), its name; BASE, the image that it is based on; PODMAN, the command.
# Equal sources give equal packages: times are those of the commit. Needs python3.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

cargo_deb=3.8.0
cargo_generate_rpm=0.21.1

profile=${PROFILE:-release}
release=${RELEASE:-1}
target=${CARGO_TARGET_DIR:-$PWD/target}
at=$PWD/target/package
out=$at/out
export PATH=$at/tools/bin:$PATH

# Whether this is git's work tree: it may be a copy within that of another project.
is_work_tree() { [[ $(git rev-parse --show-toplevel 2>/dev/null) -ef $PWD ]]; }

# The time of the commit, also in an archive that git made of it.
if [[ -z ${SOURCE_DATE_EPOCH-} ]]; then
    read -r _ SOURCE_DATE_EPOCH <daemon/revision
    if is_work_tree; then
        SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    elif [[ $SOURCE_DATE_EPOCH != +([0-9]) ]]; then
        SOURCE_DATE_EPOCH=$(stat -c %Y Cargo.toml)
    fi
fi
export SOURCE_DATE_EPOCH

build() {
    if [[ -z ${IBSM_REVISION-} && -n $(is_work_tree && git status --porcelain) ]]; then
        IBSM_REVISION=$(git rev-parse HEAD | cut -c 1-12)-changed
        export IBSM_REVISION
    fi
    # Times and paths of this machine do not belong in programs. The last prefix that fits counts.
    local home=${CARGO_HOME:-$HOME/.cargo} prefix mapped=()
    for prefix in "$PWD=." "$target=./target" "$home=cargo"; do
        mapped+=("--remap-path-prefix=$prefix")
        CFLAGS="${CFLAGS-} -ffile-prefix-map=$prefix"
    done
    # mimalloc contains when it was compiled. That is once for many commits, so it is no time of one.
    SOURCE_DATE_EPOCH=0 RUSTFLAGS="${RUSTFLAGS-} ${mapped[*]}" CFLAGS=$CFLAGS \
        cargo build --locked --profile "$profile" -p ibsm -p sa-server -p packaging --bins
    local directory=$profile
    [[ $profile != dev ]] || directory=debug
    PROGRAMS=$target/$directory
}

# put MODE SOURCE DESTINATION: a file of the package that is staged in $root.
put() { install -D -m "$1" "$2" "$root/$3"; }

stage() {
    [[ -n ${PROGRAMS-} ]] || build
    local generated=$at/generated name page
    rm -rf "$at/ibsm" "$at/ibsa" "$generated"
    "$PROGRAMS/packaging" "$generated"
    for name in ibsm ibsa; do
        root=$at/$name
        put 755 "$PROGRAMS/$name" "usr/sbin/$name"
        put 644 "packaging/units/$name.service" "usr/lib/systemd/system/$name.service"
        put 644 "packaging/units/$name@.service" "usr/lib/systemd/system/$name@.service"
        put 644 "packaging/etc/sysusers-$name.conf" "usr/lib/sysusers.d/$name.conf"
        put 644 "packaging/etc/60-$name.rules" "usr/lib/udev/rules.d/60-$name.rules"
        put 644 "packaging/etc/logrotate-$name" "etc/logrotate.d/$name"
        completions "$name"
        for page in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT; do
            put 644 "$page" "usr/share/doc/$name/$page"
        done
        for page in "$generated/man/$name".8 "$generated/man/$name"-*.8; do
            put 644 "$page" "usr/share/man/man8/${page##*/}"
        done
    done
    for page in docs/{operating,migrate-from-opensm,installing,problems,events,api}.md; do
        put 644 "$page" "usr/share/doc/ibsa/${page##*/}"
    done
    put 644 packaging/etc/ibsa.conf etc/ibsm/ibsa.conf
    put 644 packaging/units/ibsa-agent.service usr/lib/systemd/system/ibsa-agent.service
    put 644 packaging/etc/default-ibsa-agent etc/default/ibsa-agent
    root=$at/ibsm
    put 755 "$PROGRAMS/ibsmctl" usr/bin/ibsmctl
    put 755 packaging/bin/ibsm-start usr/lib/ibsm/ibsm-start
    put 755 packaging/bin/ibsm-health usr/lib/ibsm/ibsm-health
    put 644 packaging/etc/default-ibsm etc/default/ibsm
    completions ibsmctl
    for page in "$generated/man/ibsmctl"*.8; do
        put 644 "$page" "usr/share/man/man8/${page##*/}"
    done
    for page in docs/{operating,migrate-from-opensm,installing,problems,events,api}.md; do
        put 644 "$page" "usr/share/doc/ibsm/${page##*/}"
    done
    local documents=usr/share/doc
    scripts/sbom.py ibsm ibsm "$at/ibsm" usr/sbin/ibsm usr/bin/ibsmctl \
        >"$at/ibsm/$documents/ibsm/ibsm.cdx.json"
    scripts/sbom.py ibsa sa-server "$at/ibsa" usr/sbin/ibsa \
        >"$at/ibsa/$documents/ibsa/ibsa.cdx.json"
    gzip -9n "$at"/{ibsm,ibsa}/usr/share/man/man8/*.8
    find "$at/ibsm" "$at/ibsa" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

completions() {
    put 644 "$generated/completions/bash/$1.bash" "usr/share/bash-completion/completions/$1"
    put 644 "$generated/completions/zsh/_$1" "usr/share/zsh/vendor-completions/_$1"
    put 644 "$generated/completions/fish/$1.fish" "usr/share/fish/vendor_completions.d/$1.fish"
}

# tool NAME VERSION: installs a tool of Cargo unless it is there in this version.
tool() {
    [[ $("$1" --version 2>/dev/null) == *"$2" ]] ||
        cargo install --locked --root "$at/tools" --version "$2" "$1"
}

sbom() {
    local name
    mkdir -p "$out"
    for name in ibsm ibsa; do cp -p "$at/$name/usr/share/doc/$name/$name.cdx.json" "$out/"; done
}

tools() {
    tool cargo-deb "$cargo_deb"
    tool cargo-generate-rpm "$cargo_generate_rpm"
}

deb() {
    tool cargo-deb "$cargo_deb"
    mkdir -p "$out"
    rm -f "$out"/*.deb
    local variant fast=()
    [[ -z ${FAST-} ]] || fast=(--fast)
    for variant in "" ibsa; do
        cargo-deb deb --no-build --no-strip --no-dbgsym --quiet "${fast[@]}" -p packaging \
            ${variant:+--variant "$variant"} --deb-revision "$release" --output "$out/"
    done
    ls -l "$out"/*.deb
}

rpm() {
    tool cargo-generate-rpm "$cargo_generate_rpm"
    mkdir -p "$out"
    rm -f "$out"/*.rpm
    local variant fast=()
    [[ -z ${FAST-} ]] || fast=(--payload-compress none)
    for variant in "" ibsa; do
        # `builtin`: what libraries are needed is found alike on hosts with and without rpm.
        cargo-generate-rpm -p packaging ${variant:+--variant "$variant"} --target-dir "$at" \
            --auto-req builtin --set-metadata "release = \"$release\"" "${fast[@]}" \
            --output "$out/"
    done
    ls -l "$out"/*.rpm
}

image() {
    # shellcheck disable=SC2086  # a command with options
    ${PODMAN:-podman} build --format docker --no-cache --timestamp "$SOURCE_DATE_EPOCH" \
        --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" ${BASE:+--build-arg "BASE=$BASE"} \
        --tag "${IMAGE:-ibsm}" --file packaging/Containerfile "$at"
}

[[ $# -gt 0 ]] || set -- deb
for what; do
    case $what in
        tools | stage | sbom | deb | rpm | image) ;;
        *) sed -n '4,12s/^# \?//p' "$0" >&2; exit 2 ;;
    esac
done
[[ -n ${STAGED-} || $* == tools ]] || stage
for what; do
    case $what in
        tools | sbom | image) "$what" ;;
        deb | rpm) sbom; "$what" ;;
    esac
done
