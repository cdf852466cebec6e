//! A queue in shared memory, with one producer and one consumer that do not trust each other.

use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use super::SLOTS;
use crate::transport::mapping::Mapping;
use crate::transport::udp::{ENVELOPE_LEN, decode, encode};
use crate::transport::{Address, Packet};
use crate::wire::MAD_LEN;

/// Two queues, as they lie in the memory that is shared.
#[repr(C)]
pub(super) struct Shared {
    requests: Queue,
    answers: Queue,
}

/// One writer a field, each field on cache lines of its own.
#[repr(C)]
struct Queue {
    /// Packets ever appended; the producer's.
    tail: Field,
    /// Packets ever taken; the consumer's.
    head: Field,
    /// Whether the consumer sleeps and is to be woken. Either side's.
    asleep: Field,
    slots: [Slot; SLOTS as usize],
}

/// Two lines: processors fetch them in pairs.
#[repr(C, align(128))]
struct Field(AtomicU32);

/// Only ever reached by raw pointers: the other side may write to it at any time.
#[repr(C, align(64))]
struct Slot {
    envelope: [u8; ENVELOPE_LEN],
    mad: [u8; MAD_LEN],
}

const _: () = assert!(SLOTS.is_power_of_two());

/// The words where positions stand: the requests' tail first.
#[cfg(test)]
pub(super) const POSITIONS: [usize; 4] = [
    std::mem::offset_of!(Shared, requests.tail) / 4,
    std::mem::offset_of!(Shared, requests.head) / 4,
    std::mem::offset_of!(Shared, answers.tail) / 4,
    std::mem::offset_of!(Shared, answers.head) / 4,
];

/// A position of the other side's that cannot be: its end of the ring is broken, or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// A queue within a mapping, which it keeps.
#[derive(Clone)]
struct Place {
    queue: NonNull<Queue>,
    _memory: Arc<Mapping>,
}

// SAFETY: the queue is in a mapping that belongs to the process, fields are atomics, and slots are
// reached by raw pointers.
unsafe impl Send for Place {}

impl Place {
    fn tail(&self) -> &AtomicU32 {
        // SAFETY: the mapping is kept and large enough, and atomics may be written by anyone.
        unsafe { &(*self.queue.as_ptr()).tail.0 }
    }

    fn head(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &(*self.queue.as_ptr()).head.0 }
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &(*self.queue.as_ptr()).asleep.0 }
    }

    fn slot(&self, position: u32) -> *mut Slot {
        // SAFETY: the remainder is within the array.
        unsafe {
            (&raw mut (*self.queue.as_ptr()).slots).cast::<Slot>().add((position % SLOTS) as usize)
        }
    }
}

/// The ends of both queues of `memory`, as a server has them: requests come, answers go.
pub(super) fn server_ends(memory: Mapping) -> (Consumer, Producer) {
    let (requests, answers) = places(memory);
    (Consumer::new(requests), Producer::new(answers))
}

/// The ends as a client has them: answers come, requests go.
pub(super) fn client_ends(memory: Mapping) -> (Consumer, Producer) {
    let (requests, answers) = places(memory);
    (Consumer::new(answers), Producer::new(requests))
}

fn places(memory: Mapping) -> (Place, Place) {
    assert!(memory.len() >= size_of::<Shared>(), "room for two queues");
    let shared = memory.at(0).cast::<Shared>().as_ptr();
    // SAFETY: the mapping is large enough and begins a page.
    let (requests, answers) = unsafe { (&raw mut (*shared).requests, &raw mut (*shared).answers) };
    let memory = Arc::new(memory);
    let place = |queue| Place {
        queue: NonNull::new(queue).expect("within a mapping"),
        _memory: Arc::clone(&memory),
    };
    (place(requests), place(answers))
}

/// The end of a queue that appends.
pub(super) struct Producer {
    place: Place,
    /// Packets ever written, those included that have not been published.
    tail: u32,
    /// The consumer's position, as last seen.
    head: u32,
}

impl Producer {
    fn new(place: Place) -> Self {
        Self { place, tail: 0, head: 0 }
    }

    /// Writes packets that [`publish`](Self::publish) makes visible; how many there was room for.
    #[inline]
    pub(super) fn write(&mut self, packets: &[Packet]) -> Result<usize, Broken> {
        let mut room = SLOTS - self.tail.wrapping_sub(self.head);
        if (room as usize) < packets.len() {
            let head = self.place.head().load(Acquire);
            room = SLOTS.checked_sub(self.tail.wrapping_sub(head)).ok_or(Broken)?;
            self.head = head;
        }
        let packets = &packets[..packets.len().min(room as usize)];
        for packet in packets {
            let slot = self.place.slot(self.tail);
            let envelope = encode(&packet.address);
            // SAFETY: the slot is in our mapping; a consumer that reads it now breaks its own rules
            // and gets what it gets.
            unsafe {
                (&raw mut (*slot).envelope).copy_from_nonoverlapping(&envelope, 1);
                (&raw mut (*slot).mad).copy_from_nonoverlapping(&packet.mad, 1);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        Ok(packets.len())
    }

    /// Writes where it has no business to: a word of the memory, both queues counted. `self` must
    /// be a client's.
    #[cfg(test)]
    pub(super) fn scribble(&self, word: usize, value: u32) {
        let words = size_of::<Shared>() / size_of::<u32>();
        // SAFETY: a client's requests are the first of both queues; the word is within them, is
        // aligned and may be written by anyone.
        let at = unsafe { self.place.queue.cast::<u32>().add(word % words) };
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }.store(value, Relaxed);
    }

    /// Shows the consumer what has been written. Whether it has to be woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.place.tail().store(self.tail, Release);
        // Either we see here that the consumer sleeps, or it sees, after it has said that it will,
        // what was appended.
        fence(SeqCst);
        self.place.asleep().load(Relaxed) != 0 && self.place.asleep().swap(0, Relaxed) != 0
    }
}

/// The end of a queue that takes.
pub(super) struct Consumer {
    place: Place,
    /// Packets ever taken.
    head: u32,
}

/// What a look at a queue brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Packets copied.
    pub(super) packets: usize,
    /// Slots passed over since they held no envelope of ours.
    pub(super) malformed: u64,
}

impl Consumer {
    fn new(place: Place) -> Self {
        Self { place, head: 0 }
    }

    /// Copies packets from `peer` into `batch` as far as both go.
    #[inline]
    pub(super) fn take(
        &mut self,
        batch: &mut [Packet],
        peer: Option<SocketAddr>,
    ) -> Result<Taken, Broken> {
        let mut waiting = self.place.tail().load(Acquire).wrapping_sub(self.head);
        if waiting > SLOTS {
            return Err(Broken);
        }
        let mut taken = Taken::default();
        if waiting == 0 {
            return Ok(taken);
        }
        while waiting > 0 && taken.packets < batch.len() {
            let packet = &mut batch[taken.packets];
            let slot = self.place.slot(self.head);
            let mut envelope = [0; ENVELOPE_LEN];
            // SAFETY: the slot is in our mapping. Whatever is written to it meanwhile, these are
            // the only reads of it, and the store of `head` below keeps them before it; all that
            // follows sees the copies.
            unsafe {
                (&raw mut envelope).copy_from_nonoverlapping(&raw const (*slot).envelope, 1);
                (&raw mut packet.mad).copy_from_nonoverlapping(&raw const (*slot).mad, 1);
            }
            self.head = self.head.wrapping_add(1);
            waiting -= 1;
            match decode(&envelope) {
                Some(address) => {
                    packet.address = Address { peer, ..address };
                    taken.packets += 1;
                }
                None => taken.malformed += 1,
            }
        }
        self.place.head().store(self.head, Release);
        Ok(taken)
    }

    /// Whether there is nothing to take.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.place.tail().load(Acquire) == self.head
    }

    /// Asks the producer to wake this side. Before it sleeps it has to look once more.
    pub(super) fn fall_asleep(&self) {
        self.place.asleep().store(1, Relaxed);
        fence(SeqCst);
    }

    /// Tells the producer that this side is awake.
    pub(super) fn wake_up(&self) {
        self.place.asleep().store(0, Relaxed);
    }
}
