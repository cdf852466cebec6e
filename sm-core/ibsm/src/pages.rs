//! Controls the size of memory pages.

/// Makes the kernel use only base pages for this process from here on, regardless of the system's
/// default for transparent huge pages, which the allocator asks for. Huge pages suit programs that
/// read the same tables all the time. The manager allocates new tables at each change; huge pages
/// would be cleared while a fabric waits for its routes, although most of their memory is not
/// needed, and stay resident. Child processes inherit this setting. A failure is ignored.
pub(crate) fn use_small_ones() {
    // SAFETY: this option takes a number and no pointers; the other arguments must be 0.
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
        let size = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
            line.map(|size| size.trim().to_owned())
        };
        if size().is_none() {
            return eprintln!("skipped: this kernel does not report THP_enabled (Linux 5.0 does)");
        }
        use_small_ones();
        assert_eq!(size().as_deref(), Some("0"));
    }
}
