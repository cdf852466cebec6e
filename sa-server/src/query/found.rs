//! Collects the records that a query finds.

use std::ops::ControlFlow;

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::record::{PathRecord, stride};
use ib_mad::wire::sa::DATA_LEN;

use super::end::End;
use super::templates::{Kind, Template, Templates};
use crate::query::pool::{Pool, PoolError};
use crate::tables::qos_match::LevelSlot;

/// Maximum number of steps of one query, mainly pairs of ports. A wildcard PathRecord on a large
/// fabric has more pairs than any table answer could hold.
const STEPS_MAX: u32 = 2_000_000;
/// Same for a Get(), which returns one record: above the 49,151 LIDs of a subnet, so that one end
/// may be a wildcard. A request with two wildcards finds a path at once or is refused.
const GET_STEPS_MAX: u32 = 1 << 16;

/// Maximum number of ends of a MultiPathRecord: its counts have 8 bits.
const ENDS_MAX: usize = 2 * 255;

/// Buffers that a worker needs for a search and keeps for the next one.
pub(crate) struct Scratch {
    /// The data part of the answer, if all records fit.
    pub(crate) records: [u8; DATA_LEN],
    templates: Templates,
    /// Ends of a request that names many.
    ends: Vec<End>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            records: [0; DATA_LEN],
            templates: Templates::new(),
            ends: Vec::with_capacity(ENDS_MAX),
        }
    }
}

/// The records found so far: up to 200 bytes of them in place, more in a buffer of the pool.
pub(crate) struct Found<'a> {
    /// The data part of the answer, if all records fit.
    in_place: &'a mut [u8; DATA_LEN],
    /// All of the records, once they do not fit in place.
    spilled: Option<Vec<u8>>,
    pool: &'a mut Pool,
    /// Kinds of paths met.
    pub(super) templates: &'a mut Templates,
    /// Memory for the ends of a request that names many.
    pub(super) ends: &'a mut Vec<End>,
    stride: usize,
    /// Get(): the search stops after the second record.
    single: bool,
    count: usize,
    steps: u32,
    exhausted: Option<Exhausted>,
}

/// Why a search was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    /// The answer or the search exceeds its limit.
    TooMany,
    /// The memory for answers is in use.
    NoMemory,
}

/// How a search ended.
pub(crate) struct Outcome {
    /// Number of records.
    pub(crate) count: usize,
    /// Their bytes, if they are not in place.
    pub(crate) spilled: Option<Vec<u8>>,
    /// Set if the search was stopped: the result is incomplete.
    pub(crate) exhausted: Option<Exhausted>,
    /// Steps taken.
    pub(crate) steps: u32,
}

impl<'a> Found<'a> {
    pub(crate) fn new(
        scratch: &'a mut Scratch,
        pool: &'a mut Pool,
        record_len: usize,
        single: bool,
    ) -> Self {
        let stride = stride(record_len);
        debug_assert!(stride <= DATA_LEN, "every record fits one MAD");
        let Scratch { records, templates, ends } = scratch;
        Self {
            in_place: records,
            spilled: None,
            pool,
            templates,
            ends,
            stride,
            single,
            count: 0,
            steps: 0,
            exhausted: None,
        }
    }

    /// Whether one record is all that is wanted.
    pub(super) fn is_single(&self) -> bool {
        self.single
    }

    /// Number of records so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Counts a step of a long search.
    #[inline]
    pub(super) fn step(&mut self) -> ControlFlow<()> {
        self.steps(1)
    }

    /// Accounts for work equal to `count` steps.
    #[inline]
    pub(super) fn steps(&mut self, count: u32) -> ControlFlow<()> {
        self.steps = self.steps.saturating_add(count);
        let most = if self.single { GET_STEPS_MAX } else { STEPS_MAX };
        if self.steps > most {
            self.exhausted = Some(Exhausted::TooMany);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Adds a record; the padding is added here. Stops the search when no further record is wanted
    /// or fits.
    #[inline(always)]
    pub(super) fn push<const N: usize>(&mut self, record: &[u8; N]) -> ControlFlow<()> {
        debug_assert_eq!(stride(N), self.stride);
        if let Some(buffer) = &mut self.spilled
            && buffer.capacity() - buffer.len() >= stride(N)
        {
            append(buffer, record);
            self.count += 1;
            return ControlFlow::Continue(());
        }
        self.place(record)
    }

    /// Adds a record where it does not simply go to the end of the buffer.
    fn place<const N: usize>(&mut self, record: &[u8; N]) -> ControlFlow<()> {
        let start = self.count * self.stride;
        match &self.spilled {
            None if self.single && self.count > 0 => {
                self.count += 1;
                return ControlFlow::Break(());
            }
            None if start + self.stride <= DATA_LEN => {
                let place = &mut self.in_place[start..start + self.stride];
                if let Some((place, padding)) = place.split_first_chunk_mut() {
                    *place = *record;
                    if !N.is_multiple_of(8) {
                        padding.fill(0);
                    }
                }
            }
            _ => return self.spill(record, start),
        }
        self.count += 1;
        ControlFlow::Continue(())
    }

    /// Adds a path record of a known kind with another GID and LID; `make` computes the first of a
    /// kind. `None` if there is no path; otherwise its level, or a stop.
    #[inline(always)]
    pub(super) fn push_like(
        &mut self,
        kind: Kind,
        dgid: Gid,
        dlid: Lid,
        make: impl FnOnce() -> Template,
    ) -> Option<ControlFlow<(), LevelSlot>> {
        let (record, level) = self.templates.of(kind, make).as_ref()?;
        let level = *level;
        let name = |record: &mut [u8; PathRecord::LEN]| {
            let mut view = PathRecord::of_mut(record);
            view.set_dgid(dgid).set_dlid(dlid);
        };
        if let Some(buffer) = &mut self.spilled
            && buffer.capacity() - buffer.len() >= PathRecord::LEN
        {
            buffer.extend_from_slice(record);
            name(buffer.last_chunk_mut().expect("the record was appended above"));
            self.count += 1;
            return Some(ControlFlow::Continue(level));
        }
        let mut record = *record;
        name(&mut record);
        Some(match self.push(&record) {
            ControlFlow::Continue(()) => ControlFlow::Continue(level),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    }

    #[cold]
    fn spill<const N: usize>(&mut self, record: &[u8; N], start: usize) -> ControlFlow<()> {
        let stride = self.stride;
        match self.room(start, start + stride) {
            Ok(buffer) => {
                append(buffer, record);
                self.count += 1;
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.exhausted = Some(match error {
                    PoolError::TooLarge => Exhausted::TooMany,
                    PoolError::Full => Exhausted::NoMemory,
                });
                ControlFlow::Break(())
            }
        }
    }

    /// The buffer with all records so far, `start` bytes, and room for `end`.
    fn room(&mut self, start: usize, end: usize) -> Result<&mut Vec<u8>, PoolError> {
        let buffer = match self.spilled.take() {
            Some(mut buffer) => {
                if end > buffer.capacity()
                    && let Err(error) = self.pool.grow(&mut buffer)
                {
                    self.pool.give_back(buffer);
                    return Err(error);
                }
                buffer
            }
            None => {
                let mut buffer = self.pool.take(end)?;
                buffer.extend_from_slice(&self.in_place[..start]);
                buffer
            }
        };
        Ok(self.spilled.insert(buffer))
    }

    pub(crate) fn finish(self) -> Outcome {
        let Self { count, mut spilled, exhausted, steps, pool, .. } = self;
        if exhausted.is_some()
            && let Some(buffer) = spilled.take()
        {
            pool.give_back(buffer);
        }
        Outcome { count, spilled, exhausted, steps }
    }
}

/// Adds a record and its padding.
#[inline(always)]
fn append<const N: usize>(buffer: &mut Vec<u8>, record: &[u8; N]) {
    buffer.extend_from_slice(record);
    if N < stride(N) {
        buffer.resize(buffer.len() + stride(N) - N, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::pool::PoolConfig;

    fn scratch() -> Scratch {
        Scratch { records: [0xA5; DATA_LEN], ..Scratch::new() }
    }

    #[test]
    fn records_move_to_the_pool_when_one_mad_is_full() {
        let mut scratch = scratch();
        let mut pool = Pool::new(PoolConfig::default());
        let mut found = Found::new(&mut scratch, &mut pool, 62, false);
        for i in 0..4 {
            assert!(found.push(&[i; 62]).is_continue());
        }
        let outcome = found.finish();
        assert_eq!((outcome.count, outcome.exhausted), (4, None));
        let bytes = outcome.spilled.unwrap();
        let want: Vec<u8> = (0..4).flat_map(|i| [&[i; 62][..], &[0, 0]].concat()).collect();
        assert_eq!(bytes, want);
    }

    #[test]
    fn three_records_of_64_bytes_stay_in_place_and_nothing_else_does() {
        let mut scratch = scratch();
        let mut pool = Pool::new(PoolConfig::default());
        let mut found = Found::new(&mut scratch, &mut pool, 64, false);
        for _ in 0..3 {
            assert!(found.push(&[7; 64]).is_continue());
        }
        assert!(found.finish().spilled.is_none());
        assert_eq!((scratch.records[191], &scratch.records[192..]), (7, &[0xA5; 8][..]));
    }

    #[test]
    fn a_get_breaks_off_at_the_second_record_and_keeps_the_first() {
        let mut scratch = scratch();
        let mut pool = Pool::new(PoolConfig::default());
        let mut found = Found::new(&mut scratch, &mut pool, 8, true);
        assert!(found.push(&[1; 8]).is_continue());
        assert!(found.push(&[2; 8]).is_break());
        assert_eq!(found.finish().count, 2);
        assert_eq!(scratch.records[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0xA5]);
    }

    /// Regression: a Get() that named no port, with components that no path has, took as long as 2
    /// million ordinary ones.
    #[test]
    fn a_get_searches_for_less_long_than_a_table() {
        for (single, most) in [(true, GET_STEPS_MAX), (false, STEPS_MAX)] {
            let (mut scratch, mut pool) = (scratch(), Pool::new(PoolConfig::default()));
            let mut found = Found::new(&mut scratch, &mut pool, 64, single);
            let steps = (0..).take_while(|_| found.step().is_continue()).count();
            assert_eq!(steps, most as usize);
            assert_eq!(found.finish().exhausted, Some(Exhausted::TooMany));
        }
    }

    #[test]
    fn a_table_beyond_the_pool_is_exhausted_and_returns_its_memory() {
        let mut scratch = scratch();
        let mut pool = Pool::new(PoolConfig { answer_max: 16 << 10, total_max: 64 << 10 });
        let mut found = Found::new(&mut scratch, &mut pool, 64, false);
        let pushed = (0..).take_while(|_| found.push(&[1; 64]).is_continue()).count();
        assert_eq!(pushed, 256);
        let outcome = found.finish();
        assert_eq!(outcome.exhausted, Some(Exhausted::TooMany));
        assert!(outcome.spilled.is_none());
        assert_eq!(pool.lent(), 0);
    }
}
