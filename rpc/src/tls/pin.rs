//! The pin of a certificate authority: the SHA-256 of its public key (SubjectPublicKeyInfo, DER),
//! written `sha256:HEX`, as kubeadm writes it. It is short enough to copy by hand, and lets a
//! machine that has no certificate yet know whom it talks to.

use std::{collections::BTreeSet, fmt, str::FromStr};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pin([u8; 32]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pin like sha256: and 64 hexadecimal digits")]
pub struct BadPin(String);

impl Pin {
    /// The pin of the first certificate of this PEM text. `None`: there is none.
    pub fn of_pem(pem: &str) -> Option<Self> {
        Self::of(super::certificates(pem, "").ok()?.first()?)
    }

    /// The pins of all certificates of this PEM text. Empty: it cannot be read.
    pub fn all_of_pem(pem: &str) -> BTreeSet<Self> {
        let all = super::certificates(pem, "").unwrap_or_default();
        all.iter().filter_map(Self::of).collect()
    }

    /// The pin of a public key, given as SubjectPublicKeyInfo (DER).
    pub fn of_key(info: &[u8]) -> Self {
        let hash = digest(&SHA256, info);
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        Some(Self::of_key(parsed.subject_public_key_info().as_ref()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// `None`: these are not 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl TryFrom<String> for Pin {
    type Error = BadPin;

    fn try_from(text: String) -> Result<Self, BadPin> {
        text.parse()
    }
}

impl From<Pin> for String {
    fn from(pin: Pin) -> Self {
        pin.to_string()
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
