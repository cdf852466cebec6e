//! The protocol on the socket: one order per line, one report per line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::session::Tally;

/// The environment variable that names the socket for orders.
pub const SOCKET_VARIABLE: &str = "UMAD_FEED_SOCKET";

/// The requests to feed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Number of requests.
    pub total: u64,
    /// Maximum number open at a time.
    pub window: u64,
    /// Whether messages of the fabric are delivered meanwhile; if not, they wait.
    pub fabric: bool,
    /// Milliseconds between requests.
    pub pause_ms: u32,
    /// Nothing is passed to the SA: measures the cost of feeding and collecting.
    pub echo: bool,
    /// File of the requests.
    pub book: PathBuf,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, window, fabric, pause_ms, echo, book } = self;
        let (fabric, echo, book) = (u8::from(*fabric), u8::from(*echo), book.display());
        write!(f, "{total} {window} {fabric} {pause_ms} {echo} {book}")
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.trim_end().splitn(6, ' ');
        let mut number = || -> Option<u64> { words.next()?.parse().ok() };
        let numbers = (number(), number(), number(), number(), number());
        let (Some(total), Some(window @ 1..), Some(fabric), Some(pause), Some(echo)) = numbers
        else {
            return Err(format!("invalid order: {line}"));
        };
        let book = words.next().ok_or("an order without a file")?;
        Ok(Self {
            total,
            window,
            fabric: fabric != 0,
            pause_ms: u32::try_from(pause).map_err(|error| error.to_string())?,
            echo: echo != 0,
            book: book.into(),
        })
    }
}

/// The result of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The answers.
    pub tally: Tally,
    /// From the first request to the last answer.
    pub wall: Duration,
    /// CPU time of the threads that received requests or sent answers.
    pub query_cpu: Duration,
    /// CPU time of the process, without the thread that replaces a kernel.
    pub cpu: Duration,
    /// The longest time from a request to its answer, if one was open at a time.
    pub longest: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { answered, failed, records, bytes, failure } = &self.tally;
        write!(f, "{answered} {failed} {records} {bytes}")?;
        for time in [self.wall, self.query_cpu, self.cpu, self.longest] {
            write!(f, " {}", time.as_nanos())?;
        }
        write!(f, " {failure}")
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.trim_end_matches('\n').splitn(9, ' ');
        let mut numbers = [0; 8];
        for number in &mut numbers {
            let word = words.next().unwrap_or_default();
            *number = word.parse().map_err(|_| format!("invalid report: {line}"))?;
        }
        let [answered, failed, records, bytes, wall, query_cpu, cpu, longest] = numbers;
        let failure = words.next().unwrap_or_default().to_owned();
        Ok(Self {
            tally: Tally { answered, failed, records, bytes, failure },
            wall: Duration::from_nanos(wall),
            query_cpu: Duration::from_nanos(query_cpu),
            cpu: Duration::from_nanos(cpu),
            longest: Duration::from_nanos(longest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let order = Order {
            total: 5,
            window: 2,
            fabric: true,
            pause_ms: 3,
            echo: false,
            book: "/tmp/a file".into(),
        };
        assert_eq!(order.to_string().parse(), Ok(order));
        let tally =
            Tally { answered: 1, failed: 2, records: 3, bytes: 4, failure: "a b".to_owned() };
        let [wall, query_cpu, cpu, longest] = [5, 6, 7, 8].map(Duration::from_nanos);
        let report = Report { tally, wall, query_cpu, cpu, longest };
        assert_eq!(format!("{report}\n").parse(), Ok(report));
        assert!("1 0 0 0 0 x".parse::<Order>().is_err(), "nothing may be open");
    }
}
