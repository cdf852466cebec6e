//! Certificates for tests.

use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SanType,
    SerialNumber,
};

use super::TlsFiles;

/// A CA.
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate for a server if it has names, else for a client.
    pub(crate) fn issue(&self, names: &[&str], uris: &[&str]) -> (Certificate, KeyPair) {
        self.sign(self.params(names, uris))
    }

    /// The CA's certificate in PEM format.
    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A list of certificates with these serial numbers, in DER and in PEM format.
    pub(crate) fn revoking(&self, serials: &[SerialNumber]) -> (Vec<u8>, String) {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: serial.clone(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap();
        (list.der().to_vec(), list.pem().unwrap())
    }

    fn params(&self, names: &[&str], uris: &[&str]) -> CertificateParams {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = vec![match names.is_empty() {
            true => ExtendedKeyUsagePurpose::ClientAuth,
            false => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        params
    }

    fn sign(&self, params: CertificateParams) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes a certificate, its key and the CA's certificate.
    pub(crate) fn write(
        &self,
        directory: &Path,
        name: &str,
        names: &[&str],
        uris: &[&str],
    ) -> TlsFiles {
        self.put(directory, name, self.issue(names, uris))
    }

    /// As [`write`](Self::write), with an expired certificate.
    pub(crate) fn write_expired(&self, directory: &Path, name: &str, names: &[&str]) -> TlsFiles {
        let mut params = self.params(names, &[]);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        self.put(directory, name, self.sign(params))
    }

    fn put(&self, directory: &Path, name: &str, made: (Certificate, KeyPair)) -> TlsFiles {
        let at = |name: String| directory.join(name);
        let files = TlsFiles {
            ca: at(format!("{name}-ca.pem")),
            cert: at(format!("{name}.pem")),
            key: at(format!("{name}.key")),
            crl: None,
        };
        std::fs::write(&files.ca, self.certificate.pem()).unwrap();
        std::fs::write(&files.cert, made.0.pem()).unwrap();
        std::fs::write(&files.key, made.1.serialize_pem()).unwrap();
        files
    }
}
