//! Texts for the reason of a failed connection.

use std::error::Error;
use std::io;

use tokio_rustls::rustls::{CertificateError, Error as TlsError};

/// How the TLS library reports an alert of the peer.
const ALERT: &str = "received fatal alert: ";

/// Why a connection or request failed: the defect of a certificate, else the innermost error.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    let words = words(error);
    let lower = words.to_ascii_lowercase();
    // With TLS 1.3 a peer's alert about our certificate often arrives after the connection was
    // closed.
    if ["connection closed", "broken pipe", "connection reset"].iter().any(|w| lower.contains(w)) {
        return format!(
            "{words}; the peer may require TLS or have refused our certificate, see its log"
        );
    }
    words
}

/// Why an established connection broke: certificates are not the reason.
pub fn reason_of_break(status: &tonic::Status) -> String {
    match status.source() {
        Some(cause) => words(cause),
        None => status.message().to_owned(),
    }
}

fn words(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    let mut current = Some(error);
    while let Some(error) = current {
        innermost = error;
        if let Some(words) = in_words(error) {
            return words;
        }
        current = next(error);
    }
    let words = innermost.to_string();
    // A TLS alert, parsed as HTTP/2.
    if words.to_ascii_lowercase().contains("frame with invalid size") {
        return "it does not speak plain HTTP/2; does the URL need https://?".to_owned();
    }
    words
}

/// The message of a peer's status, or why the connection to it broke.
pub fn reason_of_status(status: &tonic::Status) -> String {
    // A status with a cause was not sent by the peer.
    match status.source() {
        Some(cause) => reason(cause),
        None => status.message().to_owned(),
    }
}

/// The cause of an error. An I/O error's `source` skips the error that it wraps.
fn next<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return Some(inner);
    }
    error.source()
}

fn in_words(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(TlsError::InvalidCertificate(flaw)) = error.downcast_ref() {
        return Some(format!("its certificate {}", of_certificate(flaw)));
    }
    if let Some(TlsError::InvalidMessage(_)) = error.downcast_ref() {
        return Some("it does not speak TLS; is it http://?".to_owned());
    }
    // HTTP/2 passes an alert on as text.
    let text = error.to_string();
    let (_, alert) = text.split_once(ALERT)?;
    let alert: String = alert.chars().take_while(char::is_ascii_alphanumeric).collect();
    Some(match alert.as_str() {
        "CertificateRequired" => "it requires a client certificate and received none".to_owned(),
        "UnknownCA" => "it does not trust the CA of our certificate".to_owned(),
        "CertificateRevoked" => "it reports that our certificate was revoked".to_owned(),
        "CertificateExpired" => "it reports that our certificate has expired".to_owned(),
        "DecryptError" | "BadCertificate" | "CertificateUnknown" | "UnsupportedCertificate" => {
            "it does not accept our certificate".to_owned()
        }
        _ => format!("it closed TLS with alert {alert}"),
    })
}

/// The defect of a peer's certificate.
pub(super) fn of_certificate(flaw: &CertificateError) -> String {
    match flaw {
        // The signature of another CA with the same name counts as bad.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by a CA in --tls-ca".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; check the clocks".to_owned()
        }
        CertificateError::Revoked => "was revoked (--tls-crl)".to_owned(),
        CertificateError::NotValidForName => "is for another host".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "is not for {}, but for {}",
            expected.to_str(),
            if presented.is_empty() { "no host".to_owned() } else { presented.join(", ") }
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "does not permit this end of a connection (extended key usage)".to_owned()
        }
        other => format!("cannot be accepted: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaws_of_certificates_are_found_within_io_errors() {
        let flaw = TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, flaw);
        let twice = io::Error::other(wrapped);
        assert_eq!(reason(&twice), "its certificate is not signed by a CA in --tls-ca");
    }

    #[test]
    fn alerts_in_text_are_recognized() {
        let alert = io::Error::other("h2: received fatal alert: CertificateRequired");
        assert!(reason(&alert).contains("requires a client certificate"));
        let alert = io::Error::other("received fatal alert: NoApplicationProtocol");
        assert!(reason(&alert).ends_with("alert NoApplicationProtocol"));
    }

    /// Regression: after a peer in use was killed, the message suggested a problem with
    /// certificates.
    #[test]
    fn certificates_are_suspected_only_before_a_connection_was_in_use() {
        let broken = || io::Error::new(io::ErrorKind::BrokenPipe, "stream closed: broken pipe");
        assert!(reason(&broken()).contains("broken pipe; the peer may require TLS"));
        let status = tonic::Status::from_error(Box::new(broken()));
        assert!(reason_of_status(&status).contains("may require TLS"), "{status:?}");
        assert_eq!(reason_of_break(&status), "stream closed: broken pipe");
    }

    #[test]
    fn other_failures_show_the_innermost_cause() {
        let inner = io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
        assert_eq!(reason(&io::Error::other(inner)), "connection refused");
    }
}
