//! Which CPUs threads run on, and how they yield to each other.

use std::io;

/// The CPUs that the calling thread may run on.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call, which writes no more than its size.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every number is below the size of the set.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_set).collect())
}

/// Keeps the calling thread, and those that it starts from now on, on `cpus`.
pub fn keep_to(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set outlives the call, which only reads it.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the calling thread yield to those that answer queries, where CPUs are scarce. Best effort:
/// nothing but time depends on it.
pub fn yield_to_workers() {
    const NICE: libc::c_int = 10;
    // SAFETY: a plain system call; on Linux 0 is the calling thread, not its process.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_kept() {
        let last = *allowed().unwrap().last().unwrap();
        let child = std::thread::spawn(move || {
            keep_to(&[last]).unwrap();
            (allowed().unwrap(), std::thread::spawn(allowed).join().unwrap().unwrap())
        });
        assert_eq!(child.join().unwrap(), (vec![last], vec![last]));
        assert!(keep_to(&[libc::CPU_SETSIZE as usize]).is_err(), "no such CPU");
    }
}
