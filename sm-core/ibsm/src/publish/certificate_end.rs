//! Reports certificates that are about to end: those of this SM, and of responders.

use std::time::{Duration, SystemTime};

use sa_proto::trust::{TlsFiles, Usage};

use crate::observe::Responder;
use crate::observe::problem::{Condition, Kind, Subject};
use crate::observe::words::count;

/// How long before its end a certificate is reported.
const AHEAD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The statistic in which a responder reports when the first of its certificates ends, seconds
/// since 1970: its own, or that of its CA.
const REPORTED: &str = "certificate_end_s";

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

/// What is wrong with the certificate of a responder, which reports when it ends.
pub(super) fn of_responder(responder: &Responder, now: SystemTime) -> Option<Condition> {
    let (_, end_s) = responder.stats.iter().find(|(name, _)| name == REPORTED)?;
    let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(*end_s))?;
    of_end(&format!("responder {} ({:#018x})", responder.name, responder.id), end, now)
}

fn of_end(of: &str, end: SystemTime, now: SystemTime) -> Option<Condition> {
    let detail = match end.duration_since(now) {
        Ok(left) if left > AHEAD => return None,
        Ok(left) => format!("a certificate of it expires in {}", roughly(left)),
        Err(past) => format!("a certificate of it expired {} ago", roughly(past.duration())),
    };
    Some(Condition::new(Kind::Certificate, Subject::named(of), detail))
}

/// In days, or hours if they are few: the text of a problem is not to change all the time.
fn roughly(time: Duration) -> String {
    let hours = time.as_secs() / 3600;
    match hours / 24 {
        0 | 1 => count(hours, "hour", "hours"),
        days => count(days, "day", "days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use sa_proto::proto::snapshot::Hello;

    const DAY_S: u64 = 24 * 3600;

    #[test]
    fn a_certificate_is_reported_thirty_days_before_its_end() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000 * DAY_S);
        let detail = |days: u64| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY_S);
            of_end("sm.pem", end, now).map(|condition| condition.text())
        };
        assert_eq!(detail(969), None);
        assert_eq!(detail(971).unwrap(), "sm.pem: a certificate of it expires in 29 days");
        assert_eq!(detail(999).unwrap(), "sm.pem: a certificate of it expires in 24 hours");
        assert_eq!(detail(1_002).unwrap(), "sm.pem: a certificate of it expired 2 days ago");
    }

    /// Regression: a responder's certificate expired unnoticed, and the responder could not connect
    /// again.
    #[test]
    fn a_responder_whose_certificate_ends_soon_is_reported() {
        let hello = Hello { responder_id: 7, name: "sa1".into(), ..Hello::default() };
        let mut responder = Responder::new(&hello, None, None, Instant::now(), 1);
        let at = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY_S);
        assert_eq!(of_responder(&responder, at(9)), None, "one without TLS has none");
        responder.stats = [(REPORTED.to_owned(), 100 * DAY_S)].into();
        assert_eq!(of_responder(&responder, at(69)), None);
        let found = of_responder(&responder, at(97)).unwrap();
        let text = "responder sa1 (0x0000000000000007): a certificate of it expires in 3 days";
        assert_eq!((found.kind, &found.text()[..]), (Kind::Certificate, text));
        responder.stats = [(REPORTED.to_owned(), u64::MAX)].into();
        assert_eq!(of_responder(&responder, at(9)), None, "which is no time");
    }
}
