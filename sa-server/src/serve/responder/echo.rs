//! Echo mode: every request becomes its own answer, so that benchmarks can measure everything
//! except the query itself.

use ib_mad::transport::Packet;
use ib_mad::wire::mad::Status;
use ib_mad::wire::sa::SaMad;

use super::Outcome;
use crate::serve::answer::subject;
use crate::stats::{DropReason, Stats};

/// Makes a request its own answer.
#[inline]
pub(super) fn echo(packet: &mut Packet, stats: &Stats) -> Outcome {
    let subject = subject(packet);
    stats.count_requests(subject, 1);
    let mut mad = SaMad::new(&mut packet.mad);
    let method = mad.header().method();
    if method.is_response() {
        stats.drop_request(DropReason::UnexpectedResponse);
        return Outcome::Nothing;
    }
    mad.header_mut().set_method(method.response());
    stats.count_responses(subject, Status::OK, 1);
    Outcome::Send
}
