//! The certificate files of a process, read and checked before use.

#![allow(
    clippy::disallowed_methods,
    reason = "this module reads certificates and checks whether they have expired"
)]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error as TlsError, InconsistentKeys};

use super::revocation::lists_by_ca;

/// Size limit of a file of certificates or of a key in bytes.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Size limit of a list of revoked certificates in bytes: some 600,000 of them.
const CRL_LEN_MAX: u64 = 32 << 20;

/// Paths of a process's certificate files, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the CAs that must have signed peers' certificates (`--tls-ca`).
    pub ca: PathBuf,
    /// Our own certificate, and the intermediate ones up to the CA (`--tls-cert`).
    pub cert: PathBuf,
    /// Its private key (`--tls-key`).
    pub key: PathBuf,
    /// Certificates that the CAs have revoked (`--tls-crl`). Only servers look at it.
    pub crl: Option<PathBuf>,
}

/// The end of a connection that a certificate is used at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The end that accepts connections.
    Server,
    /// The end that connects.
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

/// Why certificates or a URL cannot be used.
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
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file lacks the expected content.
    #[error("{} ({option}) contains no {wanted} in PEM format", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// The expected content.
        wanted: &'static str,
    },
    /// Only some of the three options are given.
    #[error("--tls-ca, --tls-cert and --tls-key go together; {0} is missing")]
    Incomplete(&'static str),
    /// The private key belongs to another certificate.
    #[error(
        "{} (--tls-key) is not the key of the certificate in {} (--tls-cert)",
        key.display(), cert.display()
    )]
    OtherKey {
        /// The key file.
        key: PathBuf,
        /// The certificate file.
        cert: PathBuf,
    },
    /// Our own certificate would be rejected by every peer.
    #[error("the certificate in {} (--tls-cert) {reason}", path.display())]
    Useless {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A list of revoked certificates cannot be believed.
    #[error(
        "list {number} in {} (--tls-crl) is not signed by the CA of that name in {} (--tls-ca)",
        path.display(), ca.display()
    )]
    ForeignList {
        /// The file of lists.
        path: PathBuf,
        /// The list, from 1.
        number: usize,
        /// The file of CAs.
        ca: PathBuf,
    },
    /// This URL requires certificates.
    #[error("{0} needs --tls-ca, --tls-cert and --tls-key")]
    NoFiles(String),
    /// Certificates were given, but the URL does not use TLS.
    #[error("{0} does not use the configured certificates; use https://")]
    NotUsed(String),
    /// The connection is unprotected and `--insecure` was not given.
    #[error(
        "{0} is on another host and has no TLS; use https:// with --tls-ca, --tls-cert and \
         --tls-key, or say --insecure if the network is trusted"
    )]
    Insecure(String),
    /// Not a URL.
    #[error(
        "'{0}' is not the URL of an SM; write it like http://127.0.0.1:7471 or https://sm1:7471"
    )]
    Url(String),
    /// Any other error of the TLS library.
    #[error("TLS: {0}")]
    Tls(String),
}

/// Certificates of a process, read and checked.
pub struct Credentials {
    /// The CAs that sign peers' certificates.
    pub ca: Vec<CertificateDer<'static>>,
    /// Our certificate, then the intermediate ones.
    pub chain: Vec<CertificateDer<'static>>,
    /// Our private key.
    pub key: PrivateKeyDer<'static>,
    /// By CA: lists of revoked certificates that concern those it signed.
    pub crls: Vec<Vec<CertificateRevocationListDer<'static>>>,
    /// The files as PEM text, for [`tonic`].
    pub(super) pem: [Vec<u8>; 3],
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// The CAs in the TLS library's format.
    pub fn roots(&self) -> Result<RootCertStore, TrustError> {
        let mut roots = RootCertStore::empty();
        for ca in &self.ca {
            roots.add(ca.clone()).map_err(|error| TrustError::Tls(error.to_string()))?;
        }
        Ok(roots)
    }
}

impl TlsFiles {
    /// The files given by the options: all three or none.
    pub fn of(
        ca: Option<&Path>,
        cert: Option<&Path>,
        key: Option<&Path>,
    ) -> Result<Option<Self>, TrustError> {
        match (ca, cert, key) {
            (Some(ca), Some(cert), Some(key)) => {
                let (ca, cert, key) = (ca.into(), cert.into(), key.into());
                Ok(Some(Self { ca, cert, key, crl: None }))
            }
            (None, None, None) => Ok(None),
            (None, ..) => Err(TrustError::Incomplete("--tls-ca")),
            (_, None, _) => Err(TrustError::Incomplete("--tls-cert")),
            (.., None) => Err(TrustError::Incomplete("--tls-key")),
        }
    }

    /// Reads the files and checks that a peer could accept the certificate.
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
        let crls = self.revoked(&ca)?;
        let credentials = Credentials { ca, chain, key, crls, pem: [ca_pem, cert_pem, key_pem] };
        credentials.roots().map_err(|_| TrustError::Empty {
            path: self.ca.clone(),
            option: "--tls-ca",
            wanted: "CA certificate",
        })?;
        Ok(credentials)
    }

    /// When our certificate, or the CA certificate that ends first, ends: the file, and the time.
    /// Certificates without a usable end are skipped. An error also if the list of revoked
    /// certificates cannot be read.
    pub fn first_end(&self) -> Result<Option<(PathBuf, SystemTime)>, TrustError> {
        self.revoked(&certificates(&read(&self.ca, "--tls-ca")?, &self.ca, "--tls-ca")?)?;
        let mut first: Option<(PathBuf, SystemTime)> = None;
        for (path, option) in [(&self.cert, "--tls-cert"), (&self.ca, "--tls-ca")] {
            for certificate in certificates(&read(path, option)?, path, option)? {
                let Some(end) = end(&certificate) else { continue };
                if first.as_ref().is_none_or(|(_, earliest)| end < *earliest) {
                    first = Some((path.clone(), end));
                }
            }
        }
        Ok(first)
    }

    /// The lists of revoked certificates, by CA.
    fn revoked(
        &self,
        ca: &[CertificateDer<'static>],
    ) -> Result<Vec<Vec<CertificateRevocationListDer<'static>>>, TrustError> {
        let Some(path) = &self.crl else { return Ok(vec![Vec::new(); ca.len()]) };
        let lists = revoked(path)?;
        let by_ca = lists_by_ca(ca, &lists).map_err(|number| TrustError::ForeignList {
            path: path.clone(),
            number: number + 1,
            ca: self.ca.clone(),
        })?;
        let lists_of = |numbers: Vec<usize>| numbers.iter().map(|&at| lists[at].clone()).collect();
        Ok(by_ca.into_iter().map(lists_of).collect())
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

    /// Checks that our certificate is valid now and permits this usage. Its issuer is not checked:
    /// the peer may trust other CAs.
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
                Err(self.useless("is not valid yet; check the clock".to_owned()))
            }
            Err(webpki::Error::RequiredEkuNotFoundContext(_)) => {
                Err(self.useless(format!("does not permit use as a {usage} (extended key usage)")))
            }
            // Without a CA to check against, any other error is an unknown issuer.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn useless(&self, reason: String) -> TrustError {
        TrustError::Useless { path: self.cert.clone(), reason }
    }
}

/// When a certificate ends. Found by verifying it for the year 9999: the error has the end.
fn end(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    const FAR: Duration = Duration::from_secs(253_370_764_800);
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let checked = parsed.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &[],
        &[],
        UnixTime::since_unix_epoch(FAR),
        webpki::KeyUsage::server_auth(),
        None,
        None,
    );
    match checked {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

fn read(path: &Path, option: &'static str) -> Result<Vec<u8>, TrustError> {
    read_up_to(path, option, FILE_LEN_MAX)
}

fn read_up_to(path: &Path, option: &'static str, len_max: u64) -> Result<Vec<u8>, TrustError> {
    let read = || {
        if std::fs::metadata(path)?.len() > len_max {
            return Err(io::Error::other(format!("larger than {} MiB", len_max >> 20)));
        }
        std::fs::read(path)
    };
    read().map_err(|source| TrustError::Read { path: path.to_owned(), option, source })
}

fn revoked(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TrustError> {
    let option = "--tls-crl";
    let pem = read_up_to(path, option, CRL_LEN_MAX)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => {
            let wanted = "list of revoked certificates (X509 CRL)";
            Err(TrustError::Empty { path: path.to_owned(), option, wanted })
        }
    }
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

    /// Regression: a list that had become unreadable stayed in force as it was, and no problem
    /// reported it.
    #[test]
    fn a_list_of_revoked_certificates_that_cannot_be_read_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("test");
        let crl = directory.path().join("revoked.pem");
        std::fs::write(&crl, "no list").unwrap();
        let files = ca.write(directory.path(), "sm", &["localhost"], &[]);
        let files = TlsFiles { crl: Some(crl), ..files };
        assert!(files.first_end().unwrap_err().to_string().contains("--tls-crl"));
    }

    /// Regression: such a list stopped all connections, also those of other CAs.
    #[test]
    fn a_list_counts_for_the_ca_whose_key_signed_it() {
        let directory = tempfile::tempdir().unwrap();
        // Of a CA that got another key.
        let [old, new, other] = [Ca::new("one"), Ca::new("one"), Ca::new("other")];
        let files = old.write(directory.path(), "sm", &["localhost"], &[]);
        let crl = directory.path().join("revoked.pem");
        let files = TlsFiles { crl: Some(crl.clone()), ..files };
        let read = |authorities: &[&Ca], lists: &[&Ca]| {
            let join = |texts: Vec<String>| texts.concat();
            std::fs::write(&files.ca, join(authorities.iter().map(|ca| ca.pem()).collect()))
                .unwrap();
            std::fs::write(&crl, join(lists.iter().map(|ca| ca.revoking(&[]).1).collect()))
                .unwrap();
            let read = files.read(Usage::Server).map_err(|error| error.to_string());
            assert_eq!(read.is_ok(), files.first_end().is_ok());
            read.map(|read| read.crls.iter().map(Vec::len).collect::<Vec<_>>())
        };
        assert_eq!(read(&[&old, &new], &[&new, &old]), Ok(vec![1, 1]));
        assert_eq!(read(&[&old], &[&other]), Ok(vec![1]), "it may be an intermediate CA");
        assert_eq!(read(&[&old, &other], &[&other, &other]), Ok(vec![0, 2]));
        let refusal = read(&[&old, &other], &[&other, &new]).unwrap_err();
        assert!(refusal.starts_with("list 2 in ") && refusal.contains("(--tls-crl)"), "{refusal}");
    }

    #[test]
    fn the_certificate_that_ends_first_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("test");
        let files = ca.write_expired(directory.path(), "old", &["localhost"]);
        let (path, end) = files.first_end().unwrap().unwrap();
        assert_eq!((path, end < SystemTime::now()), (files.cert.clone(), true));
        let files = ca.write(directory.path(), "sm", &["localhost"], &[]);
        let (_, end) = files.first_end().unwrap().unwrap();
        assert!(end > SystemTime::now());
    }

    #[test]
    fn errors_of_files_name_the_file_and_its_option() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("test");
        let files = ca.write(directory.path(), "sm", &["localhost"], &[]);
        let error = |files: &TlsFiles| files.read(Usage::Server).unwrap_err();
        let missing = directory.path().join("none.pem");
        assert!(files.read(Usage::Server).is_ok());

        match error(&TlsFiles { ca: missing.clone(), ..files.clone() }) {
            TrustError::Read { path, option: "--tls-ca", source } => {
                assert_eq!((path, source.kind()), (missing, io::ErrorKind::NotFound));
            }
            other => panic!("{other}"),
        }
        match error(&TlsFiles { key: files.cert.clone(), ..files.clone() }) {
            TrustError::Empty { path, option: "--tls-key", .. } => assert_eq!(path, files.cert),
            other => panic!("{other}"),
        }
        match error(&TlsFiles { cert: files.key.clone(), ..files.clone() }) {
            TrustError::Empty { path, option: "--tls-cert", .. } => assert_eq!(path, files.key),
            other => panic!("{other}"),
        }
        let other = ca.write(directory.path(), "other", &["localhost"], &[]);
        match error(&TlsFiles { key: other.key.clone(), ..files.clone() }) {
            TrustError::OtherKey { key, cert } => {
                assert_eq!((key, cert), (other.key, files.cert));
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_certificate_that_peers_would_refuse_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("test");
        let refusal = |files: &TlsFiles| match files.read(Usage::Server) {
            Err(TrustError::Useless { path, reason }) => {
                assert_eq!(path, files.cert);
                reason
            }
            other => panic!("{other:?}"),
        };
        let old = ca.write_expired(directory.path(), "old", &["localhost"]);
        assert!(refusal(&old).starts_with("expired "), "{}", refusal(&old));
        let client = ca.write(directory.path(), "client", &[], &["urn:ibsm:role:admin"]);
        assert!(client.read(Usage::Client).is_ok());
        assert!(refusal(&client).contains("extended key usage"), "{}", refusal(&client));
    }

    #[test]
    fn files_are_named_all_or_none() {
        let file = Some(Path::new("a"));
        assert_eq!(TlsFiles::of(None, None, None).unwrap(), None);
        assert!(TlsFiles::of(file, file, file).unwrap().is_some());
        let error = TlsFiles::of(file, file, None);
        assert!(matches!(error, Err(TrustError::Incomplete("--tls-key"))), "{error:?}");
    }

    #[test]
    fn the_private_key_is_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let files = Ca::new("test").write(directory.path(), "sm", &["localhost"], &[]);
        let text = format!("{:?}", files.read(Usage::Server).unwrap());
        assert_eq!(text, "Credentials { chain: 1, .. }");
    }
}
