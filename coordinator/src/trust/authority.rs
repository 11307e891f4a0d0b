//! One authority: its key, and the certificates that it issues to the server, hosts and users.
//!
//! Lives are short, and renewal is automatic, so there is no list of revoked certificates: a name
//! that is denied is denied by name.

use std::{path::Path, time::Duration};

use muster_rpc::{
    identity::{Principal, TrustDomain},
    tls::{Pair, Pin},
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
};
use time::OffsetDateTime;

use super::files::{TrustError, read, remove, write};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(3_650);
const SERVER_LIFE: Duration = DAY.saturating_mul(90);
/// For hosts and users alike. Agents renew at two thirds of it.
pub const LEAF_LIFE: Duration = DAY.saturating_mul(30);
/// A certificate is valid from this long before it was issued, because clocks differ.
const BACKDATED: Duration = Duration::from_secs(60 * 60);

/// A certificate that was issued to a host or user.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) chain: String,
    pub(super) not_before_us: u64,
    pub(super) not_after_us: u64,
}

/// What distinguishes an authority from the others of its cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Description<'a> {
    pub(super) domain: &'a TrustDomain,
    /// Counts the authorities that this cluster has had, from 1.
    pub(super) number: u32,
    pub(super) made_us: u64,
}

impl Description<'_> {
    /// The files of its key and its certificate. The first ones have no number.
    fn files(&self) -> [String; 2] {
        let number = match self.number {
            1 => String::new(),
            number => format!("-{number}"),
        };
        ["key", "pem"].map(|kind| format!("authority{number}.{kind}"))
    }

    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // Each has a name of its own, because a certificate names its authority.
        let mut name = format!("Muster CA of {}", self.domain);
        if self.number > 1 {
            name += &format!(" {}", self.number);
        }
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid(&mut params, self.made_us, AUTHORITY_LIFE);
        params
    }
}

pub struct Authority {
    made_us: u64,
    certificate: String,
    pin: Pin,
    /// With the authority's name and key it can vouch, and be vouched for.
    params: CertificateParams,
    issuer: Issuer<'static, KeyPair>,
}

/// Never shows the key.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Writes the files of a new one, in place of any that are there.
    pub(super) fn make(folder: &Path, of: Description<'_>) -> Result<Self, TrustError> {
        let key = KeyPair::generate()?;
        let certificate = of.params().self_signed(&key)?.pem();
        let [key_file, certificate_file] = of.files();
        write(&folder.join(key_file), &key.serialize_pem())?;
        write(&folder.join(certificate_file), &certificate)?;
        Self::open(folder, of)
    }

    pub(super) fn open(folder: &Path, of: Description<'_>) -> Result<Self, TrustError> {
        let [key_file, certificate_file] = of.files().map(|name| folder.join(name));
        let malformed = |path: &Path, why: String| TrustError::Malformed {
            path: path.to_owned(),
            why,
        };
        let must = |path| read(path)?.ok_or_else(|| malformed(path, "is missing".into()));
        let key = KeyPair::from_pem(&must(&key_file)?)
            .map_err(|e| malformed(&key_file, format!("holds no private key: {e}")))?;
        let certificate = must(&certificate_file)?;
        let pin = Pin::of_pem(&certificate)
            .ok_or_else(|| malformed(&certificate_file, "holds no certificate".into()))?;
        if pin != Pin::of_key(&key.subject_public_key_info()) {
            let why = format!("is not the key of {}", certificate_file.display());
            return Err(malformed(&key_file, why));
        }
        Ok(Self {
            made_us: of.made_us,
            certificate,
            pin,
            params: of.params(),
            issuer: Issuer::new(of.params(), key),
        })
    }

    /// Removes its files.
    pub(super) fn remove(folder: &Path, of: Description<'_>) -> Result<(), TrustError> {
        let mut files = of.files().into_iter();
        files.try_for_each(|file| remove(&folder.join(file)))
    }

    /// Microseconds since the Unix epoch.
    pub fn made_us(&self) -> u64 {
        self.made_us
    }

    /// The authority's own certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What a machine without a certificate knows the coordinator by.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// Certifies another authority's key, so that everybody who trusts this one trusts what that one issues.
    pub(super) fn vouch_for(&self, other: &Authority) -> Result<String, TrustError> {
        let key = other.issuer.key();
        Ok(other.params.signed_by(key, &self.issuer)?.pem())
    }

    /// A new key with a certificate for a server of these names, and from when until when it is
    /// valid.
    pub(super) fn serve(
        &self,
        names: &[String],
        now_us: u64,
    ) -> Result<(Pair, (u64, u64)), TrustError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "muster-coordinator");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let valid = valid(&mut params, now_us, SERVER_LIFE);
        let pair = Pair {
            chain: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        };
        Ok((pair, valid))
    }

    /// Certifies that the holder of this key is this principal.
    pub(super) fn issue(
        &self,
        (principal, domain): (&Principal, &TrustDomain),
        key: &Point,
        (now_us, life): (u64, Duration),
    ) -> Result<Leaf, TrustError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, principal.to_string());
        let uri = principal.uri(domain).as_str().try_into()?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (not_before_us, not_after_us) = valid(&mut params, now_us, life);
        Ok(Leaf {
            chain: params.signed_by(key, &self.issuer)?.pem(),
            not_before_us,
            not_after_us,
        })
    }
}

/// Sets from when until when a certificate is valid, and returns both in microseconds.
fn valid(params: &mut CertificateParams, now_us: u64, life: Duration) -> (u64, u64) {
    let seconds = |us: u64| us / 1_000_000;
    let (from, until) = (
        seconds(now_us).saturating_sub(BACKDATED.as_secs()),
        seconds(now_us) + life.as_secs(),
    );
    let date = |seconds: u64| {
        OffsetDateTime::from_unix_timestamp(seconds as i64).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    (params.not_before, params.not_after) = (date(from), date(until));
    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
    (from * 1_000_000, until * 1_000_000)
}

/// A point on P-256, uncompressed.
pub(super) struct Point(Vec<u8>);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// What stands before the point in a SubjectPublicKeyInfo of P-256 (RFC 5480): the same bytes for
/// every key.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Reads a SubjectPublicKeyInfo. `None`: it is not an uncompressed P-256 key.
pub(super) fn point(info: &[u8]) -> Option<Point> {
    let point = info.strip_prefix(&P256)?;
    (point.len() == 65 && point[0] == 4).then(|| Point(point.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = KeyPair::generate().unwrap();
        let info = key.subject_public_key_info();
        assert_eq!(point(&info).unwrap().0, key.public_key_raw());
        assert!(point(&info[1..]).is_none() && point(&[]).is_none());
        let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        assert!(point(&other.subject_public_key_info()).is_none());
    }
}
