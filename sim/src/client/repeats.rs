//! What a repeat of a request is answered: what the first was.
//!
//! Now and then the first answer to a write is lost, and those to its repeats for some time. What
//! it was is known here, and not to the client.

use std::time::{Duration, Instant};

use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Status;
use ib_mad::wire::sa::{DATA_LEN, SaMad};

use super::{Ask, Client, Context, TID_MASK};
use crate::random::Random;

/// Of so many writes the first answer of one is lost.
const LOST_OF: usize = 10;
/// For how long the answers to its repeats are lost, at most.
const LOST_TIME: Duration = Duration::from_secs(6);
/// Requests until a client gives up whose answers are lost: less than managers remember outcomes.
pub(super) const TRIES_MAX: u32 = 12;
/// How long after it sent a request first a client still gets the first answer: for 10 s managers
/// remember outcomes, in whole seconds.
const REMEMBERED: Duration = Duration::from_secs(9);

/// An answer that was lost.
#[derive(Clone, Debug)]
pub(super) struct First {
    status: Status,
    data: [u8; DATA_LEN],
    /// The reign in which it was given.
    reign: u64,
    /// Until when the answers to repeats are lost, too.
    until: Instant,
}

/// Whether the answer to a repeat arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It does.
    Arrives,
    /// It is lost.
    Lost,
    /// It differs from the first answer, which another manager has given if this is true.
    Differs(String, bool),
}

impl Client {
    /// Decides whether an answer arrives that the fabric delivers. `loses`: whether those of other
    /// requests may be lost from now on.
    pub fn judge_arrival(
        &mut self,
        context: Context,
        mad: &[u8; MAD_LEN],
        loses: bool,
        random: &mut Random,
    ) -> Arrival {
        let answer = SaMad::new(mad);
        let (tid, status) = (answer.header().tid() & TID_MASK, answer.header().status());
        let now = context.now;
        let open = self.open.as_mut().filter(|open| open.tid == tid);
        let Some((open, Ask::Put(slot, _))) = open.map(|open| (&*open, open.ask)) else {
            return Arrival::Arrives;
        };
        if let Some(first) = &open.first {
            let is_other = (first.status, &first.data) != (status, answer.data());
            let is_judged = first.status == Status::OK
                && status != Status::BUSY
                && now < open.since + REMEMBERED
                && !self.has_jumped
                && !(context.has_moved && super::ends_with_port(slot));
            if is_other && is_judged {
                let (was, reign) = (first.status, first.reign);
                let what = format!("the answer to a repeat is {status:?}, the first was {was:?}");
                return Arrival::Differs(what, context.reign != reign);
            }
            if now >= first.until {
                return Arrival::Arrives;
            }
        } else if !loses || status == Status::BUSY || !random.one_in(LOST_OF) {
            return Arrival::Arrives;
        } else {
            let until = now + random.between(Duration::ZERO, LOST_TIME);
            let (data, reign) = (*answer.data(), context.reign);
            if let Some(open) = &mut self.open {
                open.first = Some(First { status, data, reign, until });
            }
        }
        // It was answered: what it waits for from now on is an answer that arrives.
        self.waits_since = Some(now);
        Arrival::Lost
    }
}
