//! Which statuses answers may have.

use ib_mad::wire::mad::Status;

use super::World;
use crate::client::Ask;
use crate::violation::Violation;

/// Whether what is asked may be answered so. `may_refuse`: a store cannot write. `may_be_gone`: the
/// requester's port may have left the fabric.
fn permits(ask: Ask, status: Status, may_refuse: bool, may_be_gone: bool) -> bool {
    match ask {
        _ if status == Status::OK || status == Status::BUSY => true,
        Ask::Get(_) | Ask::Path(_) | Ask::Inside(..) | Ask::Reach(_) => {
            // Without its registry a manager has queries for registrations refused.
            status == Status::SA_NO_RECORDS || (may_refuse && status == Status::SA_NO_RESOURCES)
        }
        // What is not there need not be withdrawn.
        Ask::Put(_, None) if status == Status::SA_NO_RECORDS => true,
        Ask::Put(_, None) if status == Status::SA_REQ_INVALID => true,
        Ask::Put(..) => {
            (may_refuse && status == Status::SA_NO_RESOURCES)
                || (may_be_gone && status == Status::SA_REQ_INVALID)
        }
    }
}

impl World {
    /// Fails if a client got a final status for something that goes on.
    pub(super) fn check_status(
        &self,
        client: usize,
        ask: Ask,
        status: Status,
    ) -> Result<(), Violation> {
        let may_refuse = self.etcd.is_none() && self.episode.disk_failed;
        if permits(ask, status, may_refuse, self.has_moved) {
            return Ok(());
        }
        Err(Violation(format!("client {client}: {ask:?} was answered with {status:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_refused_only_if_it_cannot_be_stored_or_its_port_is_gone() {
        let refused = |status, disk, gone| permits(Ask::Put(0, Some(1)), status, disk, gone);
        assert!(!refused(Status::SA_NO_RESOURCES, false, true));
        assert!(refused(Status::SA_NO_RESOURCES, true, false));
        assert!(!refused(Status::SA_REQ_INVALID, true, false));
        assert!(refused(Status::SA_REQ_INVALID, false, true));
        assert!(refused(Status::BUSY, false, false));
        assert!(permits(Ask::Put(0, None), Status::SA_REQ_INVALID, false, false));
        assert!(!permits(Ask::Get(0), Status::SA_REQ_INVALID, true, true));
        assert!(permits(Ask::Get(0), Status::SA_NO_RESOURCES, true, false));
        assert!(!permits(Ask::Get(0), Status::SA_NO_RESOURCES, false, true));
    }
}
