//! Dates and times of day, in the zone of this host or in UTC.

/// A date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i32,
    /// 1 to 12.
    pub(crate) month: u32,
    /// 1 to 31.
    pub(crate) day: u32,
    pub(crate) hour: u32,
    pub(crate) minute: u32,
    pub(crate) second: u32,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

impl Civil {
    /// The time in this host's zone, of seconds since 1970.
    pub(crate) fn local(seconds: u64) -> Option<Self> {
        let tm = local(seconds)?;
        Some(Self {
            year: tm.tm_year + 1900,
            month: tm.tm_mon as u32 + 1,
            day: tm.tm_mday as u32,
            hour: tm.tm_hour as u32,
            minute: tm.tm_min as u32,
            second: tm.tm_sec as u32,
        })
    }

    /// Seconds since 1970 of a time in UTC, or in this host's zone.
    pub(crate) fn since_1970(self, is_utc: bool) -> Option<u64> {
        // SAFETY: all fields are integers, or a pointer that the functions below set.
        let mut tm: libc::tm = unsafe { std::mem::zeroed() };
        tm.tm_year = self.year - 1900;
        tm.tm_mon = self.month as i32 - 1;
        tm.tm_mday = self.day as i32;
        tm.tm_hour = self.hour as i32;
        tm.tm_min = self.minute as i32;
        tm.tm_sec = self.second as i32;
        // The system finds out whether summer time applies.
        tm.tm_isdst = -1;
        // SAFETY: `tm` is valid for reads and writes during the call.
        let seconds = unsafe { if is_utc { libc::timegm(&mut tm) } else { libc::mktime(&mut tm) } };
        u64::try_from(seconds).ok()
    }
}

/// The time in this host's zone as ctime(3) writes it, without the end of the line:
/// `Thu Nov  5 12:03:10 2026`.
pub(crate) fn ctime(seconds: u64) -> String {
    let Some(tm) = local(seconds) else { return seconds.to_string() };
    let name = |names: &[&'static str], at: libc::c_int| {
        usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or("???")
    };
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}",
        name(&DAYS, tm.tm_wday),
        name(&MONTHS, tm.tm_mon),
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        tm.tm_year + 1900
    )
}

/// The time in UTC as compilers write theirs, date and time: `Oct  6 2022 04:55:41`.
pub(crate) fn build_time(seconds: u64) -> String {
    let Some(tm) = broken_down(seconds, true) else { return seconds.to_string() };
    let month = usize::try_from(tm.tm_mon).ok().and_then(|at| MONTHS.get(at)).unwrap_or(&"???");
    format!(
        "{month} {:2} {} {:02}:{:02}:{:02}",
        tm.tm_mday,
        tm.tm_year + 1900,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

fn local(seconds: u64) -> Option<libc::tm> {
    broken_down(seconds, false)
}

fn broken_down(seconds: u64, is_utc: bool) -> Option<libc::tm> {
    let time = libc::time_t::try_from(seconds).ok()?;
    // SAFETY: all fields are integers, or a pointer that the function below sets.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid during the call, and the functions keep neither.
    let result = unsafe {
        match is_utc {
            true => libc::gmtime_r(&time, &mut tm),
            false => libc::localtime_r(&time, &mut tm),
        }
    };
    (!result.is_null()).then_some(tm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_by_ctime() {
        // Three days of a week, wherever this host is.
        let text = ctime(1_700_000_000);
        assert!(text.len() == 24 && text.contains("Nov 1") && text.ends_with(" 2023"), "{text}");
        assert!(ctime(1_701_000_000 + 7 * 86_400).contains("Dec  3"), "one digit is padded");
    }

    #[test]
    fn a_build_time_is_written_as_by_compilers() {
        assert_eq!(build_time(1_665_896_141), "Oct 16 2022 04:55:41");
        assert_eq!(build_time(0), "Jan  1 1970 00:00:00");
    }

    #[test]
    fn a_local_time_reads_back() {
        let civil = Civil::local(1_795_780_800).unwrap();
        assert_eq!(civil.since_1970(false), Some(1_795_780_800));
    }
}
