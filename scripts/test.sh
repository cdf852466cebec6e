#!/usr/bin/env bash
# Runs every check of this project; CI runs nothing else. Each step prints the time it took.
#
# usage: scripts/test.sh [STEP...]      all steps unless STEPs are given; -l lists them
#
# Installs the programs that the interop tests need with apt-get if that needs no password.
# Otherwise the tests that need them are skipped, and listed. FUZZ_SECONDS (60) limits the fuzzing,
# SIM_SECONDS (60) the simulation;
# FUZZ_WITH=libfuzzer selects coverage-guided fuzzing.
set -euo pipefail
shopt -s globstar nullglob extglob
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin # opensm, saquery etc., also for users other than root
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

# Program or file, and the Debian package that contains it.
interop_needs=(
    ibsim:ibsim-utils
    saquery:infiniband-diags
    opensm:opensm
    prometheus:prometheus
    tshark:tshark
    curl:curl
    openssl:openssl
    etcd:etcd-server
    faketime:faketime
    strace:strace
    chromium:chromium
    chromedriver:chromium-driver
    /usr/include/infiniband/iba/ib_types.h:libopensm-dev
)
fuzz_seconds=${FUZZ_SECONDS:-60}
sim_seconds=${SIM_SECONDS:-60}
logs=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-test.XXXXXX")
# Processes of steps that run beside others, each the leader of a group.
declare -A running=()
clean_up() {
    local leader
    for leader in "${running[@]}"; do kill -- -"$leader" 2>/dev/null || true; done
    rm -rf "$logs"
}
trap clean_up EXIT

# --- The steps: functions named step_NAME, in the order of `steps`. Their output is shown if they
# fail; the arguments of `note` are always shown.

steps=(tools format deny tests lints layers doc_tests docs package kernel sim fuzz versus counts
    install)

# Steps that run only if they are asked for: they need tools that take minutes to build.
extra=(boot packages container)

# If all steps run, these run one after the other beside the programs of `tests`, which wait much,
# with the lowest priority.
beside_tests=(lints layers doc_tests docs package)

# These run beside those that follow, since each leaves a core idle. They end last.
beside=(kernel sim fuzz)

note() { printf '%s\n' "$*" >>"$logs/notes.$step"; }

# Tools of the Rust toolchain, and the programs of the interop tests.
step_tools() {
    command -v cargo || { echo "cargo is missing; install Rust from https://rustup.rs"; return 1; }
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version || rustup component add "$component"
    done
    local script
    for script in scripts/*.sh scripts/{kernel-lab,boot-lab,packages-test}/*.sh; do
        bash -O extglob -n "$script"
    done

    local absent
    absent=$(absent_packages "${interop_needs[@]}")
    if [[ -n $absent ]] && may_install; then
        # shellcheck disable=SC2086  # several packages
        install_packages $absent || note "apt-get could not install: $absent"
    fi
    absent=$(absent_packages "${interop_needs[@]}")
    [[ -z $absent ]] || note "interop tests that need these Debian packages are skipped:" $absent
}

# absent_packages NEED...: prints the packages of the missing programs and files.
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

# Formatting, and docs/compliance.md agrees with what the code cites: checks that take seconds.
step_format() {
    cargo fmt --all --check
    if command -v python3; then
        scripts/compliance.py --check
    else
        note "skipped: docs/compliance.md is not checked, python3 is not installed"
    fi
}

step_lints() { cargo clippy --workspace --all-targets -- -D warnings; }

# Checks licences, origins and duplicates of all dependencies, and advisories about them where their
# database can be fetched. See deny.toml.
step_deny() {
    if ! cargo deny --version; then
        note "skipped: dependencies are not checked, cargo-deny is not installed"
        return
    fi
    cargo deny --locked check bans licenses sources
    if timeout 120 cargo deny --locked fetch db; then
        cargo deny --locked check advisories
    else
        note "skipped: advisories are not checked, their database cannot be fetched"
    fi
}

# Checks which crate uses which, and that crates without I/O depend on no library that does any.
# clippy.toml forbids I/O of std in these crates.
step_layers() {
    may_use ib-mad
    may_use sa-proto ib-mad
    may_use daemon ib-mad
    may_use umad-preload ib-mad
    may_use umad-feed
    may_use fabric-sim ib-mad umad-preload
    may_use sm-routing ib-mad sa-proto
    may_use sm-config ib-mad sa-proto sm-routing
    may_use sm-core ib-mad sa-proto sm-routing sm-config
    may_use ibsm daemon ib-mad sa-proto sm-routing sm-config sm-core
    may_use sa-server daemon ib-mad sa-proto
    may_use loadgen ib-mad sa-proto
    may_use packaging daemon ib-mad sa-proto sm-routing sm-config sm-core ibsm sa-server
    may_use sim daemon ib-mad umad-preload sa-proto sm-routing sm-config sm-core ibsm sa-server \
        fabric-sim
    # The two halves of the system are not linked together, not even in tests.
    if { dependencies ibsm normal,build,dev; dependencies sa-server normal,build,dev; } |
        sort | uniq -d | grep -x 'ibsm\|sm-core\|sm-config\|sm-routing\|sa-server'; then
        echo "ibsm and sa-server must not depend on each other, not even in tests"
        return 1
    fi
    has_no_io ib-mad ib-mad --no-default-features
    has_no_io sa-proto sa-proto --no-default-features
    has_no_io sm-routing sm-core/routing
    has_no_io sm-config sm-core/config
    has_no_io sm-core sm-core
    # The state machines of the programs.
    denies_io sm-core/ibsm/src/node/mod.rs
    denies_io sm-core/ibsm/src/history/mod.rs
    denies_io sm-core/ibsm/src/runtime/follow/machine.rs
    denies_io sa-server/src/sm/replica/machine.rs
    denies_io sa-server/src/sm/forward/machine.rs
}

# has_no_io CRATE DIR [OPTION...]: no dependency of CRATE does I/O, and its lib.rs turns on
# the lints of clippy.toml, which forbid I/O of std.
has_no_io() {
    local crate=$1 dir=$2 found
    shift 2
    if found=$(cargo tree -p "$crate" -e normal --prefix none --format '{p}' "$@" |
        grep -E \
            '^(tokio|tonic|hyper|axum|mio|socket2|rustix|nix|libc|redb|procfs|async-|futures)' |
        sort -u); then
        printf '%s must do no I/O, but depends on: %s\n' "$crate" "${found//$'\n'/, }"
        return 1
    fi
    denies_io "$dir/src/lib.rs"
    cargo check -p "$crate" "$@"
}

# denies_io FILE: the module of FILE turns on the lints of clippy.toml, which forbid I/O of std.
denies_io() {
    grep -q '^#!\[cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))\]$' "$1" ||
        { echo "$1 does not turn on the lints of clippy.toml"; return 1; }
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
    cargo tree -p "$1" -e "$2" --prefix none --format '{p}' |
        grep -F "($PWD/" | cut -d' ' -f1 | sort -u
}

step_tests() {
    [[ -n $(absent_packages "${interop_needs[@]}") ]] || export IBSM_REQUIRE_INTEROP=1
    # `follow_tests`, `repeat_failed` and the notes read the output.
    export CARGO_TERM_COLOR=never CARGO_TERM_QUIET=false
    local tests=(cargo test --workspace --lib --tests)
    timeout 2400 "${tests[@]}" --no-run
    timeout 600 cargo build --workspace --examples
    use_tested_programs
    # The same cases of property tests in each run, so that a change is blamed for what it broke.
    # Another seed tries others: see CONTRIBUTING.md.
    export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
    # Most of the time of whole-system tests is spent waiting.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
    local status=0
    timeout 2400 "${tests[@]}" --no-fail-fast -- --show-output || status=$?
    : >"$logs/tests_have_run"
    ((status == 0)) || repeat_failed "${tests[@]}"
    sed -n 's/^skipped: */skipped: /p' "$logs/tests" | sort | uniq -c >>"$logs/notes.tests"
    note "$(awk '/^test result:/ { n += $4 } END { print n " tests" }' "$logs/tests")"
}

# repeat_failed COMMAND...: runs the tests that failed again, alone, and names those that pass now:
# they depend on time or order, and are to be mended. More than three are a failure, and so is a
# test program that ended without its summary. Alone means after the steps `beside_tests`, which
# hold the lock of the target directory, too: the time limit is for the tests only.
repeat_failed() {
    local failed targets
    mapfile -t failed < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$logs/tests" | sort -u)
    ((${#failed[@]} > 0 && ${#failed[@]} <= 3)) || return 1
    targets=$(grep -cE '^    `-.*`$' "$logs/tests")
    ((targets == $(grep -c '^test result: FAILED' "$logs/tests"))) || return 1
    export RUST_TEST_THREADS=1
    local others=${running[beside_tests]-}
    while [[ -n $others ]] && kill -0 "$others" 2>/dev/null; do sleep 0.2; done
    timeout 600 "$@" --no-fail-fast -- --exact "${failed[@]}" >"$logs/again" 2>&1 ||
        { cat "$logs/again"; return 1; }
    local name
    for name in "${failed[@]}"; do
        grep -qxF "test $name ... ok" "$logs/again" || return 1
        note "unstable: $name failed among the others, and passed alone"
    done
}

# Makes whole-system tests use the programs of the tests' build, if there was one. A separate build
# would have other features and take minutes.
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
# The same for the transport verbs, which is skipped without them.
verbs_needs=(
    cmake:cmake
    /usr/share/doc/libclang-dev:libclang-dev
    /etc/libibverbs.d/rxe.driver:ibverbs-providers
)

# Runs ibsa on a real kernel in software emulation: the umad device, the kernel's RMPP.
step_kernel() {
    local reason
    if ! reason=$(lab_absence); then
        note "skipped: $reason"
        # Missing packages that could be installed are a failure.
        [[ -z ${IBSM_REQUIRE_INTEROP-}${CI-} ]] || ! may_install
        return
    fi
    use_tested_programs
    scripts/kernel-lab/run.sh
    sed -n 's/^skipped: */skipped: /p' "$logs/kernel" >>"$logs/notes.kernel"
    local release
    release=$(sed -n 's/^kernel \([^,]*\),.*/\1/p' "$logs/kernel")
    note "$(grep -c '^PASS' "$logs/kernel") checks on Linux $release"
}

# Installs the kernel lab's packages if that needs no password, or prints why the lab cannot run.
lab_absence() {
    [[ $(uname -m) == x86_64 ]] || { echo "the kernel lab needs an x86_64 machine"; return 1; }
    command -v apt-get >/dev/null || { echo "the kernel lab needs Debian's apt-get"; return 1; }
    local absent
    absent=$(absent_packages "${lab_needs[@]}" "${verbs_needs[@]}")
    if [[ -n $absent ]] && may_install >/dev/null; then
        # shellcheck disable=SC2086  # several packages
        install_packages $absent >&2 || true
        absent=$(absent_packages "${lab_needs[@]}")
    fi
    [[ -z $absent ]] || { echo "Debian packages are missing: $absent"; return 1; }
    [[ -e ${CARGO_TARGET_DIR:-target}/kernel-lab/kernel/done ||
        -n $(apt-cache pkgnames linux-image-amd64) ]] ||
        { echo "package linux-image-amd64 is not available (run apt-get update?)"; return 1; }
}

# Simulates the whole system with faults, seed after seed.
step_sim() {
    [[ -e $logs/tests ]] || timeout 2400 cargo build --workspace --bin sim
    local store seconds
    for store in file etcd; do
        [[ $store == file ]] && seconds=$((sim_seconds * 3 / 4)) || seconds=$((sim_seconds / 4))
        timeout $((seconds + 120)) "${CARGO_TARGET_DIR:-$PWD/target}/debug/sim" --quiet \
            --seconds "$seconds" $([[ $store == file ]] && echo --files || echo --etcd --small)
    done
    note "$(grep -m 1 'hours simulated' "$logs/sim")"
}

# Checks that the comparison with OpenSM works and prints all rows, at a tiny scale. The figures
# mean nothing here, because these are debug builds.
step_versus() {
    command -v opensm || { note "skipped: opensm is not installed"; return; }
    use_tested_programs
    # Of the whole workspace, so that dependencies have the features of the tests' build.
    timeout 600 cargo bench --profile dev --workspace --bench versus -- --hosts 64 --quick --json \
        "$logs/versus.json"
    # Every row of the table on standard output is in the file, with a ratio above 0.
    local rows ratios
    rows=$(grep -c '"name"' "$logs/versus.json")
    ratios=$(grep -cE '"ratio": (0\.0*[1-9]|[1-9])' "$logs/versus.json")
    ((rows == 14 && ratios == rows)) || { cat "$logs/versus.json"; return 1; }
}

# Compares instructions per query with those accepted in benches/counts.json. The figures do not
# depend on other load of the machine. Uses the tests' build if there was one, which takes seconds.
step_counts() {
    command -v valgrind || { may_install && install_packages valgrind; } ||
        { note "skipped: valgrind is not installed"; return; }
    [[ -e $logs/tests ]] || timeout 2400 cargo build -p benches --bin instructions
    timeout 600 "${CARGO_TARGET_DIR:-$PWD/target}/debug/instructions"
    sed -nE '/^(skipped|cheaper|new|gone|dearer|to accept)/p' "$logs/counts" >>"$logs/notes.counts"
}

step_doc_tests() { timeout 600 cargo test --workspace --doc; }

step_docs() {
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps
}

# Checks the files of the packages, and makes the packages if cargo-deb is installed, from the
# programs of the tests' build, if there was one. Nothing in them may be a file of `opensm`.
step_install() {
    local file
    for file in packaging/bin/* packaging/deb/*/* packaging/rpm/*; do sh -n "$file"; done
    if ! command -v systemd-analyze; then
        note "skipped: units are not checked, systemd-analyze is not installed"
    else
        local units=$logs/units unit
        mkdir "$units"
        # What a unit runs does not have to be installed here.
        for unit in packaging/units/*.service; do
            sed -E 's#(/usr/sbin/ibs[am]|/usr/lib/ibsm/ibsm-start|/sbin/modprobe)#/bin/true#
                    /^Documentation=/d' "$unit" >"$units/${unit##*/}"
        done
        for unit in ibsm ibsa; do cp "$units/$unit@.service" "$units/$unit@rail.service"; done
        systemd-analyze verify "$units"/ibs{m,a,a-agent}.service "$units"/ibs{m,a}@rail.service
    fi
    local programs=${CARGO_TARGET_DIR:-$PWD/target}/debug
    [[ -x $programs/packaging ]] || cargo build --workspace --bins
    scripts/packages-test.sh "$programs"
    sed -n 's/^skipped: */skipped: /p' "$logs/$step" >>"$logs/notes.$step"
}

# Tests the packages with all tools, so that nothing is skipped, and builds them twice to compare.
step_packages() {
    local absent tools=target/package/tools
    absent=$(absent_packages rpm:rpm rpmlint:rpmlint strip:binutils \
        /usr/share/doc/python3-venv:python3-venv)
    # shellcheck disable=SC2086  # several packages
    [[ -z $absent ]] || install_packages $absent
    scripts/package.sh tools
    [[ -x $tools/python/bin/pip ]] || python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet 'cyclonedx-python-lib[json-validation]>=11,<12'
    step_install
    if grep '^skipped' "$logs/packages"; then return 1; fi
    scripts/packages-test/rebuild.sh sbom deb rpm
    note "$(tail -n 1 "$logs/packages")"
}

# Boots Debian with systemd, and installs, upgrades and removes the packages there.
step_boot() {
    local needs=(debootstrap:debootstrap qemu-system-x86_64:qemu-system-x86 cpio:cpio
        strip:binutils) absent
    absent=$(absent_packages "${needs[@]}")
    # shellcheck disable=SC2086  # several packages
    [[ -z $absent ]] || install_packages $absent
    cargo build --workspace --bins
    scripts/boot-lab/run.sh -t 1500
    note "$(grep -c '^PASS' "$logs/boot") checks in a booted system"
}

# Builds the container image without a registry, and runs the programs in containers.
step_container() {
    local absent
    absent=$(absent_packages debootstrap:debootstrap podman:podman runc:runc strip:binutils \
        ip:iproute2)
    # shellcheck disable=SC2086  # several packages
    [[ -z $absent ]] || install_packages $absent
    cargo build --workspace --bins
    scripts/packages-test/container.sh "${CARGO_TARGET_DIR:-$PWD/target}/debug"
    note "$(grep "^ibsm and ibsa" "$logs/container")"
}

# Checks that `ib-mad` can be published: its manifest is complete, the package contains README and
# licences, depends on no path, and builds from its own files alone, without features. It does not
# check that a registry accepts it: `cargo publish --dry-run -p ib-mad` does, and needs the network.
step_package() {
    local package=(cargo package -p ib-mad --allow-dirty --no-default-features) file
    "${package[@]}" --offline || "${package[@]}"
    "${package[@]}" --list >"$logs/packaged"
    for file in README.md LICENSE-APACHE LICENSE-MIT src/lib.rs examples/sa_client.rs; do
        grep -qx "$file" "$logs/packaged" || { echo "$file is not in the package"; return 1; }
    done
}

# Runs a plain mutation loop over all targets. With FUZZ_WITH=libfuzzer, runs libFuzzer, which is
# coverage-guided but needs a full build with a nightly toolchain, some ten minutes.
step_fuzz() {
    local mutate=(cargo run --quiet -p ibsm-fuzz --example mutate --)
    # The binary of the tests' build, if there was one.
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
            timeout $((each + 120)) cargo +nightly fuzz run --features libfuzzer \
                --sanitizer none "$target" -- \
                -max_total_time="$each" -timeout=10 -rss_limit_mb=2048 -max_len=8192 \
                -print_final_stats=1
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
        cargo +nightly fuzz build --features libfuzzer --sanitizer none || {
            echo "the targets do not build with libFuzzer"
            return 1
        }
    } >"$logs/libfuzzer" 2>&1
}

# --- Running them.

# perform STEP: runs it with its output in a file.
perform() {
    local step=$1
    : >"$logs/notes.$step"
    (
        set -e
        "step_$step"
    ) >"$logs/$step" 2>&1
}

# report STEP STATUS SECONDS: ends the program if the step failed.
report() {
    local name=$1 status=$2 seconds=$3
    if ((status != 0)); then
        printf 'FAILED after %d s\n' "$seconds"
        sed 's/^/    /' "$logs/notes.$name"
        # With many tests, the failed ones may be far above the end of the log.
        # (awk reads to the end: `head` would end grep, and with it this script, by SIGPIPE.)
        grep -nE -A 20 'panicked at|\.\.\. FAILED|^error' "$logs/$name" | awk 'NR <= 200' || true
        tail -n 100 "$logs/$name"
        echo "$name failed; to run it alone: scripts/test.sh $name"
        exit 1
    fi
    printf '%d s\n' "$seconds"
    sed 's/^/    /' "$logs/notes.$name"
}

run_step() {
    local name=$1 begun=$SECONDS status
    printf '%-10s ... ' "${name//_/ }"
    # Not `if (...)` or `(...) ||`: these would disable `set -e` inside.
    set +e
    perform "$name"
    status=$?
    set -e
    report "$name" "$status" $((SECONDS - begun))
}

# start NAME COMMAND...: runs a command in a group of processes of its own.
start() {
    local name=$1
    shift
    set -m
    (
        set +em
        "$@"
    ) &
    running[$name]=$!
    set +m
}

# perform_timed STEP [NICENESS]: as `perform`, and writes the status and the seconds to a file.
perform_timed() {
    local begun=$SECONDS
    renice -n "${2-0}" $BASHPID >/dev/null
    perform "$1"
    echo "$? $((SECONDS - begun))" >"$logs/status.$1"
}

# Runs the steps `beside_tests` once the tests are built. `cargo test` holds the lock of the target
# directory until it has begun to run them.
follow_tests() {
    until [[ -e $logs/tests_have_run ]] || grep -qsE '^ +Running ' "$logs/tests"; do sleep 1; done
    local name
    for name in "${beside_tests[@]}"; do perform_timed "$name" 19; done
}

# finish STEP...: waits for steps that run beside others, and reports them.
finish() {
    local name leader status seconds
    for name; do
        printf '%-10s ... ' "${name//_/ }"
        leader=${running[$name]-${running[beside_tests]}}
        while [[ ! -s $logs/status.$name ]] && kill -0 "$leader" 2>/dev/null; do sleep 0.2; done
        [[ -s $logs/status.$name ]] || echo "1 0" >"$logs/status.$name"
        read -r status seconds <"$logs/status.$name"
        report "$name" "$status" "$seconds"
        unset "running[$name]"
    done
}

if [[ ${1-} == -l ]]; then
    printf '%s\n' "${steps[@]}" "${extra[@]/%/    (not by default)}"
    exit
fi
for name in "$@"; do
    declare -F "step_$name" >/dev/null || {
        echo "no step '$name'; the steps are: ${steps[*]}" >&2
        exit 2
    }
done
if (($# > 0)); then
    for name; do run_step "$name"; done
    echo "passed: $*"
    exit
fi
for name in "${steps[@]}"; do
    if [[ " ${beside_tests[*]} " == *" $name "* ]]; then
        continue
    elif [[ " ${beside[*]} " == *" $name "* ]]; then
        # The kernel lab takes longest.
        start "$name" perform_timed "$name" $([[ $name == kernel ]] || echo 19)
        continue
    elif [[ $name == tests ]]; then
        start beside_tests follow_tests
    elif [[ $name == versus ]]; then
        finish "${beside_tests[@]}"
    fi
    run_step "$name"
done
finish "${beside[@]}"
echo "all checks passed in $SECONDS s"
