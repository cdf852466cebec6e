//! Owners of requests.
//!
//! Each kind of request has one owner, which the table in `smp::request` names: the part of the
//! manager that sends it, writes its data and handles its outcome. An owner sees the [`Subnet`] and
//! its own data: the stage under way, a field of the `Sweeper`, or none.

use std::time::Instant;

use ib_mad::wire::mad::Status;

use super::Subnet;
use crate::smp::Request;

/// A request, with its kind among those of its owner.
pub(in crate::sweep) struct OwnedRequest<K> {
    pub(in crate::sweep) kind: K,
    pub(in crate::sweep) request: Request,
    /// The time of the call.
    pub(in crate::sweep) now: Instant,
}

/// A part of the manager that sends requests. Each of its requests comes back to it exactly once:
/// by [`answered`](Self::answered), [`refused`](Self::refused) or [`silent`](Self::silent), unless
/// all requests are cancelled.
pub(in crate::sweep) trait RequestOwner {
    /// Its kinds of requests.
    type Kind;

    /// Returns the AttributeModifier, and writes what a Set() sets into `data`, which holds zeros.
    /// `None` if there is no longer anything to set. Called for every attempt.
    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32>;

    /// Handles the attribute of a response with status 0.
    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]);

    /// Handles a response with another status. By default, reports it.
    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        subnet.report_refusal(owned.request, status);
    }

    /// Handles a request that got no response after all attempts. By default, reports it.
    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        subnet.report_silence(owned.request);
    }
}

/// A step in the life of a request, which its owner handles.
pub(in crate::sweep) enum Step<'a> {
    /// The request is about to be sent: fill in this data.
    Encode(&'a mut [u8; 64]),
    /// A response with status 0 arrived, with this attribute.
    Answered(&'a [u8; 64]),
    /// A response with another status arrived.
    Refused(Status),
    /// No response arrived after all attempts.
    Silent,
}

/// A step of a request on its way to the owner.
pub(in crate::sweep) struct Call<'a> {
    pub(in crate::sweep) subnet: &'a mut Subnet,
    pub(in crate::sweep) now: Instant,
    pub(in crate::sweep) request: Request,
    pub(in crate::sweep) step: Step<'a>,
}

impl Call<'_> {
    pub(in crate::sweep) fn to<O: RequestOwner>(self, owner: &mut O, kind: O::Kind) -> Option<u32> {
        let Self { subnet, now, request, step } = self;
        let owned = OwnedRequest { kind, request, now };
        match step {
            Step::Encode(data) => return owner.encode(subnet, owned, data),
            Step::Answered(data) => owner.answered(subnet, owned, data),
            Step::Refused(status) => owner.refused(subnet, owned, status),
            Step::Silent => owner.silent(subnet, owned),
        }
        None
    }
}
