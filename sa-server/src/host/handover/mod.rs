//! Descriptors that outlive their process, so that its successor answers the requests queued there.
//!
//! When no process has a umad file open, the kernel answers Get and Set of its class with status
//! 0x000c, which clients take as final. Therefore another process holds a duplicate: systemd, in
//! the unit's descriptor store, or [`holder`]. Every descriptor has a name.
//!
//! The worker of the successor decides which queued requests are too old to answer.

pub mod holder;

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use daemon::manager::ServiceManager;

/// The first descriptor that a service manager passes on (sd_listen_fds(3)).
const LISTEN_FDS_START: i32 = 3;
/// Maximum number of descriptors passed on.
const LISTEN_FDS_MAX: usize = 64;

/// Where duplicates of the descriptors are held.
#[derive(Clone, Debug)]
pub enum DescriptorStore {
    /// No store: the descriptors close with this process.
    None,
    /// systemd, or a compatible service manager.
    ServiceManager(ServiceManager),
    /// `ibsa hold` at this socket.
    Holder(PathBuf),
}

/// Descriptors that were held for this process, and the store that holds its own.
#[derive(Debug)]
pub struct HeldDescriptors {
    inherited: Vec<(String, OwnedFd)>,
    store: DescriptorStore,
}

impl HeldDescriptors {
    /// No descriptors are held.
    pub fn none() -> Self {
        Self { inherited: Vec::new(), store: DescriptorStore::None }
    }

    /// The descriptors held by a holder if one is configured, otherwise by the service manager, if
    /// there is one (`LISTEN_FDS`).
    ///
    /// # Safety
    ///
    /// Nothing else in this process uses the descriptors that `LISTEN_FDS` names. Call it once.
    pub unsafe fn of_environment(holder: Option<&Path>, manager: Option<&ServiceManager>) -> Self {
        let variable = |name| std::env::var(name).ok();
        let names = listen_names(
            &variable("LISTEN_PID").unwrap_or_default(),
            &variable("LISTEN_FDS").unwrap_or_default(),
            &variable("LISTEN_FDNAMES").unwrap_or_default(),
            std::process::id(),
        );
        let inherited = (LISTEN_FDS_START..).zip(names).filter_map(|(number, name)| {
            // SAFETY: only the descriptor's flags are touched, and the call reports whether it is
            // open.
            if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
                return None;
            }
            // SAFETY: it is open, and the caller guarantees that nothing else uses it.
            Some((name, unsafe { OwnedFd::from_raw_fd(number) }))
        });
        let store = match (holder, manager) {
            (Some(holder), _) => DescriptorStore::Holder(holder.to_owned()),
            (None, Some(manager)) => DescriptorStore::ServiceManager(manager.clone()),
            (None, None) => DescriptorStore::None,
        };
        Self { inherited: inherited.collect(), store }
    }

    /// The descriptor that was held under `name`, if there is one.
    pub fn take(&mut self, name: &str) -> io::Result<Option<OwnedFd>> {
        if let Some(at) = self.inherited.iter().position(|(held, _)| held == name) {
            return Ok(Some(self.inherited.swap_remove(at).1));
        }
        match &self.store {
            DescriptorStore::Holder(socket) => holder::take(socket, name),
            DescriptorStore::None | DescriptorStore::ServiceManager(_) => Ok(None),
        }
    }

    /// Stores a duplicate of `descriptor` under `name`, replacing an earlier one.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        match &self.store {
            DescriptorStore::None => Ok(()),
            DescriptorStore::Holder(socket) => holder::keep(socket, name, descriptor),
            DescriptorStore::ServiceManager(manager) => {
                // Two may have the same name; the older one is no longer used.
                let gone = format!("FDSTOREREMOVE=1\nFDNAME={name}");
                manager.send(gone.as_bytes(), None)?;
                manager.send(format!("FDSTORE=1\nFDNAME={name}").as_bytes(), Some(descriptor))
            }
        }
    }
}

/// The names of the descriptors that a service manager passed to the process `pid`
/// (sd_listen_fds_with_names(3)), in order.
fn listen_names(listen_pid: &str, count: &str, names: &str, pid: u32) -> Vec<String> {
    let count = count.parse().unwrap_or(0);
    if listen_pid.parse() != Ok(pid) || count > LISTEN_FDS_MAX {
        return Vec::new();
    }
    let names = names.split(':').map(str::to_owned);
    names.chain(std::iter::repeat("unknown".to_owned())).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixDatagram;

    use ib_mad::transport::local;

    /// Whether two descriptors refer to the same open file.
    fn is_same(a: &impl AsRawFd, b: &impl AsRawFd) -> bool {
        let inode =
            |number: i32| std::fs::metadata(format!("/proc/self/fd/{number}")).unwrap().ino();
        inode(a.as_raw_fd()) == inode(b.as_raw_fd())
    }

    #[test]
    fn only_what_is_passed_to_this_process_is_taken() {
        let names = |pid, count, names| listen_names(pid, count, names, 42);
        assert_eq!(names("42", "3", "umad-mlx5_0-1:x"), ["umad-mlx5_0-1", "x", "unknown"]);
        assert!(names("41", "3", "a:b:c").is_empty());
        assert!(names("42", "100000", "a").is_empty());
        assert!(names("", "", "").is_empty());
    }

    #[test]
    fn a_service_manager_is_given_the_descriptor_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let service_manager =
            ServiceManager::of_variables(path.as_os_str(), None, None, 42).unwrap();
        let descriptors = HeldDescriptors {
            store: DescriptorStore::ServiceManager(service_manager),
            ..HeldDescriptors::none()
        };
        let (file, _other) = UnixDatagram::pair().unwrap();
        descriptors.keep("umad-mlx5_0-1", file.as_fd()).unwrap();
        let mut buffer = [0; 200];
        let mut next = || {
            let (len, descriptor) = local::receive(&manager, &mut buffer).unwrap();
            (String::from_utf8_lossy(&buffer[..len]).into_owned(), descriptor)
        };
        let (text, descriptor) = next();
        assert_eq!(text, "FDSTOREREMOVE=1\nFDNAME=umad-mlx5_0-1");
        assert!(descriptor.is_none());
        let (text, descriptor) = next();
        assert_eq!(text, "FDSTORE=1\nFDNAME=umad-mlx5_0-1");
        assert!(is_same(&descriptor.unwrap(), &file));
    }

    #[test]
    fn what_was_inherited_is_taken_once() {
        let (file, _other) = UnixDatagram::pair().unwrap();
        let inherited = vec![("a".to_owned(), OwnedFd::from(file))];
        let mut descriptors = HeldDescriptors { inherited, store: DescriptorStore::None };
        assert!(descriptors.take("b").unwrap().is_none());
        assert!(descriptors.take("a").unwrap().is_some());
        assert!(descriptors.take("a").unwrap().is_none());
    }
}
