//! How a process divides the descriptors that it may have among its servers, so that however many
//! clients connect, some are left for what it cannot do without: files of its state, its log, its
//! transports, and connections that it makes itself.

use rustix::process::{Resource, getrlimit};

/// Limit of connections of a gRPC server, and the part of all descriptors that they may have,
/// eighths.
const GRPC_MAX: usize = 4096;
const GRPC_PART: u64 = 3;
/// The same of an HTTP server.
const HTTP_MAX: usize = 256;
const HTTP_PART: u64 = 1;
/// So many connections are accepted in any case.
const MIN: usize = 16;

/// The number of descriptors that a process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors(u64);

impl Descriptors {
    /// Those of this process now (`RLIMIT_NOFILE`).
    pub fn of_process() -> Self {
        Self(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    /// This number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Connections of the process's gRPC server.
    pub fn for_grpc(self) -> usize {
        self.part(GRPC_PART, GRPC_MAX)
    }

    /// Connections of each of its HTTP servers, of which there are at most two.
    pub fn for_http(self) -> usize {
        self.part(HTTP_PART, HTTP_MAX)
    }

    fn part(self, eighths: u64, max: usize) -> usize {
        usize::try_from(self.0 / 8 * eighths).unwrap_or(usize::MAX).clamp(MIN, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with 1,024 to 4,608 descriptors, which are defaults of systems, one server left
    /// 512 over, and two others used these up: nothing could be written to the state directory.
    #[test]
    fn three_eighths_are_left_however_many_there_are() {
        for limit in [128, 256, 1024, 4096, 4608, 1 << 20] {
            let descriptors = Descriptors::new(limit);
            let used = descriptors.for_grpc() + 2 * descriptors.for_http();
            assert!(used as u64 <= limit / 8 * 5, "{used} of {limit}");
        }
        let many = Descriptors::new(u64::MAX);
        assert_eq!((many.for_grpc(), many.for_http()), (GRPC_MAX, HTTP_MAX));
        assert_eq!(Descriptors::new(0).for_grpc(), MIN);
    }
}
