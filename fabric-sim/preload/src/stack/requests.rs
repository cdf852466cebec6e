//! Sends that await a response: the sender, matching of responses, retries.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::transaction::Transactions;
use ib_mad::transport::{Address, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{MadHeader, MgmtClass};

use super::agents::is_response;
use crate::umad::{Errno, Header};

/// Limit of pending sends.
const REQUESTS_MAX: usize = 1 << 14;

/// Bits of a transaction id that are preserved; ibsim overwrites the others.
const TID_BITS: u64 = (1 << 48) - 1;

/// Key by which a response finds its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) tid: u64,
    pub(super) class: MgmtClass,
    /// Whether the sent MAD was itself a response.
    pub(super) response: bool,
}

impl Key {
    /// Key of a MAD to be sent.
    pub(super) fn of<T: AsRef<[u8]>>(header: &MadHeader<T>) -> Self {
        Self {
            tid: header.tid() & TID_BITS,
            class: header.mgmt_class(),
            response: is_response(header),
        }
    }

    /// Key of the send that a received packet answers or acknowledges.
    pub(super) fn answered_by<T: AsRef<[u8]>>(header: &MadHeader<T>) -> Self {
        let key = Self::of(header);
        Self { response: !key.response, ..key }
    }
}

/// A pending send.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Number of the agent.
    pub(super) agent: u16,
    /// Its umad header as written by the program.
    pub(super) header: Header,
    pub(super) address: Address,
    /// The whole message, or its first MAD if it is longer and was sent by RMPP.
    pub(super) mad: Box<[u8; MAD_LEN]>,
    /// RMPP has delivered it; it is not sent again.
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
                return Some(Packet::new(*request.mad, request.address));
            }
        }
    }

    /// Matches a response; returns whether a request was pending for it.
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

    /// A request whose retries are exhausted.
    pub(super) fn poll_expired(&mut self) -> Option<Box<Request>> {
        let (_, request) = self.table.poll_expired()?;
        self.index.remove(&request.key());
        Some(request)
    }

    /// Removes the pending sends of an agent.
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
        Key::of(&MadHeader::of(&self.mad))
    }

    /// Whether a response from this address can belong to the request: it comes from the request's
    /// destination, unless the request was sent by a directed route.
    fn may_be_answered_by(&self, from: &Address) -> bool {
        self.address.lid == Lid::PERMISSIVE || from.lid == self.address.lid
    }
}
