//! Which of several responders answers a client: the one with the greatest hash of both
//! (rendezvous hashing), so that each client keeps its responder when others come and go.
//!
//! The front door of the manager and a responder at the SM's port choose by the same rule.

use ib_mad::types::{Gid, Lid, Qpn};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A client as the choice sees it: its LID, QP and, if it sends a GRH, GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client([u8; 22]);

impl Client {
    /// The client that sends requests from this LID and QP, with this GID in its GRH.
    pub fn new(lid: Lid, qpn: Qpn, gid: Option<Gid>) -> Self {
        let mut key = [0; 22];
        key[..2].copy_from_slice(&lid.0.to_be_bytes());
        key[2..6].copy_from_slice(&qpn.0.to_be_bytes());
        if let Some(gid) = gid {
            key[6..].copy_from_slice(&gid.0);
        }
        Self(key)
    }

    /// The score of a responder; the one with the greatest `(score, id)` is the client's.
    pub fn score(&self, responder: u64) -> u64 {
        xxh3_64_with_seed(&self.0, responder)
    }
}

/// Which of a responder's `count` addresses its client uses, always the same; 0 if there is none.
/// The upper bits of the score chose the responder, and the lower ones are independent of them.
pub fn address_of(score: u64, count: usize) -> usize {
    ((score & 0xFFFF_FFFF) as usize).checked_rem(count).unwrap_or(0)
}
