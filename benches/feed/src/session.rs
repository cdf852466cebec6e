//! Accounting of one run: the next request, the number of open requests, the results.
//!
//! One thread feeds requests; any thread may pass answers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use crate::MAD_LEN;
use crate::book::{Book, Request};

/// Offsets in a MAD (IBA 13.4.2, 15.2.1.1).
const METHOD: usize = 3;
const STATUS: usize = 4;
const TID: usize = 8;
const ATTRIBUTE_OFFSET: usize = 44;
/// Bytes of the headers of an SA's MAD.
const HEADER_LEN: usize = 56;
const RESPONSE: u8 = 0x80;
/// Methods whose answers are tables.
const GET_TABLE: u8 = 0x12;
const GET_MULTI: u8 = 0x14;
/// Upper half of our transaction IDs, without the serial number.
const SIGN: u32 = 0xFEED_0000;

/// A run: `total` requests of a book in turn, with at most `window` open.
pub struct Session {
    book: Arc<Book>,
    /// Upper half of the transaction IDs.
    sign: u32,
    total: u64,
    window: u64,
    fed: AtomicU64,
    done: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// Next step.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// Feed this request; it has been copied.
    Fed(&'a Request),
    /// Wait until this many answers have arrived in total.
    Full(u64),
    /// All requests have been fed.
    Over,
}

/// Results so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Answers.
    pub answered: u64,
    /// Wrong answers.
    pub failed: u64,
    /// Records in the correct answers.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// The error of the first wrong answer.
    pub failure: String,
}

impl Session {
    /// A new run. `serial` distinguishes it from earlier ones.
    ///
    /// # Panics
    ///
    /// If the book is empty or the window is 0.
    pub fn new(book: Arc<Book>, serial: u16, total: u64, window: u64) -> Self {
        assert!(!book.0.is_empty() && window > 0, "something to feed");
        Self {
            book,
            sign: SIGN | u32::from(serial),
            total,
            window,
            fed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Copies the next request, if one is due.
    #[inline]
    pub fn next(&self, mad: &mut [u8; MAD_LEN]) -> Next<'_> {
        let fed = self.fed.load(Relaxed);
        if fed == self.total {
            return Next::Over;
        }
        if fed - self.done.load(Relaxed) >= self.window {
            // Half of them at once, so that the feeder seldom sleeps.
            return Next::Full(fed - self.window / 2);
        }
        let request = &self.book.0[(fed % self.book.0.len() as u64) as usize];
        *mad = request.mad;
        let tid = u64::from(self.sign) << 32 | fed & u64::from(u32::MAX);
        mad[TID..TID + 8].copy_from_slice(&tid.to_be_bytes());
        self.fed.store(fed + 1, Relaxed);
        Next::Fed(request)
    }

    /// Records an answer by its first MAD and its total length. Returns the number of answers so
    /// far, if it belongs to this run.
    #[inline]
    pub fn take(&self, first: &[u8; MAD_LEN], len: usize) -> Option<u64> {
        let tid = u64::from_be_bytes(first[TID..TID + 8].try_into().expect("8 bytes"));
        if (tid >> 32) as u32 != self.sign || first[METHOD] & RESPONSE == 0 {
            return None;
        }
        let number = tid & u64::from(u32::MAX);
        let request = &self.book.0[(number % self.book.0.len() as u64) as usize];
        let at = usize::from(request.at);
        let said = u16::from_be_bytes([first[at], first[at + 1]]);
        let status = u16::from_be_bytes([first[STATUS], first[STATUS + 1]]);
        if status == 0 && said == request.expected {
            let (records, bytes) = self.content(request, first, len);
            self.records.fetch_add(records, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        } else {
            self.fail(format_args!(
                "request {number}: status {status:#06x}, {said:#06x} at byte {at} and not {:#06x}",
                request.expected
            ));
        }
        Some(self.done.fetch_add(1, SeqCst) + 1)
    }

    /// Records in an answer, and their bytes.
    fn content(&self, request: &Request, first: &[u8; MAD_LEN], len: usize) -> (u64, u64) {
        let data = len.saturating_sub(HEADER_LEN) as u64;
        if !matches!(request.mad[METHOD], GET_TABLE | GET_MULTI) {
            return (1, data);
        }
        let offset = [first[ATTRIBUTE_OFFSET], first[ATTRIBUTE_OFFSET + 1]];
        let stride = u64::from(u16::from_be_bytes(offset)) * 8;
        (data.checked_div(stride).unwrap_or(0), data)
    }

    #[cold]
    fn fail(&self, what: std::fmt::Arguments<'_>) {
        self.failed.fetch_add(1, Relaxed);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| what.to_string());
    }

    /// The number of answers so far.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done.load(SeqCst)
    }

    /// The number of answers expected.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The results.
    pub fn tally(&self) -> Tally {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Tally {
            answered: self.done(),
            failed: self.failed.load(Relaxed),
            records: self.records.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            failure: failure.clone().unwrap_or_default(),
        }
    }

    /// Feeds all requests and collects each as its own answer: measures the cost of the accounting.
    pub fn echo(&self) {
        let mut mad = [0; MAD_LEN];
        while let Next::Fed(_) = self.next(&mut mad) {
            mad[METHOD] |= RESPONSE;
            let request = &self.book.0[(self.done() % self.book.0.len() as u64) as usize];
            let at = usize::from(request.at);
            mad[at..at + 2].copy_from_slice(&request.expected.to_be_bytes());
            self.take(std::hint::black_box(&mad), MAD_LEN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Arc<Book> {
        let request = |lid| Request { lid, qpn: 1, at: 60, expected: lid, mad: [0; MAD_LEN] };
        Arc::new(Book((1..=3).map(request).collect()))
    }

    fn answer(session: &Session) -> Option<[u8; MAD_LEN]> {
        let mut mad = [0; MAD_LEN];
        let Next::Fed(request) = session.next(&mut mad) else { return None };
        mad[METHOD] |= RESPONSE;
        mad[60..62].copy_from_slice(&request.expected.to_be_bytes());
        Some(mad)
    }

    #[test]
    fn so_many_are_open_and_no_more() {
        let session = Session::new(book(), 7, 5, 2);
        let first = answer(&session).unwrap();
        answer(&session).unwrap();
        assert!(matches!(session.next(&mut [0; MAD_LEN]), Next::Full(1)));
        assert_eq!(session.take(&first, MAD_LEN), Some(1));
        assert!(answer(&session).is_some());
    }

    #[test]
    fn an_answer_that_says_something_else_fails() {
        let session = Session::new(book(), 7, 4, 4);
        let good = answer(&session).unwrap();
        let mut status = answer(&session).unwrap();
        status[STATUS] = 3;
        let mut other = answer(&session).unwrap();
        other[61] ^= 1;
        let foreign = [0; MAD_LEN];
        let taken = [good, status, other, foreign].map(|mad| session.take(&mad, MAD_LEN));
        assert_eq!(taken, [Some(1), Some(2), Some(3), None]);
        let tally = session.tally();
        assert_eq!((tally.answered, tally.failed, tally.records), (3, 2, 1));
        assert!(tally.failure.contains("0x0300"), "{}", tally.failure);
    }

    #[test]
    fn records_of_a_table_are_counted() {
        let mut book = Book::clone(&book());
        book.0[0].mad[METHOD] = GET_TABLE;
        let session = Session::new(Arc::new(book), 1, 1, 1);
        let mut mad = answer(&session).unwrap();
        mad[ATTRIBUTE_OFFSET + 1] = 8;
        session.take(&mad, HEADER_LEN + 10 * 64);
        assert_eq!((session.tally().records, session.tally().bytes), (10, 640));
    }

    #[test]
    fn an_echo_fails_nowhere() {
        let session = Session::new(book(), 1, 10, 4);
        session.echo();
        assert_eq!((session.tally().answered, session.tally().failed), (10, 0));
    }
}
