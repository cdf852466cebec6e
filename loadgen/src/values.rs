//! Parsers of option values: addresses, times, rates, numbers.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use ib_mad::types::PKey;

/// An address such as 192.0.2.1:7411 or localhost:7411. A name resolves to an IPv4 address if it
/// has one, since responders listen on IPv4 by default.
pub(crate) fn target(text: &str) -> Result<SocketAddr, String> {
    let found: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
    best.copied().ok_or_else(|| "the name has no address".to_owned())
}

/// A time such as 200ms, 10s, 2m or 1.5.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    digits
        .parse::<f64>()
        .ok()
        .and_then(|value| Duration::try_from_secs_f64(value * seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "expected a number with unit us, ms, s, m or h, such as 200ms".to_owned())
}

pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate| (1e-3..=1e9).contains(rate))
        .ok_or_else(|| "expected queries a second, up to 1e9".to_owned())
}

pub(crate) fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "expected a number, decimal or hexadecimal with 0x".to_owned())
}

pub(crate) fn pkey(text: &str) -> Result<PKey, String> {
    let value = number(text)?;
    u16::try_from(value).map(PKey).ok().filter(|pkey| pkey.is_valid()).ok_or_else(|| {
        "expected a 16-bit P_Key such as 0xffff; 0x0000 and 0x8000 are invalid".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_units_that_exist() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "ms", "5 parsecs", "-1s", "0s", "nan", "1e300h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_may_have_names() {
        assert_eq!(target("127.0.0.1:7411"), Ok("127.0.0.1:7411".parse().unwrap()));
        assert!(target("localhost:7411").unwrap().ip().is_loopback());
        assert!(target("localhost").is_err() && target("127.0.0.1").is_err());
    }
}
