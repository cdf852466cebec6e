//! Which CA signed which list of revoked certificates.

use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// For each CA, the indices of the lists that concern certificates it signed: those that its key
/// signed, and those of issuers that are none of these CAs, which may be intermediate ones. Fails
/// with the index of a list whose issuer has the name of a CA, but which no CA of that name signed.
pub(super) fn lists_by_ca(
    authorities: &[CertificateDer<'_>],
    lists: &[CertificateRevocationListDer<'_>],
) -> Result<Vec<Vec<usize>>, usize> {
    let parsed: Vec<Option<X509Certificate<'_>>> = authorities
        .iter()
        .map(|ca| X509Certificate::from_der(ca).ok().map(|(_, certificate)| certificate))
        .collect();
    let mut by_ca = vec![Vec::new(); authorities.len()];
    for (number, list) in lists.iter().enumerate() {
        let Ok((_, list)) = CertificateRevocationList::from_der(list) else { return Err(number) };
        let is_named = |ca: &X509Certificate<'_>| ca.subject().as_raw() == list.issuer().as_raw();
        let named = parsed.iter().flatten().any(is_named);
        let mut is_used = false;
        for (lists, ca) in by_ca.iter_mut().zip(&parsed) {
            let fits = ca
                .as_ref()
                .is_some_and(|ca| is_named(ca) && list.verify_signature(ca.public_key()).is_ok());
            if fits || !named {
                lists.push(number);
                is_used = true;
            }
        }
        if !is_used {
            return Err(number);
        }
    }
    Ok(by_ca)
}
