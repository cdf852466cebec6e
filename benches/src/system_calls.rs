//! Programs that are killed at one of their system calls (`strace`).

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::sandbox::{PATIENCE, Program, Sandbox, can_interoperate_with};

/// Calls that change a file or a name. Those that a machine does not have are left out.
const CALLS: &str = "write,pwrite64,?writev,?pwritev,?pwritev2,ftruncate,fallocate,fsync,fdatasync,\
                     ?sync_file_range,?rename,?renameat,renameat2,?unlink,unlinkat,openat,?chmod,\
                     fchmod,fchmodat";

/// Whether programs can be killed at a system call. If not, prints the reason.
pub fn can_kill_at_calls() -> bool {
    can_interoperate_with("strace")
}

/// The command line before that of a program which is to be killed at the `nth` call, from 1, by
/// which one of its threads changes one of `files`.
pub fn killed_at(nth: u32, files: &[PathBuf]) -> Vec<String> {
    let strace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null"].map(str::to_owned);
    strace.into_iter().chain(options(nth, files)).collect()
}

/// Kills a running program at the `nth` such call from now on. What is returned ends with it, and
/// if that is dropped, the program goes on.
pub fn kill_at(sandbox: &Sandbox, program: &Program, nth: u32, files: &[PathBuf]) -> Program {
    let pid = program.pid().to_string();
    let mut argv =
        ["strace", "-f", "-qq", "-o", "/dev/null", "-p", &pid].map(str::to_owned).to_vec();
    argv.extend(options(nth, files));
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let tracer = sandbox.program("strace", &argv);
    let deadline = Instant::now() + PATIENCE;
    while !is_traced(&pid) {
        assert!(Instant::now() < deadline, "strace does not attach:\n{}", tracer.log());
        thread::sleep(Duration::from_millis(2));
    }
    tracer
}

fn options(nth: u32, files: &[PathBuf]) -> Vec<String> {
    let paths = files.iter().flat_map(|path| ["-P".to_owned(), path.display().to_string()]);
    let inject = format!("inject={CALLS}:signal=SIGKILL:when={nth}");
    let calls = ["-e".to_owned(), format!("trace={CALLS}"), "-e".to_owned(), inject];
    paths.chain(calls).collect()
}

/// Whether all threads of the process are traced, or it is gone.
fn is_traced(pid: &str) -> bool {
    let Ok(threads) = fs::read_dir(Path::new("/proc").join(pid).join("task")) else { return true };
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        !status.lines().any(|line| line == "TracerPid:\t0")
    })
}
