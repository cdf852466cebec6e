//! The size of the pages that memory comes in.

/// Has all of this process's memory come in pages of the base size from here on, whatever the system
/// does for others. The allocator asks for huge ones (transparent huge pages), which suits who reads the
/// same tables all the time. The manager makes new ones at each change: huge pages of which it needs
/// little are cleared while a fabric waits for its routes, and stay resident. Programs that it starts
/// are told the same. If it cannot be had, nothing is worse than without.
pub(crate) fn use_small_ones() {
    // SAFETY: this option takes a number and no pointers; the other arguments have to be 0.
    let _ = unsafe {
        let [yes, no]: [libc::c_ulong; 2] = [1, 0];
        libc::prctl(libc::PR_SET_THP_DISABLE, yes, no, no, no)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_no_huge_pages_any_more() {
        let told = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
            line.map(|told| told.trim().to_owned())
        };
        if told().is_none() {
            return eprintln!("skipped: this kernel does not tell of huge pages (Linux 5.0 does)");
        }
        use_small_ones();
        assert_eq!(told().as_deref(), Some("0"));
    }
}
