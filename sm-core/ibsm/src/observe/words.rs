//! Words for people.

/// A duration in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// `1 day`, `2 days`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The state of the subnet, given that of the manager in the election and the numbers of critical
/// problems and warnings.
pub(crate) fn subnet(is_up: bool, state: &str, critical: u64, warnings: u64) -> &'static str {
    match (is_up, state) {
        (true, _) if critical > 0 => "up, with critical problems",
        (true, _) if warnings > 0 => "up, with problems",
        (true, _) => "up",
        (false, "master") => "not up; see the log of ibsm",
        (false, "standby") => "managed by another SM",
        (false, _) => "not up",
    }
}
