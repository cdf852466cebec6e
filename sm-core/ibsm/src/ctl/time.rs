//! Times as operators write them: `12:03`, `2026-11-27 12:03`, `5m` ago; and times as text.
//!
//! Without a zone they are in this host's.

use super::CtlError;
use crate::civil::Civil;
use crate::clock::unix_ms;

/// What an argument may be.
const EXPECTED: &str = "a time such as 12:03, 12:03:10, '2026-11-27 12:03', 2026-11-27T12:03:00Z, \
                        @SECONDS since 1970, 5m or 2h (ago), or now";

/// Milliseconds since 1970 of an argument named `what`.
pub(super) fn parse(what: &'static str, text: &str) -> Result<u64, CtlError> {
    let refused = || CtlError::Argument { what, expected: EXPECTED, got: text.to_owned() };
    read(text.trim(), unix_ms()).ok_or_else(refused)
}

fn read(text: &str, now_ms: u64) -> Option<u64> {
    if text == "now" {
        return Some(now_ms);
    }
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse::<u64>().ok()?.checked_mul(1000);
    }
    if let Some(ago) = ago(text) {
        return Some(now_ms.saturating_sub(ago));
    }
    let (text, is_utc) = match text.strip_suffix('Z') {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (Some(date), time),
        None if text.contains(':') => (None, text),
        None => (Some(text), "00:00"),
    };
    let today = Civil::local(now_ms / 1000)?;
    let (year, month, day) = match date {
        None => (today.year, today.month, today.day),
        Some(date) => {
            let mut parts = date.split('-');
            let year: i32 = parts.next()?.parse().ok()?;
            let (month, day) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            if parts.next().is_some() {
                return None;
            }
            (year, month, day)
        }
    };
    let mut parts = time.split(':');
    let (hour, minute) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let second = parts.next().map_or(Some(0), |second| second.parse().ok())?;
    let is_valid = parts.next().is_none()
        && (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    let civil = Civil { year, month, day, hour, minute, second };
    let seconds = is_valid.then(|| civil.since_1970(is_utc))??;
    // A time of day that is yet to come is yesterday's.
    let is_future = date.is_none() && seconds * 1000 > now_ms;
    Some((if is_future { seconds.checked_sub(86_400)? } else { seconds }) * 1000)
}

/// A duration, milliseconds: `90s`, `5m`, `2h`, `3d`.
fn ago(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        's' => 1000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit)
}

/// A time as text, without milliseconds.
pub(super) fn seconds(time_ms: u64) -> String {
    let mut text = text(time_ms);
    if let Some(at) = text.rfind('.') {
        text.truncate(at);
    }
    text
}

/// A time in this host's zone: `2026-11-27 12:03:10.042`.
pub(super) fn text(time_ms: u64) -> String {
    match Civil::local(time_ms / 1000) {
        None => time_ms.to_string(),
        Some(Civil { year, month, day, hour, minute, second }) => {
            let millis = time_ms % 1000;
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-27 12:00:00 UTC.
    const NOON: u64 = 1_795_780_800_000;

    #[test]
    fn times_are_read_in_every_form() {
        assert_eq!(read("2026-11-27T12:00:00Z", 0), Some(NOON));
        assert_eq!(read("2026-11-27 12:03Z", 0), Some(NOON + 180_000));
        assert_eq!((read("now", 7), read("5m", NOON)), (Some(7), Some(NOON - 300_000)));
        assert_eq!(read("@1795780800", 0), Some(NOON));
        for text in
            ["", "m", "12", "12:99", "x", "2026-13-01", "1:2:3:4", "é", "99999999999999999d"]
        {
            assert_eq!(read(text, NOON), None, "{text}");
        }
    }

    #[test]
    fn a_time_that_was_written_reads_back() {
        let written = text(NOON + 42);
        let (time, millis) = written.split_once('.').unwrap();
        assert_eq!((read(time, NOON), millis), (Some(NOON), "042"));
        let (_, of_day) = time.split_once(' ').unwrap();
        assert_eq!(read(of_day, NOON + 1000), Some(NOON), "today");
        let before = read(of_day, NOON - 1000).unwrap();
        assert!((NOON - 90_000_000..NOON - 80_000_000).contains(&before), "yesterday");
    }
}
