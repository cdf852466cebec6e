//! Sends that wait for their answers: who sent them, whether an answer is theirs, when to send
//! them again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::transaction::Transactions;
use ib_mad::transport::{Address, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{MadHeader, MgmtClass};

use super::agents::is_response;
use crate::umad::{Errno, Header};

/// Sends that can wait at one time.
const REQUESTS_MAX: usize = 1 << 14;

/// Bits of a transaction id that stay as they are on the way: ibsim overwrites the others.
const TID_BITS: u64 = (1 << 48) - 1;

/// By what an answer finds its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) tid: u64,
    pub(super) class: MgmtClass,
    /// Whether what was sent was an answer itself.
    pub(super) response: bool,
}

impl Key {
    /// The key of what is sent.
    pub(super) fn of<T: AsRef<[u8]>>(header: &MadHeader<T>) -> Self {
        Self {
            tid: header.tid() & TID_BITS,
            class: header.mgmt_class(),
            response: is_response(header),
        }
    }

    /// The key of what a received packet answers or acknowledges.
    pub(super) fn answered_by<T: AsRef<[u8]>>(header: &MadHeader<T>) -> Self {
        let key = Self::of(header);
        Self { response: !key.response, ..key }
    }
}

/// A send as its program made it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Number of the agent.
    pub(super) agent: u16,
    /// The header it was written with.
    pub(super) header: Header,
    pub(super) address: Address,
    /// All of it, or its first MAD if it is longer and went by RMPP.
    pub(super) mad: Box<[u8; MAD_LEN]>,
    /// RMPP has brought it over; it is not sent again.
    pub(super) is_over: bool,
}

pub(super) struct Requests {
    table: Transactions<Box<Request>>,
    index: HashMap<Key, u32>,
}

impl Requests {
    pub(super) fn new(seed: u32) -> Self {
        Self { table: Transactions::new(REQUESTS_MAX, seed), index: HashMap::new() }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.index.contains_key(key)
    }

    pub(super) fn start(&mut self, request: Request) -> Result<(), Errno> {
        let timeout = Duration::from_millis(request.header.timeout_ms().into());
        let retries = if request.is_over { 0 } else { request.header.retries() };
        let key = request.key();
        let full = |_| Errno(libc::ENOMEM);
        let id = self.table.start(Box::new(request), timeout, retries).map_err(full)?;
        self.index.insert(key, id);
        Ok(())
    }

    /// The next packet to send.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        loop {
            let (_, request) = self.table.poll_transmit(now)?;
            if !request.is_over {
                return Some(Packet { mad: *request.mad, address: request.address.clone() });
            }
        }
    }

    /// Takes an answer; whether anybody waited for it.
    pub(super) fn handle_answer(&mut self, key: &Key, from: &Address) -> bool {
        let waiting = self.index.get(key).and_then(|&id| self.table.get(u64::from(id)));
        if !waiting.is_some_and(|request| request.may_be_answered_by(from)) {
            return false;
        }
        let id = self.index.remove(key).map_or(0, u64::from);
        self.table.handle_response(id).is_some()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.table.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.table.handle_timeout(now);
    }

    /// A request given up.
    pub(super) fn poll_expired(&mut self) -> Option<Box<Request>> {
        let (_, request) = self.table.poll_expired()?;
        self.index.remove(&request.key());
        Some(request)
    }

    /// Withdraws what an agent has sent.
    pub(super) fn cancel(&mut self, agent: u16) {
        let Self { table, index } = self;
        index.retain(|_, &mut id| {
            let id = u64::from(id);
            let is_its = table.get(id).is_some_and(|request| request.agent == agent);
            if is_its {
                table.cancel(id);
            }
            !is_its
        });
    }
}

impl Request {
    pub(super) fn key(&self) -> Key {
        Key::of(&MadHeader::new(&self.mad[..]).expect("a MAD is longer than its header"))
    }

    /// Answers come from where the request went, but for those sent along a route.
    fn may_be_answered_by(&self, from: &Address) -> bool {
        self.address.lid == Lid::PERMISSIVE || from.lid == self.address.lid
    }
}
