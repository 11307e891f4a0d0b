//! TLS for both sides: version 1.3 only, ring, ALPN `h2`. Certificates come as PEM text; what they
//! mean is in [`identity`](crate::identity).
//!
//! | file | owns |
//! |---|---|
//! | `server` | the listening side's configuration, which can change while it serves |
//! | `client` | the calling side's: whom it trusts, what it shows |
//! | `explain` | what a person can do about a failed handshake |
//! | `pin` | the hash that stands for a certificate authority until its certificate is known |

mod client;
mod explain;
mod pin;
mod server;

use std::sync::Arc;

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use webpki::EndEntityCert;

pub use client::{ClientTls, Trust};
pub use explain::explain;
pub use pin::{BadPin, Pin};
pub use server::{ServerTls, Shown};

const ALPN: &[u8] = b"h2";

/// Why certificates or keys cannot be used. `what` names them for a person.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{what}: not a certificate or key in PEM form: {why}")]
    Pem { what: String, why: String },
    #[error("{what}: holds no certificate")]
    Empty { what: String },
    #[error("{what}: {why}")]
    Unusable { what: String, why: rustls::Error },
    #[error("{what}: {why}")]
    Roots { what: String, why: String },
}

/// A certificate with the ones that vouch for it, and its private key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub chain: String,
    pub key: String,
}

/// Never shows the key.
impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

type Parsed = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Pair {
    fn parse(&self, what: &str) -> Result<Parsed, TlsError> {
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| TlsError::Pem {
                what: format!("key of {what}"),
                why: e.to_string(),
            })?;
        Ok((certificates(&self.chain, what)?, key))
    }
}

/// All certificates of a PEM text; at least one.
pub(crate) fn certificates(
    pem: &str,
    what: &str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|e| TlsError::Pem {
        what: what.to_owned(),
        why: e.to_string(),
    })?;
    if found.is_empty() {
        return Err(TlsError::Empty {
            what: what.to_owned(),
        });
    }
    Ok(found)
}

/// The DNS names for which the first certificate of this PEM text is good.
pub fn dns_names(pem: &str) -> Vec<String> {
    let all = certificates(pem, "").unwrap_or_default();
    let first = all.first().map(EndEntityCert::try_from);
    let Some(Ok(first)) = first else {
        return Vec::new();
    };
    first.valid_dns_names().map(str::to_owned).collect()
}

fn roots(
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
    what: &str,
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|why| TlsError::Unusable {
            what: what.to_owned(),
            why,
        })?;
    }
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
