//! The files of one process's certificates, read and checked before anybody is shown them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error as TlsError, InconsistentKeys};

/// Bytes of a file that are read, at most.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Where the certificates of a process are, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the CAs that peers' certificates must be signed by (`--tls-ca`).
    pub ca: PathBuf,
    /// Our own certificate, and those between it and the CA (`--tls-cert`).
    pub cert: PathBuf,
    /// Its private key (`--tls-key`).
    pub key: PathBuf,
}

/// What a certificate is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// By who is connected to.
    Server,
    /// By who connects.
    Client,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Client => "client",
        })
    }
}

/// Why there is no trust.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A file cannot be read.
    #[error("cannot read {} ({option}): {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file has not what is looked for in it.
    #[error("{} ({option}) has no {wanted} in PEM", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// What it should have.
        wanted: &'static str,
    },
    /// Some files were named, and some not.
    #[error("--tls-ca, --tls-cert and --tls-key go together; {0} is missing")]
    Incomplete(&'static str),
    /// The private key is that of another certificate.
    #[error(
        "{} (--tls-key) is not the key of the certificate in {} (--tls-cert)",
        key.display(), cert.display()
    )]
    OtherKey {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
    },
    /// Our own certificate would be refused by everybody.
    #[error("the certificate in {} (--tls-cert) {reason}", path.display())]
    Useless {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Certificates are needed for this URL.
    #[error("{0} needs --tls-ca, --tls-cert and --tls-key")]
    NoFiles(String),
    /// The URL asks for no TLS although certificates were given.
    #[error("{0} does not use the certificates that were given; write https://")]
    NotUsed(String),
    /// Nothing protects this connection, and nobody said that this is meant.
    #[error(
        "{0} leads to another host without TLS; use https:// with --tls-ca, --tls-cert and \
         --tls-key, or say --insecure if everybody on the way is trusted"
    )]
    Insecure(String),
    /// Not a URL.
    #[error(
        "'{0}' is not the URL of an SM; write it like http://127.0.0.1:7471 or https://sm1:7471"
    )]
    Url(String),
    /// What TLS finds wrong with all of it.
    #[error("TLS: {0}")]
    Tls(String),
}

/// The certificates of a process, read and found fit to be shown.
pub struct Credentials {
    /// Who signs the certificates of peers.
    pub ca: Vec<CertificateDer<'static>>,
    /// Our certificate, then those between it and the CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// Our private key.
    pub key: PrivateKeyDer<'static>,
    /// The same as text, for [`tonic`].
    pub(super) pem: [Vec<u8>; 3],
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// The CAs as TLS takes them.
    pub fn roots(&self) -> Result<RootCertStore, TrustError> {
        let mut roots = RootCertStore::empty();
        for ca in &self.ca {
            roots.add(ca.clone()).map_err(|error| TrustError::Tls(error.to_string()))?;
        }
        Ok(roots)
    }
}

impl TlsFiles {
    /// The files that options name: all or none.
    pub fn of(
        ca: Option<&Path>,
        cert: Option<&Path>,
        key: Option<&Path>,
    ) -> Result<Option<Self>, TrustError> {
        match (ca, cert, key) {
            (Some(ca), Some(cert), Some(key)) => {
                Ok(Some(Self { ca: ca.into(), cert: cert.into(), key: key.into() }))
            }
            (None, None, None) => Ok(None),
            (None, ..) => Err(TrustError::Incomplete("--tls-ca")),
            (_, None, _) => Err(TrustError::Incomplete("--tls-cert")),
            (.., None) => Err(TrustError::Incomplete("--tls-key")),
        }
    }

    /// Reads the files, and checks that a peer could accept what is in them.
    pub fn read(&self, usage: Usage) -> Result<Credentials, TrustError> {
        let ca_pem = read(&self.ca, "--tls-ca")?;
        let cert_pem = read(&self.cert, "--tls-cert")?;
        let key_pem = read(&self.key, "--tls-key")?;
        let ca = certificates(&ca_pem, &self.ca, "--tls-ca")?;
        let chain = certificates(&cert_pem, &self.cert, "--tls-cert")?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| TrustError::Empty {
            path: self.key.clone(),
            option: "--tls-key",
            wanted: "private key",
        })?;
        self.check_key(&chain, &key)?;
        self.check_certificate(&chain[0], usage)?;
        let credentials = Credentials { ca, chain, key, pem: [ca_pem, cert_pem, key_pem] };
        credentials.roots().map_err(|_| TrustError::Empty {
            path: self.ca.clone(),
            option: "--tls-ca",
            wanted: "CA certificate",
        })?;
        Ok(credentials)
    }

    fn check_key(
        &self,
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
    ) -> Result<(), TrustError> {
        let other = || TrustError::OtherKey { key: self.key.clone(), cert: self.cert.clone() };
        let provider = ring::default_provider();
        match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider) {
            Ok(_) | Err(TlsError::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
            Err(TlsError::InconsistentKeys(_)) => Err(other()),
            Err(error) => Err(self.useless(error.to_string())),
        }
    }

    /// Whether our certificate holds now, and is for what it is shown for. Who signed it is the
    /// peer's business, whose CA may be another.
    fn check_certificate(
        &self,
        certificate: &CertificateDer<'static>,
        usage: Usage,
    ) -> Result<(), TrustError> {
        let parsed = webpki::EndEntityCert::try_from(certificate)
            .map_err(|error| self.useless(format!("cannot be used: {error}")))?;
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let checked = parsed.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &[],
            &[],
            UnixTime::since_unix_epoch(since_epoch.unwrap_or_default()),
            match usage {
                Usage::Server => webpki::KeyUsage::server_auth(),
                Usage::Client => webpki::KeyUsage::client_auth(),
            },
            None,
            None,
        );
        match checked {
            Err(webpki::Error::CertExpired { time, not_after }) => {
                let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
                Err(self.useless(format!("expired {days} days ago")))
            }
            Err(webpki::Error::CertNotValidYet { .. }) => {
                Err(self.useless("is not valid yet; is the clock right?".to_owned()))
            }
            Err(webpki::Error::RequiredEkuNotFoundContext(_)) => {
                Err(self.useless(format!("is not for a {usage} (extended key usage)")))
            }
            // Without a CA to check against, the rest is always an unknown issuer.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn useless(&self, reason: String) -> TrustError {
        TrustError::Useless { path: self.cert.clone(), reason }
    }
}

fn read(path: &Path, option: &'static str) -> Result<Vec<u8>, TrustError> {
    let read = || {
        if std::fs::metadata(path)?.len() > FILE_LEN_MAX {
            return Err(io::Error::other("too large to be one"));
        }
        std::fs::read(path)
    };
    read().map_err(|source| TrustError::Read { path: path.to_owned(), option, source })
}

fn certificates(
    pem: &[u8],
    path: &Path,
    option: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(TrustError::Empty { path: path.to_owned(), option, wanted: "certificate" }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Ca;
    use super::*;

    #[test]
    fn what_is_wrong_with_the_files_is_told_with_the_option_that_names_them() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("test");
        let files = ca.write(directory.path(), "sm", &["localhost"], &[]);
        let told = |files: &TlsFiles| files.read(Usage::Server).unwrap_err().to_string();
        let at = |name: &str| directory.path().join(name);
        assert!(files.read(Usage::Server).is_ok());

        let missing = TlsFiles { ca: at("none.pem"), ..files.clone() };
        assert!(told(&missing).contains("none.pem (--tls-ca): No such file"), "{}", told(&missing));
        let swapped = TlsFiles { key: files.cert.clone(), ..files.clone() };
        assert!(told(&swapped).ends_with("(--tls-key) has no private key in PEM"));
        let swapped = TlsFiles { cert: files.key.clone(), ..files.clone() };
        assert!(told(&swapped).ends_with("(--tls-cert) has no certificate in PEM"));
        let other = ca.write(directory.path(), "other", &["localhost"], &[]);
        let mixed = TlsFiles { key: other.key, ..files };
        assert!(told(&mixed).contains("is not the key of the certificate in"), "{}", told(&mixed));
    }

    #[test]
    fn a_certificate_that_nobody_would_accept_is_refused_by_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("test");
        let old = ca.write_expired(directory.path(), "old", &["localhost"]);
        let told = old.read(Usage::Server).unwrap_err().to_string();
        assert!(
            told.contains("old.pem (--tls-cert) expired ") && told.contains("days ago"),
            "{told}"
        );
        let client = ca.write(directory.path(), "client", &[], &["urn:ibsm:role:admin"]);
        assert!(client.read(Usage::Client).is_ok());
        let told = client.read(Usage::Server).unwrap_err().to_string();
        assert!(told.ends_with("is not for a server (extended key usage)"), "{told}");
    }

    #[test]
    fn files_are_named_all_or_none() {
        let file = Some(Path::new("a"));
        assert_eq!(TlsFiles::of(None, None, None).unwrap(), None);
        assert!(TlsFiles::of(file, file, file).unwrap().is_some());
        let told = TlsFiles::of(file, file, None).unwrap_err().to_string();
        assert_eq!(told, "--tls-ca, --tls-cert and --tls-key go together; --tls-key is missing");
    }

    #[test]
    fn the_private_key_is_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let files = Ca::new("test").write(directory.path(), "sm", &["localhost"], &[]);
        let text = format!("{:?}", files.read(Usage::Server).unwrap());
        assert_eq!(text, "Credentials { chain: 1, .. }");
    }
}
