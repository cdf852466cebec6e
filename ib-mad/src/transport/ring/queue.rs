//! A queue in shared memory, with one producer and one consumer that do not trust each other.

use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use super::SLOTS;
use crate::transport::mapping::Mapping;
use crate::transport::udp::{ENVELOPE_LEN, decode, encode};
use crate::transport::{Carrier, Packet};
use crate::wire::MAD_LEN;

/// Layout of the shared memory: two queues.
#[repr(C)]
pub(super) struct Shared {
    requests: Queue,
    answers: Queue,
}

/// Each field has a single writer unless stated, and its own cache lines.
#[repr(C)]
struct Queue {
    /// Packets appended since the start; written by the producer.
    tail: Field,
    /// Packets taken since the start; written by the consumer.
    head: Field,
    /// Whether the consumer sleeps and must be woken. Written by both.
    asleep: Field,
    slots: [Slot; SLOTS as usize],
}

/// Two cache lines: processors fetch them in pairs.
#[repr(C, align(128))]
struct Field(AtomicU32);

/// Accessed by raw pointers only: the other side may write to it at any time.
#[repr(C, align(64))]
struct Slot {
    envelope: [u8; ENVELOPE_LEN],
    mad: [u8; MAD_LEN],
}

const _: () = assert!(SLOTS.is_power_of_two());

/// Offsets of the positions in words, starting with the tail of the requests.
#[cfg(test)]
pub(super) const POSITIONS: [usize; 4] = [
    std::mem::offset_of!(Shared, requests.tail) / 4,
    std::mem::offset_of!(Shared, requests.head) / 4,
    std::mem::offset_of!(Shared, answers.tail) / 4,
    std::mem::offset_of!(Shared, answers.head) / 4,
];

/// An impossible position written by the other side, which is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// A queue in a mapping, which it keeps alive.
#[derive(Clone)]
struct Place {
    queue: NonNull<Queue>,
    _memory: Arc<Mapping>,
}

// SAFETY: the mapping belongs to the process, fields are atomics, and slots are accessed by raw
// pointers.
unsafe impl Send for Place {}

impl Place {
    fn tail(&self) -> &AtomicU32 {
        // SAFETY: the mapping is kept alive and large enough, and atomics may be written
        // concurrently.
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

/// The server's ends of both queues of `memory`: it receives requests and sends responses.
pub(super) fn server_ends(memory: Mapping) -> (Consumer, Producer) {
    let (requests, answers) = places(memory);
    (Consumer::new(requests), Producer::new(answers))
}

/// The client's ends: it receives responses and sends requests.
pub(super) fn client_ends(memory: Mapping) -> (Consumer, Producer) {
    let (requests, answers) = places(memory);
    (Consumer::new(answers), Producer::new(requests))
}

fn places(memory: Mapping) -> (Place, Place) {
    assert!(memory.len() >= size_of::<Shared>(), "room for two queues");
    let shared = memory.at(0).cast::<Shared>().as_ptr();
    // SAFETY: the mapping is large enough and page-aligned.
    let (requests, answers) = unsafe { (&raw mut (*shared).requests, &raw mut (*shared).answers) };
    let memory = Arc::new(memory);
    let place = |queue| Place {
        queue: NonNull::new(queue).expect("the address is within a mapping"),
        _memory: Arc::clone(&memory),
    };
    (place(requests), place(answers))
}

/// The appending end of a queue.
pub(super) struct Producer {
    place: Place,
    /// Packets written since the start, including unpublished ones.
    tail: u32,
    /// The consumer's position, as last read.
    head: u32,
}

impl Producer {
    fn new(place: Place) -> Self {
        Self { place, tail: 0, head: 0 }
    }

    /// Writes packets, which [`publish`](Self::publish) makes visible; returns how many had room.
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
            let envelope = encode(&packet.address, packet.carrier.marks);
            // SAFETY: the slot is in the mapping; a consumer that reads it now violates the
            // protocol and only gets mixed data.
            unsafe {
                (&raw mut (*slot).envelope).copy_from_nonoverlapping(&envelope, 1);
                (&raw mut (*slot).mad).copy_from_nonoverlapping(&packet.mad, 1);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        Ok(packets.len())
    }

    /// Test helper: overwrites a word of the memory, of either queue, as a hostile client could.
    /// `self` must be a client's.
    #[cfg(test)]
    pub(super) fn scribble(&self, word: usize, value: u32) {
        let words = size_of::<Shared>() / size_of::<u32>();
        // SAFETY: the requests of a client are the first of both queues; the word is within them
        // and aligned, and may be written concurrently.
        let at = unsafe { self.place.queue.cast::<u32>().add(word % words) };
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }.store(value, Relaxed);
    }

    /// Makes written packets visible to the consumer. Returns whether it must be woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.place.tail().store(self.tail, Release);
        // Either this load sees that the consumer sleeps, or the consumer sees the appended packets
        // when it checks again after announcing its sleep.
        fence(SeqCst);
        self.place.asleep().load(Relaxed) != 0 && self.place.asleep().swap(0, Relaxed) != 0
    }
}

/// The taking end of a queue.
pub(super) struct Consumer {
    place: Place,
    /// Packets taken since the start.
    head: u32,
}

/// Result of reading a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Packets copied.
    pub(super) packets: usize,
    /// Slots skipped because they contained no valid envelope.
    pub(super) malformed: u64,
}

impl Consumer {
    fn new(place: Place) -> Self {
        Self { place, head: 0 }
    }

    /// Copies packets from `peer` into `batch`, up to the end of either.
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
            // SAFETY: the slot is in the mapping. Any bytes may be written to it concurrently, but
            // these are the only reads of it, ordered before the store of `head` below; later code
            // uses the copies.
            unsafe {
                (&raw mut envelope).copy_from_nonoverlapping(&raw const (*slot).envelope, 1);
                (&raw mut packet.mad).copy_from_nonoverlapping(&raw const (*slot).mad, 1);
            }
            self.head = self.head.wrapping_add(1);
            waiting -= 1;
            match decode(&envelope) {
                Some((address, marks)) => {
                    packet.address = address;
                    packet.carrier = Carrier { peer, marks, ..Carrier::default() };
                    taken.packets += 1;
                }
                None => taken.malformed += 1,
            }
        }
        self.place.head().store(self.head, Release);
        Ok(taken)
    }

    /// Whether the queue is empty.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.place.tail().load(Acquire) == self.head
    }

    /// Asks the producer to wake this side. Check the queue once more before sleeping.
    pub(super) fn fall_asleep(&self) {
        self.place.asleep().store(1, Relaxed);
        fence(SeqCst);
    }

    /// Sets the flag that this side is awake, so that the producer does not wake it.
    pub(super) fn wake_up(&self) {
        self.place.asleep().store(0, Relaxed);
    }
}
