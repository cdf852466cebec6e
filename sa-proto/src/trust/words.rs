//! Why a connection failed, in words.

use std::error::Error;
use std::io;

use tokio_rustls::rustls::{CertificateError, Error as TlsError};

/// What TLS calls an alert of the peer.
const ALERT: &str = "received fatal alert: ";

/// Why there is no connection, or no answer: what is wrong with whose certificate if that is it,
/// else the innermost error.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    let words = words(error);
    let lower = words.to_ascii_lowercase();
    // What TLS 1.3 has to say of our certificate often comes too late to be read.
    if ["connection closed", "broken pipe", "connection reset"].iter().any(|w| lower.contains(w)) {
        return format!("{words}; if it wants TLS, or another certificate, its log says so");
    }
    words
}

/// Why a connection broke that had served before: the peer has nothing against us.
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
    // A TLS alert, read as HTTP/2.
    if words.to_ascii_lowercase().contains("frame with invalid size") {
        return "it does not speak plain HTTP/2; is it https://?".to_owned();
    }
    words
}

/// What a peer said, or why the connection to it broke.
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
    // By the time it comes out of HTTP/2, an alert is text.
    let text = error.to_string();
    let (_, alert) = text.split_once(ALERT)?;
    let alert: String = alert.chars().take_while(char::is_ascii_alphanumeric).collect();
    Some(match alert.as_str() {
        "CertificateRequired" => "it wants a certificate, and was shown none".to_owned(),
        "UnknownCA" => "its CA has not signed the certificate that it was shown".to_owned(),
        "CertificateExpired" => "the certificate that it was shown has expired".to_owned(),
        "DecryptError" | "BadCertificate" | "CertificateUnknown" | "UnsupportedCertificate" => {
            "it does not accept the certificate that it was shown".to_owned()
        }
        _ => format!("it ended TLS with alert {alert}"),
    })
}

/// What is wrong with a peer's certificate.
pub(super) fn of_certificate(flaw: &CertificateError) -> String {
    match flaw {
        // A bad signature is that of another CA of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by a CA in --tls-ca".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; are the clocks right?".to_owned()
        }
        CertificateError::NotValidForName => "is for another host".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "is not for {}, but for {}",
            expected.to_str(),
            if presented.is_empty() { "no host".to_owned() } else { presented.join(", ") }
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not meant for this end of a connection (extended key usage)".to_owned()
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
    fn alerts_that_have_become_text_are_understood() {
        let alert = io::Error::other("h2: received fatal alert: CertificateRequired");
        assert_eq!(reason(&alert), "it wants a certificate, and was shown none");
        let alert = io::Error::other("received fatal alert: NoApplicationProtocol");
        assert_eq!(reason(&alert), "it ended TLS with alert NoApplicationProtocol");
    }

    /// After a plain kill of a peer that had served it sent operators to look for certificates.
    #[test]
    fn only_who_never_served_may_want_another_certificate() {
        let broken = || io::Error::new(io::ErrorKind::BrokenPipe, "stream closed: broken pipe");
        assert!(reason(&broken()).contains("broken pipe; if it wants TLS"));
        let status = tonic::Status::from_error(Box::new(broken()));
        assert!(reason_of_status(&status).contains("if it wants TLS"), "{status:?}");
        assert_eq!(reason_of_break(&status), "stream closed: broken pipe");
    }

    #[test]
    fn what_is_not_about_trust_is_told_by_its_innermost_cause() {
        let inner = io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
        assert_eq!(reason(&io::Error::other(inner)), "connection refused");
    }
}
