//! Verifies certificates of clients by each CA with its own lists of revoked certificates.
//!
//! The library finds the list for a certificate by the issuer's name. While a CA changes its key,
//! two CAs have one name, and each has a list.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use crate::trust::{Credentials, TrustError};

/// The CAs of clients.
#[derive(Debug)]
pub(super) struct Authorities {
    /// A verifier for each; at least one.
    each: Vec<Arc<dyn ClientCertVerifier>>,
    names: Vec<DistinguishedName>,
}

impl Authorities {
    /// Of the CAs and lists in `credentials`. A CA without a list has revoked nothing.
    pub(super) fn of(
        credentials: &Credentials,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TrustError> {
        let tls = |error: &dyn std::error::Error| TrustError::Tls(error.to_string());
        let verifier = |(ca, lists): (&CertificateDer<'static>, &Vec<_>)| {
            let mut roots = RootCertStore::empty();
            roots.add(ca.clone()).map_err(|error| tls(&error))?;
            // Clients without a certificate are refused.
            let verifier: Arc<dyn ClientCertVerifier> =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                    .with_crls(lists.iter().cloned())
                    .allow_unknown_revocation_status()
                    .build()
                    .map_err(|error| tls(&error))?;
            Ok(verifier)
        };
        let each: Result<Vec<_>, TrustError> =
            credentials.ca.iter().zip(&credentials.crls).map(verifier).collect();
        let each = each?;
        let names = each.iter().flat_map(|one| one.root_hint_subjects().to_vec()).collect();
        match each.is_empty() {
            true => Err(TrustError::Tls("no CA".to_owned())),
            false => Ok(Self { each, names }),
        }
    }
}

/// Whether an error says that another CA signed the certificate.
fn is_of_another(error: &Error) -> bool {
    use CertificateError::{BadSignature, UnknownIssuer};
    matches!(error, Error::InvalidCertificate(UnknownIssuer | BadSignature))
}

impl ClientCertVerifier for Authorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.names
    }

    /// Accepts what one of the CAs accepts. The error is that of the CA that signed it, if one did.
    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let mut refusal = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for one in &self.each {
            match one.verify_client_cert(own, intermediates, now) {
                Ok(verified) => return Ok(verified),
                Err(error) if is_of_another(&error) => {}
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.each[0].verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.each[0].verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.each[0].supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::testing::Ca;
    use crate::trust::{TlsFiles, Usage};
    use rcgen::SerialNumber;
    use tokio_rustls::rustls::crypto::ring;

    /// Regression: with two CAs of one name and a list of each, no client was accepted.
    #[test]
    fn each_ca_of_a_name_revokes_its_own_certificates() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new, other] = [Ca::new("one"), Ca::new("one"), Ca::new("one")];
        let files = old.write(directory.path(), "sm", &["localhost"], &[]);
        std::fs::write(&files.ca, old.pem() + &new.pem()).unwrap();
        let clients = [&old, &new, &other].map(|ca| ca.issue(&[], &[]).0);
        let serial = |client: &rcgen::Certificate| {
            let (_, parsed) = x509_parser::parse_x509_certificate(client.der()).unwrap();
            SerialNumber::from_slice(parsed.raw_serial())
        };
        let crl = directory.path().join("crl");
        let revoked = old.revoking(&[serial(&clients[0])]).1 + &new.revoking(&[]).1;
        std::fs::write(&crl, revoked).unwrap();
        let credentials = TlsFiles { crl: Some(crl), ..files }.read(Usage::Server).unwrap();
        let authorities =
            Authorities::of(&credentials, &Arc::new(ring::default_provider())).unwrap();
        let error = |client: &rcgen::Certificate| match authorities.verify_client_cert(
            client.der(),
            &[],
            UnixTime::now(),
        ) {
            Ok(_) => None,
            Err(Error::InvalidCertificate(error)) => Some(error),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(error(&clients[0]), Some(CertificateError::Revoked));
        assert_eq!(error(&clients[1]), None);
        assert_eq!(error(&clients[2]), Some(CertificateError::UnknownIssuer));
        assert_eq!(authorities.root_hint_subjects().len(), 2);
    }
}
