//! Memory for table answers: bounded, reused, and returned when a transfer ends.
//!
//! Queries with a single record do not use it. Each worker has its own pool, without locks.

/// Bounds of a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Maximum length of one answer, bytes. A table of 48,000 NodeRecords has 5.5 MB, one of all
    /// ports of such a fabric 20 MB. Values below 16 KiB count as 16 KiB.
    pub answer_max: usize,
    /// Maximum length of all answers that are being sent, bytes.
    pub total_max: usize,
}

impl Default for PoolConfig {
    /// 32 MiB an answer, 128 MiB in all.
    fn default() -> Self {
        Self { answer_max: 32 << 20, total_max: 128 << 20 }
    }
}

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// An answer must not have that many bytes.
    TooLarge,
    /// Other answers have all the memory at this moment.
    Full,
}

/// A bounded stock of buffers.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    /// Bytes lent, by capacity.
    lent: usize,
    /// Buffers to lend again; their capacity counts towards the bound, too.
    idle: Vec<Vec<u8>>,
}

/// The smallest buffer lent, and the step by which the small ones grow.
const BUFFER_MIN: usize = 16 << 10;

/// Idle buffers kept; others go back to the system.
const IDLE_MAX: usize = 16;

impl Pool {
    /// An empty pool: buffers are made as they are needed.
    pub fn new(config: PoolConfig) -> Self {
        Self { config, lent: 0, idle: Vec::with_capacity(IDLE_MAX) }
    }

    /// An empty buffer with room for `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<Vec<u8>, PoolError> {
        let PoolConfig { answer_max, total_max } = self.config;
        if len > answer_max {
            return Err(PoolError::TooLarge);
        }
        let capacity = len.next_power_of_two().max(BUFFER_MIN).min(answer_max.max(BUFFER_MIN));
        let fits = |buffer: &Vec<u8>| (capacity..=capacity * 2).contains(&buffer.capacity());
        let idle = self.idle.iter().position(fits).map(|at| self.idle.swap_remove(at));
        let size = idle.as_ref().map_or(capacity, Vec::capacity);
        // Idle buffers of other sizes are freed.
        while self.lent + size + self.idle.iter().map(Vec::capacity).sum::<usize>() > total_max {
            if self.idle.pop().is_none() {
                self.idle.extend(idle);
                return Err(PoolError::Full);
            }
        }
        let mut buffer = idle.unwrap_or_else(|| Vec::with_capacity(capacity));
        self.lent += buffer.capacity();
        buffer.clear();
        Ok(buffer)
    }

    /// Exchanges `buffer` for a larger one with the same content. After an error it is as it was.
    pub fn grow(&mut self, buffer: &mut Vec<u8>) -> Result<(), PoolError> {
        let mut larger = self.take(buffer.capacity() + 1)?;
        larger.extend_from_slice(buffer);
        self.give_back(std::mem::replace(buffer, larger));
        Ok(())
    }

    /// Takes a buffer back. Its capacity must not have changed since.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        self.lent = self.lent.saturating_sub(buffer.capacity());
        if self.idle.len() < IDLE_MAX {
            self.idle.push(buffer);
        }
    }

    /// Share of one source before it has to wait: a quarter, even for a single answer.
    pub(crate) fn share(&self) -> usize {
        self.config.total_max / 4
    }

    /// Maximum length of one answer, bytes.
    pub(crate) fn answer_max(&self) -> usize {
        self.config.answer_max
    }

    /// Bytes lent at this moment.
    pub fn lent(&self) -> usize {
        self.lent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(answer_max: usize, total_max: usize) -> Pool {
        Pool::new(PoolConfig { answer_max, total_max })
    }

    #[test]
    fn buffers_are_lent_again() {
        let mut pool = pool(1 << 20, 1 << 20);
        let first = pool.take(100).unwrap();
        let address = first.as_ptr();
        pool.give_back(first);
        let second = pool.take(1).unwrap();
        assert_eq!(second.as_ptr(), address);
    }

    #[test]
    fn neither_an_answer_nor_all_together_pass_their_bounds() {
        let mut pool = pool(64 << 10, 100 << 10);
        assert_eq!(pool.take((64 << 10) + 1), Err(PoolError::TooLarge));
        let mut one = pool.take(64 << 10).unwrap();
        assert_eq!(pool.grow(&mut one), Err(PoolError::TooLarge));
        let mut two = pool.take(1).unwrap();
        assert_eq!(pool.take(32 << 10), Err(PoolError::Full));
        assert_eq!(pool.grow(&mut two), Err(PoolError::Full));
        assert_eq!(pool.lent(), 80 << 10);
        pool.give_back(one);
        assert_eq!(pool.grow(&mut two), Ok(()));
        pool.give_back(two);
        assert_eq!(pool.lent(), 0);
    }

    #[test]
    fn idle_buffers_make_room_for_larger_ones() {
        let mut pool = pool(64 << 10, 64 << 10);
        let small = [pool.take(1).unwrap(), pool.take(1).unwrap()];
        small.into_iter().for_each(|buffer| pool.give_back(buffer));
        assert!(pool.take(64 << 10).is_ok());
    }

    #[test]
    fn growing_keeps_the_content_and_the_books() {
        let mut pool = pool(1 << 20, 1 << 20);
        let mut buffer = pool.take(1).unwrap();
        buffer.extend_from_slice(b"fat tree");
        pool.grow(&mut buffer).unwrap();
        assert_eq!((&buffer[..], buffer.capacity()), (&b"fat tree"[..], 32 << 10));
        assert_eq!(pool.lent(), 32 << 10);
    }
}
