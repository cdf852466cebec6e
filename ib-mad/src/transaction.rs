//! Outstanding requests: transaction IDs, retries and timeouts, for thousands of requests at once.
//!
//! This module never sends, sleeps or reads a clock. As the context of each request, the caller
//! keeps what it needs to send it again and to interpret the response, and checks whether a
//! response matches the request's class, attribute and destination.
//!
//! A slot of the table is in one queue at a time; every operation takes constant time:
//!
//! ```text
//! start ─► ready ─ poll_transmit ─► waiting ─ handle_response ─► (context back to the caller)
//!            ▲                         │
//!            └──── handle_timeout ─────┴─► expired ─ poll_expired ─► (context back)
//! ```
//!
//! # Examples
//!
//! A request that is lost, sent again, and answered:
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use ib_mad::transaction::Transactions;
//!
//! let now = Instant::now();
//! let second = Duration::from_secs(1);
//! let mut table = Transactions::new(1000, 0);
//! let tid = table.start("NodeInfo of switch 7", second, 3).expect("the table has room");
//!
//! // A program writes the transaction id into the MAD and sends it.
//! assert_eq!(table.poll_transmit(now), Some((tid, &mut "NodeInfo of switch 7")));
//! assert_eq!(table.poll_timeout(), Some(now + second));
//!
//! // No answer within a second: the request is ready to be sent again.
//! table.handle_timeout(now + second);
//! assert!(table.poll_transmit(now + second).is_some());
//!
//! assert_eq!(table.handle_response(tid.into()), Some("NodeInfo of switch 7"));
//! assert_eq!(table.handle_response(tid.into()), None, "a second answer is counted and ignored");
//! assert_eq!((table.counters().retried, table.counters().unmatched), (1, 1));
//! ```

use std::time::{Duration, Instant};

/// Limit of a table's capacity.
pub const CAPACITY_MAX: usize = 1 << 20;

/// Limit of distinct timeouts among waiting requests. A request with a further timeout gets the
/// next longer of these, or the longest.
pub const TIMEOUTS_MAX: usize = 8;

/// A table of outstanding requests, each with a context `T`.
///
/// Transaction IDs are unique in their low 32 bits, and only those are compared: the Linux kernel
/// overwrites the upper 32 bits of a request's ID, ibsim the upper 16. An ID is reused only after
/// its slot has been used some thousand times, so that late responses match no request.
#[derive(Debug)]
pub struct Transactions<T> {
    slots: Vec<Slot<T>>,
    /// Bits of a transaction ID that are the slot's index; the others are its generation.
    index_bits: u32,
    free: Queue,
    ready: Queue,
    expired: Queue,
    /// Waiting requests by timeout: within one timeout, the first sent is the first due.
    waiting: [Waiting; TIMEOUTS_MAX],
    outstanding: usize,
    counters: Counters,
}

/// Counters of a table. At any time `started` is the sum of `answered`, `expired`, `cancelled` and
/// the outstanding requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests accepted by `start`.
    pub started: u64,
    /// Packets returned by `poll_transmit`, retries included.
    pub transmitted: u64,
    /// Retries among them.
    pub retried: u64,
    /// Requests answered.
    pub answered: u64,
    /// Responses that were late or repeated, or match no request.
    pub unmatched: u64,
    /// Requests expired after their last retry.
    pub expired: u64,
    /// Requests cancelled by the caller.
    pub cancelled: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// The transaction ID of the present request; in a free slot, of the next one.
    tid: u32,
    place: Place,
    previous: Link,
    next: Link,
    retries_left: u32,
    sent_before: bool,
    timeout: Duration,
    deadline: Option<Instant>,
    context: Option<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Ready,
    Expired,
    Waiting(u8),
}

/// Index of a slot, or [`NONE`].
type Link = u32;
const NONE: Link = u32::MAX;

/// Head and tail of a list linked through the slots.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: Link,
    tail: Link,
}

const EMPTY: Queue = Queue { head: NONE, tail: NONE };

#[derive(Clone, Copy, Debug)]
struct Waiting {
    timeout: Duration,
    queue: Queue,
}

impl<T> Transactions<T> {
    /// A table for `capacity` requests, 1 to [`CAPACITY_MAX`]; values outside are clamped. `seed`
    /// determines the first transaction IDs: use a different seed at each start, so that responses
    /// to an earlier run match no request.
    pub fn new(capacity: usize, seed: u32) -> Self {
        let capacity = capacity.clamp(1, CAPACITY_MAX) as u32;
        let index_bits = capacity.next_power_of_two().trailing_zeros();
        let mut table = Self {
            slots: Vec::with_capacity(capacity as usize),
            index_bits,
            free: EMPTY,
            ready: EMPTY,
            expired: EMPTY,
            waiting: [Waiting { timeout: Duration::ZERO, queue: EMPTY }; TIMEOUTS_MAX],
            outstanding: 0,
            counters: Counters::default(),
        };
        for index in 0..capacity {
            table.slots.push(Slot {
                tid: next_tid(seed << index_bits | index, index_bits),
                place: Place::Free,
                previous: NONE,
                next: NONE,
                retries_left: 0,
                sent_before: false,
                timeout: Duration::ZERO,
                deadline: None,
                context: None,
            });
            table.append(index, Place::Free);
        }
        table
    }

    /// Free capacity.
    pub fn room(&self) -> usize {
        self.slots.len() - self.outstanding
    }

    /// Number of outstanding requests.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Queues a request, to be sent up to 1 + `retries` times, each time waiting for `timeout`.
    /// Returns its transaction ID, or the context if the table is full.
    pub fn start(&mut self, context: T, timeout: Duration, retries: u32) -> Result<u32, T> {
        let index = self.free.head;
        if index == NONE {
            return Err(context);
        }
        self.unlink(index);
        self.append(index, Place::Ready);
        let slot = &mut self.slots[index as usize];
        slot.retries_left = retries;
        slot.sent_before = false;
        slot.timeout = timeout;
        slot.context = Some(context);
        self.outstanding += 1;
        self.counters.started += 1;
        Ok(slot.tid)
    }

    /// The next request to send, whose timeout starts now. Call until it returns `None`, or while
    /// packets can be sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(u32, &mut T)> {
        let index = self.ready.head;
        if index == NONE {
            return None;
        }
        let lane = self.lane(self.slots[index as usize].timeout);
        self.unlink(index);
        self.append(index, Place::Waiting(lane));
        let timeout = self.waiting[usize::from(lane)].timeout;
        let slot = &mut self.slots[index as usize];
        slot.deadline = Some(now + timeout);
        self.counters.transmitted += 1;
        self.counters.retried += u64::from(std::mem::replace(&mut slot.sent_before, true));
        Some((slot.tid, slot.context.as_mut().expect("a ready slot has a context")))
    }

    /// Timeout of a request that was sent and awaits its response.
    pub fn timeout(&self, tid: u64) -> Option<Duration> {
        match self.slots[self.find(tid)? as usize].place {
            Place::Waiting(lane) => Some(self.waiting[usize::from(lane)].timeout),
            Place::Free | Place::Ready | Place::Expired => None,
        }
    }

    /// The context of the request that a response with this transaction ID belongs to.
    pub fn get(&self, tid: u64) -> Option<&T> {
        self.slots[self.find(tid)? as usize].context.as_ref()
    }

    /// As [`get`](Self::get), mutable.
    pub fn get_mut(&mut self, tid: u64) -> Option<&mut T> {
        let index = self.find(tid)?;
        self.slots[index as usize].context.as_mut()
    }

    /// All outstanding requests with their transaction IDs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().filter_map(|slot| Some((slot.tid, slot.context.as_ref()?)))
    }

    /// Handles a response; returns its request's context. `None`, counted, if no request matches.
    pub fn handle_response(&mut self, tid: u64) -> Option<T> {
        let Some(index) = self.find(tid) else {
            self.counters.unmatched += 1;
            return None;
        };
        self.counters.answered += 1;
        Some(self.release(index))
    }

    /// Cancels a request.
    pub fn cancel(&mut self, tid: u64) -> Option<T> {
        let index = self.find(tid)?;
        self.counters.cancelled += 1;
        Some(self.release(index))
    }

    /// Cancels all requests, in no particular order.
    pub fn cancel_all(&mut self) -> impl Iterator<Item = T> {
        (0..self.slots.len() as u32).filter_map(|index| {
            self.slots[index as usize].context.as_ref()?;
            self.counters.cancelled += 1;
            Some(self.release(index))
        })
    }

    /// When `handle_timeout` is due. Any other `&mut self` call may change it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting
            .iter()
            .filter(|waiting| waiting.queue.head != NONE)
            .filter_map(|waiting| self.slots[waiting.queue.head as usize].deadline)
            .min()
    }

    /// Marks requests whose timeout has passed as ready to be sent again, or as expired if no
    /// retries are left.
    pub fn handle_timeout(&mut self, now: Instant) {
        for lane in 0..TIMEOUTS_MAX {
            loop {
                let index = self.waiting[lane].queue.head;
                if index == NONE {
                    break;
                }
                let slot = &self.slots[index as usize];
                if slot.deadline.is_none_or(|deadline| now < deadline) {
                    break;
                }
                self.fail_attempt(index);
            }
        }
    }

    /// An expired request, with its transaction ID. Call until it returns `None`. Until it is
    /// returned, a response is still accepted.
    pub fn poll_expired(&mut self) -> Option<(u32, T)> {
        let index = self.expired.head;
        if index == NONE {
            return None;
        }
        self.counters.expired += 1;
        Some((self.slots[index as usize].tid, self.release(index)))
    }

    /// Marks a waiting request as ready to be sent again, or as expired if no retries are left.
    fn fail_attempt(&mut self, index: Link) {
        let slot = &mut self.slots[index as usize];
        let place = match slot.retries_left.checked_sub(1) {
            Some(left) => {
                slot.retries_left = left;
                Place::Ready
            }
            None => Place::Expired,
        };
        self.unlink(index);
        self.append(index, place);
    }

    fn find(&self, tid: u64) -> Option<Link> {
        let tid = tid as u32;
        let index = tid & ((1 << self.index_bits) - 1);
        let slot = self.slots.get(index as usize)?;
        (slot.tid == tid && slot.context.is_some()).then_some(index)
    }

    /// Frees the slot of a request. It is appended to the free list, so that its reuse is as late
    /// as possible.
    fn release(&mut self, index: Link) -> T {
        self.unlink(index);
        self.append(index, Place::Free);
        let slot = &mut self.slots[index as usize];
        slot.tid = next_tid(slot.tid, self.index_bits);
        slot.deadline = None;
        self.outstanding -= 1;
        slot.context.take().expect("an outstanding slot has a context")
    }

    /// The queue for requests with this timeout.
    fn lane(&mut self, timeout: Duration) -> u8 {
        if let Some(lane) = self.waiting.iter().position(|lane| lane.timeout == timeout) {
            return lane as u8;
        }
        if let Some(lane) = self.waiting.iter().position(|lane| lane.queue.head == NONE) {
            self.waiting[lane].timeout = timeout;
            return lane as u8;
        }
        // No free queue: use the next longer timeout, or else the longest.
        let nearness = |lane: &Waiting| match lane.timeout.checked_sub(timeout) {
            Some(longer) => (0, longer),
            None => (1, timeout - lane.timeout),
        };
        let lanes = self.waiting.iter().enumerate();
        lanes.min_by_key(|(_, lane)| nearness(lane)).map_or(0, |(lane, _)| lane as u8)
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        match place {
            Place::Free => &mut self.free,
            Place::Ready => &mut self.ready,
            Place::Expired => &mut self.expired,
            Place::Waiting(lane) => &mut self.waiting[usize::from(lane)].queue,
        }
    }

    fn append(&mut self, index: Link, place: Place) {
        let queue = self.queue(place);
        let tail = std::mem::replace(&mut queue.tail, index);
        if tail == NONE {
            queue.head = index;
        } else {
            self.slots[tail as usize].next = index;
        }
        let slot = &mut self.slots[index as usize];
        (slot.place, slot.previous, slot.next) = (place, tail, NONE);
    }

    fn unlink(&mut self, index: Link) {
        let &Slot { place, previous, next, .. } = &self.slots[index as usize];
        match previous {
            NONE => self.queue(place).head = next,
            _ => self.slots[previous as usize].next = next,
        }
        match next {
            NONE => self.queue(place).tail = previous,
            _ => self.slots[next as usize].previous = previous,
        }
    }
}

/// The next transaction ID of the same slot. Never 0, which some agents send in traps.
fn next_tid(tid: u32, index_bits: u32) -> u32 {
    match tid.wrapping_add(1 << index_bits) {
        0 => 1 << index_bits,
        next => next,
    }
}

#[cfg(test)]
mod tests;
