#!/usr/bin/env bash
# Every check of this project; CI runs nothing else. Each step tells how long it took.
#
# usage: scripts/test.sh [STEP...]      all steps unless some are named; -l lists them
#
# Programs that the interop tests talk to are installed with apt-get if that needs no password;
# else the tests that need them are skipped, by name. FUZZ_SECONDS (60) bounds the fuzzing;
# FUZZ_WITH=libfuzzer has it follow coverage.
set -euo pipefail
shopt -s globstar nullglob extglob
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin # opensm, saquery and their like, for users too
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

# Program or file, and the Debian package it is in.
interop_needs=(
    ibsim:ibsim-utils
    saquery:infiniband-diags
    opensm:opensm
    prometheus:prometheus
    tshark:tshark
    openssl:openssl
    chromium:chromium
    chromedriver:chromium-driver
    /usr/include/infiniband/iba/ib_types.h:libopensm-dev
)
fuzz_seconds=${FUZZ_SECONDS:-60}
logs=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-test.XXXXXX")
trap 'rm -rf "$logs"' EXIT

# --- The steps: functions named step_NAME, in the order of `steps`. What they print is shown if
# they fail; what they pass to `note` is shown always.

steps=(tools format lints layers tests versus counts kernel doc_tests docs fuzz)

note() { printf '%s\n' "$*" >>"$logs/notes"; }

# Compilers' helpers, and the programs of the interop tests.
step_tools() {
    command -v cargo || { echo "cargo is missing; install Rust from https://rustup.rs"; return 1; }
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version || rustup component add "$component"
    done
    local script
    for script in scripts/*.sh scripts/kernel-lab/*.sh; do bash -O extglob -n "$script"; done

    local absent
    absent=$(absent_packages "${interop_needs[@]}")
    if [[ -n $absent ]] && may_install; then
        # shellcheck disable=SC2086  # several packages
        install_packages $absent || note "apt-get could not install: $absent"
    fi
    absent=$(absent_packages "${interop_needs[@]}")
    [[ -z $absent ]] || note "interop tests that need these Debian packages are skipped:" $absent
}

# absent_packages NEED...: the packages of those that are not there.
absent_packages() {
    local need
    for need; do
        [[ -e ${need%:*} ]] || command -v "${need%:*}" >/dev/null || printf '%s ' "${need#*:}"
    done
}

may_install() { command -v apt-get && { [[ $(id -u) == 0 ]] || sudo -n true; }; }

install_packages() {
    local as_root=()
    [[ $(id -u) == 0 ]] || as_root=(sudo -n)
    as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get)
    "${as_root[@]}" update && "${as_root[@]}" install -y --no-install-recommends "$@"
}

step_format() { cargo fmt --all --check; }

step_lints() { cargo clippy --workspace --all-targets -- -D warnings; }

# Who may know whom; and that what must not do I/O, does none.
step_layers() {
    may_use ib-mad
    may_use sa-proto ib-mad
    may_use umad-preload ib-mad
    may_use umad-feed
    may_use fabric-sim ib-mad umad-preload
    may_use sm-core ib-mad sa-proto
    may_use sa-server ib-mad sa-proto
    may_use loadgen ib-mad sa-proto
    # Not even in tests do the two halves of the system meet.
    if { dependencies sm-core normal,build,dev; dependencies sa-server normal,build,dev; } |
        sort | uniq -d | grep -x 'sm-core\|sa-server'; then
        echo "sm-core and sa-server must not know each other, not even in tests"
        return 1
    fi
    cargo check -p ib-mad --no-default-features

    local file impure=0 io='(Tcp(Stream|Listener)|(Udp|Unix)[A-Z]\w+)\b|std::(fs|thread|process)\b|tokio|async fn|\.await\b|(Instant|SystemTime)::now\(\)'
    for file in ib-mad/src/@(types|wire|rmpp|transaction|dissect){.rs,/**/*.rs} \
        fabric-sim/preload/src/@(stack|umad){.rs,/**/*.rs} \
        sm-core/src/@(dump|fabric|front_door|manage|mastership|notice|observe|registry|routing|smp|sweep|trap){.rs,/**/*.rs}; do
        [[ $file != *test*.rs && -f $file ]] || continue
        # Tests stand at the foot of a file and may do what they like.
        if sed '/^#\[cfg(test)\]$/,$d; s|//.*||' "$file" | grep -nE "$io" | sed "s|^|$file:|"; then
            impure=1
        fi
    done
    ((impure == 0)) || { echo "sockets, clocks, threads and async do not belong there"; return 1; }
}

# may_use CRATE OTHER...: CRATE uses no other crates of this workspace than these.
may_use() {
    local crate=$1 used
    shift
    for used in $(dependencies "$crate" normal,build); do
        [[ " $crate $* " == *" $used "* ]] || { echo "$crate must not depend on $used"; return 1; }
    done
}

# dependencies CRATE EDGES: the crates of this workspace that CRATE depends on, itself included.
dependencies() {
    cargo tree -p "$1" -e "$2" --prefix none --format '{p}' | grep -F "($PWD/" | cut -d' ' -f1 | sort -u
}

step_tests() {
    [[ -n $(absent_packages "${interop_needs[@]}") ]] || export IBSM_REQUIRE_INTEROP=1
    local tests=(cargo test --workspace --lib --tests)
    timeout 2400 "${tests[@]}" --no-run
    timeout 600 cargo build --workspace --examples
    use_tested_programs
    timeout 2400 "${tests[@]}" --no-fail-fast -- --show-output
    sed -n 's/^skipped: */skipped: /p' "$logs/tests" | sort | uniq -c >>"$logs/notes"
    note "$(awk '/^test result:/ { n += $4 } END { print n " tests" }' "$logs/tests")"
}

# Has whole systems made of the programs that the tests were built with, if they were, rather than
# of others: what Cargo builds by itself has other features and takes minutes.
use_tested_programs() {
    [[ ! -e $logs/tests ]] || export IBSM_PROGRAMS=${CARGO_TARGET_DIR:-$PWD/target}/debug
}

# Programs or files of the kernel lab, and their Debian packages.
lab_needs=(
    qemu-system-x86_64:qemu-system-x86
    /usr/share/doc/busybox-static:busybox-static
    cpio:cpio
    modprobe:kmod
    rdma:iproute2
    saquery:infiniband-diags
    strip:binutils
)
# The same for the transport verbs, which is left out without them.
verbs_needs=(
    cmake:cmake
    /usr/share/doc/libclang-dev:libclang-dev
    /etc/libibverbs.d/rxe.driver:ibverbs-providers
)

# ibsa on a real kernel, which boots in software emulation: the umad device, the kernel's RMPP.
step_kernel() {
    local reason
    if ! reason=$(lab_absence); then
        note "skipped: $reason"
        # Where it could be installed it has to be.
        [[ -z ${IBSM_REQUIRE_INTEROP-}${CI-} ]] || ! may_install
        return
    fi
    use_tested_programs
    scripts/kernel-lab/run.sh
    sed -n 's/^skipped: */skipped: /p' "$logs/kernel" >>"$logs/notes"
    note "$(grep -c '^PASS' "$logs/kernel") checks on Linux $(sed -n 's/^kernel \([^,]*\),.*/\1/p' "$logs/kernel")"
}

# Installs what the kernel lab needs, if that needs no password; or says why it cannot run.
lab_absence() {
    [[ $(uname -m) == x86_64 ]] || { echo "its kernel is for x86_64"; return 1; }
    command -v apt-get >/dev/null || { echo "its kernel is Debian's, and there is no apt-get"; return 1; }
    local absent
    absent=$(absent_packages "${lab_needs[@]}" "${verbs_needs[@]}")
    if [[ -n $absent ]] && may_install >/dev/null; then
        # shellcheck disable=SC2086  # several packages
        install_packages $absent >&2 || true
        absent=$(absent_packages "${lab_needs[@]}")
    fi
    [[ -z $absent ]] || { echo "Debian packages are missing: $absent"; return 1; }
    [[ -e ${CARGO_TARGET_DIR:-target}/kernel-lab/kernel/done || -n $(apt-cache pkgnames linux-image-amd64) ]] ||
        { echo "there is no package linux-image-amd64 here (apt-get update?)"; return 1; }
}

# The comparison with OpenSM at a tiny scale: that it works and says what it is to say. Its figures
# mean nothing here, the programs being built to be debugged.
step_versus() {
    command -v opensm || { note "skipped: opensm is not installed"; return; }
    use_tested_programs
    timeout 600 cargo bench --profile dev -p benches --bench versus -- --hosts 64 --quick --json "$logs/versus.json"
    # Every row of the table on standard output is one of the file, and has a ratio above 0.
    local rows ratios
    rows=$(grep -c '"name"' "$logs/versus.json")
    ratios=$(grep -cE '"ratio": (0\.0*[1-9]|[1-9])' "$logs/versus.json")
    ((rows == 14 && ratios == rows)) || { cat "$logs/versus.json"; return 1; }
}

# Instructions a query, against those accepted in benches/counts.json: a figure that does not depend
# on what else the machine does. Of what the tests were built with, if they were: it takes seconds.
step_counts() {
    command -v valgrind || { may_install && install_packages valgrind; } ||
        { note "skipped: valgrind is not installed"; return; }
    [[ -e $logs/tests ]] || timeout 2400 cargo build -p benches --bin instructions
    timeout 600 "${CARGO_TARGET_DIR:-$PWD/target}/debug/instructions"
    sed -nE '/^(skipped|cheaper|new|gone|dearer|to accept)/p' "$logs/counts" >>"$logs/notes"
}

step_doc_tests() { timeout 600 cargo test --workspace --doc; }

step_docs() { RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps; }

# A plain mutation loop over all targets; with FUZZ_WITH=libfuzzer by libFuzzer, which follows what
# the code does but has everything built again by a nightly toolchain, for some ten minutes.
step_fuzz() {
    local mutate=(cargo run --quiet -p ibsm-fuzz --example mutate --)
    # That of the tests' build, if there was one.
    [[ ! -e $logs/tests ]] || mutate=("${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/mutate")
    "${mutate[@]}" list >"$logs/targets"
    local targets target
    mapfile -t targets <"$logs/targets"
    local each=$(((fuzz_seconds + ${#targets[@]} - 1) / ${#targets[@]}))

    if [[ ${FUZZ_WITH-} == libfuzzer ]]; then
        libfuzzer_ready || { cat "$logs/libfuzzer"; return 1; }
        note "fuzzed with libFuzzer, ${each} s each: ${targets[*]}"
        for target in "${targets[@]}"; do
            "${mutate[@]}" seed "$target" "fuzz/corpus/$target"
            timeout $((each + 120)) cargo +nightly fuzz run --features libfuzzer --sanitizer none "$target" -- \
                -max_total_time="$each" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1
        done
    else
        note "fuzzed with the mutation loop, ${each} s each: ${targets[*]}"
        for target in "${targets[@]}"; do
            timeout $((each + 60)) "${mutate[@]}" run "$target" "$each"
        done
    fi
}

libfuzzer_ready() {
    {
        cargo +nightly --version || { echo "no nightly toolchain"; return 1; }
        cargo fuzz --version || cargo install cargo-fuzz --locked ||
            { echo "cargo-fuzz cannot be installed"; return 1; }
        cargo +nightly fuzz build --features libfuzzer --sanitizer none || { echo "the targets do not build with it"; return 1; }
    } >"$logs/libfuzzer" 2>&1
}

# --- Running them.

run_step() {
    local name=$1 begun=$SECONDS status
    printf '%-10s ... ' "${name//_/ }"
    : >"$logs/notes"
    # Not `if (...)` nor `(...) ||`: there `set -e` would not hold within.
    set +e
    (
        set -e
        "step_$name"
    ) >"$logs/$name" 2>&1
    status=$?
    set -e
    if ((status != 0)); then
        printf 'FAILED after %d s\n' $((SECONDS - begun))
        sed 's/^/    /' "$logs/notes"
        # Of many tests, those that failed may stand far above the end.
        grep -nE -A 20 'panicked at|\.\.\. FAILED|^error' "$logs/$name" | head -n 200
        tail -n 100 "$logs/$name"
        echo "$name failed; to run it alone: scripts/test.sh $name"
        exit 1
    fi
    printf '%d s\n' $((SECONDS - begun))
    sed 's/^/    /' "$logs/notes"
}

if [[ ${1-} == -l ]]; then
    printf '%s\n' "${steps[@]}"
    exit
fi
for name in "$@"; do
    declare -F "step_$name" >/dev/null || { echo "no step '$name'; there are: ${steps[*]}" >&2; exit 2; }
done
for name in "${@:-${steps[@]}}"; do run_step "$name"; done
if (($# == 0)); then echo "all checks passed in $SECONDS s"; else echo "passed: $*"; fi
