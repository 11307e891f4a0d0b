//! The pin of a certificate authority: the SHA-256 of its public key (SubjectPublicKeyInfo, DER),
//! written `sha256:HEX`, as kubeadm writes it. It is short enough to copy by hand, and lets a
//! machine that has no certificate yet know whom it talks to.

use std::{fmt, str::FromStr};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pin like sha256: and 64 hexadecimal digits")]
pub struct BadPin(String);

impl Pin {
    /// The pin of the first certificate of this PEM text. `None`: there is none.
    pub fn of_pem(pem: &str) -> Option<Self> {
        Self::of(super::certificates(pem, "").ok()?.first()?)
    }

    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let hash = digest(&SHA256, parsed.subject_public_key_info().as_ref());
        Some(Self(hash.as_ref().try_into().ok()?))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Pin {
    type Err = BadPin;

    fn from_str(text: &str) -> Result<Self, BadPin> {
        let bad = || BadPin(text.to_owned());
        let hex = text.strip_prefix("sha256:").ok_or_else(bad)?;
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}
