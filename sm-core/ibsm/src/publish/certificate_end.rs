//! Reports certificates that are about to end.

use std::time::{Duration, SystemTime};

use sa_proto::trust::{TlsFiles, Usage};

use crate::observe::problem::{Condition, Kind, Subject};
use crate::observe::words::duration;

/// How long before its end a certificate is reported.
const AHEAD: Duration = Duration::from_secs(30 * 24 * 3600);

/// What is wrong with the certificates of these files at `now`. Reads the files.
pub(super) fn look(files: &TlsFiles, now: SystemTime) -> Option<Condition> {
    let unusable = |detail: String| {
        let subject = Subject::named(files.cert.display().to_string());
        Condition::new(Kind::Certificate, subject, detail)
    };
    match files.first_end() {
        Ok(end) => {
            let ends = end.and_then(|(path, end)| of_end(&path.display().to_string(), end, now));
            // Connections go on with what was read before.
            let read = || files.read(Usage::Server).err();
            ends.or_else(|| Some(unusable(format!("the new files are not used: {}", read()?))))
        }
        Err(failure) => Some(unusable(format!("the certificate files cannot be read: {failure}"))),
    }
}

fn of_end(path: &str, end: SystemTime, now: SystemTime) -> Option<Condition> {
    let detail = match end.duration_since(now) {
        Ok(left) if left > AHEAD => return None,
        Ok(left) => format!("a certificate in it expires in {}", duration(left.as_secs())),
        Err(past) => {
            format!("a certificate in it expired {} ago", duration(past.duration().as_secs()))
        }
    };
    Some(Condition::new(Kind::Certificate, Subject::named(path), detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 24 * 3600;

    #[test]
    fn a_certificate_is_reported_thirty_days_before_its_end() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000 * DAY_S);
        let detail = |days: u64| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY_S);
            of_end("sm.pem", end, now).map(|condition| condition.text())
        };
        assert_eq!(detail(969), None);
        assert_eq!(detail(971).unwrap(), "sm.pem: a certificate in it expires in 29 d 0 h");
        assert_eq!(detail(1_002).unwrap(), "sm.pem: a certificate in it expired 2 d 0 h ago");
    }
}
