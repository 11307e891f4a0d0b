//! The authority's key, and the certificates that it issues: the server's own, hosts' and users'.
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
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::files::{TrustError, read, read_json, write, write_json};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(3_650);
const SERVER_LIFE: Duration = DAY.saturating_mul(90);
/// For hosts and users alike. Agents renew at two thirds of it.
pub const LEAF_LIFE: Duration = DAY.saturating_mul(30);
/// A certificate is valid from this long before it was issued, because clocks differ.
const BACKDATED: Duration = Duration::from_secs(60 * 60);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    trust_domain: String,
    /// DNS names and IP addresses at which agents and users call the coordinator.
    names: Vec<String>,
    made_us: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    chain: String,
    key: String,
    names: Vec<String>,
    not_before_us: u64,
    not_after_us: u64,
}

/// A certificate that was issued.
#[derive(Debug)]
pub struct Issued {
    pub principal: Principal,
    pub chain: String,
    pub authorities: String,
    pub not_before_us: u64,
    pub not_after_us: u64,
}

pub struct Authority {
    domain: TrustDomain,
    settings: Settings,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Never shows the key.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes an authority there, or opens the one that is there and adds names.
    pub(super) fn init(
        folder: &Path,
        domain: Option<&str>,
        names: &[String],
        now_us: u64,
    ) -> Result<(Self, bool), TrustError> {
        let settings_path = folder.join("settings.json");
        if let Some(mut there) = Self::open(folder)? {
            let own = there.domain.to_string();
            if domain.is_some_and(|domain| domain != own) {
                return Err(TrustError::OtherDomain(own));
            }
            for name in names {
                if !there.settings.names.contains(name) {
                    there.settings.names.push(name.clone());
                }
            }
            write_json(&settings_path, &there.settings)?;
            return Ok((there, false));
        }
        let settings = Settings {
            trust_domain: domain.unwrap_or("muster").to_owned(),
            names: names.to_vec(),
            made_us: now_us,
        };
        // Before anything is written: an authority with a wrong domain could never be opened.
        settings
            .trust_domain
            .parse::<TrustDomain>()
            .map_err(TrustError::Domain)?;
        let key = KeyPair::generate()?;
        let certificate = params_of(&settings).self_signed(&key)?.pem();
        write(&folder.join("authority.key"), &key.serialize_pem())?;
        write(&folder.join("authority.pem"), &certificate)?;
        // Written last: without it nothing was made.
        write_json(&settings_path, &settings)?;
        let made = Self::open(folder)?.ok_or_else(|| TrustError::NotThere(folder.to_owned()))?;
        Ok((made, true))
    }

    pub(super) fn open(folder: &Path) -> Result<Option<Self>, TrustError> {
        let path = folder.join("settings.json");
        let Some(settings) = read_json::<Settings>(&path)? else {
            return Ok(None);
        };
        let domain = settings
            .trust_domain
            .parse()
            .map_err(|e| TrustError::Malformed {
                path,
                why: format!("{e}"),
            })?;
        let must = |name: &str| {
            let path = folder.join(name);
            read(&path)?.ok_or_else(|| TrustError::Malformed {
                path,
                why: "is missing".into(),
            })
        };
        let key = KeyPair::from_pem(&must("authority.key")?)?;
        Ok(Some(Self {
            domain,
            certificate: must("authority.pem")?,
            issuer: Issuer::new(params_of(&settings), key),
            settings,
        }))
    }

    pub fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    pub fn names(&self) -> &[String] {
        &self.settings.names
    }

    /// The authority's own certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What a machine without a certificate knows the coordinator by.
    pub fn pin(&self) -> Pin {
        Pin::of_pem(&self.certificate).expect("the authority's certificate was read")
    }

    pub fn endpoint(&self, port: u16) -> String {
        let name = self.settings.names.first().map_or("localhost", |name| name);
        if name.contains(':') {
            format!("https://[{name}]:{port}")
        } else {
            format!("https://{name}:{port}")
        }
    }

    /// The server's certificate on disk. A new one is made if there is none, if two thirds of its
    /// life are over, or if it is for other names.
    pub(super) fn server_pair(&self, folder: &Path, now_us: u64) -> Result<Pair, TrustError> {
        let path = folder.join("server.json");
        let names = &self.settings.names;
        if let Some(server) = read_json::<Server>(&path)? {
            let due = server.not_before_us + (server.not_after_us - server.not_before_us) / 3 * 2;
            if server.names == *names && now_us < due && now_us >= server.not_before_us {
                return Ok(Pair {
                    chain: server.chain,
                    key: server.key,
                });
            }
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.clone())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "muster-coordinator");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (not_before_us, not_after_us) = valid(&mut params, now_us, SERVER_LIFE);
        let leaf = params.signed_by(&key, &self.issuer)?.pem();
        let server = Server {
            // Callers that know only the pin need the authority's certificate.
            chain: format!("{leaf}{}", self.certificate),
            key: key.serialize_pem(),
            names: names.clone(),
            not_before_us,
            not_after_us,
        };
        write_json(&path, &server)?;
        Ok(Pair {
            chain: server.chain,
            key: server.key,
        })
    }

    /// Certifies that the holder of this key is this principal.
    pub(super) fn issue(
        &self,
        principal: &Principal,
        key: Point,
        now_us: u64,
    ) -> Result<Issued, TrustError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, principal.to_string());
        let uri = principal.uri(&self.domain).as_str().try_into()?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (not_before_us, not_after_us) = valid(&mut params, now_us, LEAF_LIFE);
        Ok(Issued {
            principal: principal.clone(),
            chain: params.signed_by(&key, &self.issuer)?.pem(),
            authorities: self.certificate.clone(),
            not_before_us,
            not_after_us,
        })
    }
}

fn params_of(settings: &Settings) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = format!("Muster CA of {}", settings.trust_domain);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, settings.made_us, AUTHORITY_LIFE);
    params
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

    #[test]
    fn the_servers_certificate_lasts_until_two_thirds_are_over_or_names_change() {
        let folder = tempfile::tempdir().unwrap();
        let now = super::super::files::now_us();
        let names = ["a.example".to_owned(), "10.0.0.1".to_owned()];
        let (authority, new) = Authority::init(folder.path(), None, &names, now).unwrap();
        assert!(new);
        let at = |authority: &Authority, day: u64| {
            authority
                .server_pair(folder.path(), now + day * DAY.as_micros() as u64)
                .unwrap()
                .chain
        };
        let first = at(&authority, 0);
        assert_eq!(at(&authority, 59), first);
        let second = at(&authority, 61);
        assert_ne!(second, first);
        let more = ["b.example".to_owned()];
        let (authority, new) = Authority::init(folder.path(), Some("muster"), &more, now).unwrap();
        assert!(!new);
        assert_eq!(authority.names(), ["a.example", "10.0.0.1", "b.example"]);
        assert_ne!(at(&authority, 61), second);
        assert_eq!(authority.endpoint(7), "https://a.example:7");
        let error = Authority::init(folder.path(), Some("other"), &[], now).unwrap_err();
        assert!(matches!(error, TrustError::OtherDomain(_)));
    }
}
