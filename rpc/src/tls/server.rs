//! The listening side: one certificate for everybody, and callers with a certificate of this
//! cluster or with none.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    ServerConfig,
    pki_types::CertificateDer,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use webpki::EndEntityCert;

use super::{ALPN, Pair, Pin, TlsError, certificates, provider, roots};
use crate::{identity::Identity, uri_names::UriNames};

/// The configuration with which connections are accepted. Cheap to clone; a change holds for every
/// connection after it, and no connection ends by it.
#[derive(Clone)]
pub struct ServerTls {
    names: UriNames,
    current: Arc<RwLock<Current>>,
}

#[derive(Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// The authorities of callers: the name under which each issues, and its pin.
    authorities: Arc<Vec<(Vec<u8>, Pin)>>,
}

/// The certificate that a caller has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The hash of its key. No two certificates have the same.
    pub key: Pin,
    /// The authority that has issued it.
    pub authority: Pin,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl ServerTls {
    /// `own`: shown to callers. `callers`: the authorities whose certificates callers may show, as
    /// PEM. `None`: callers can show none. `names`: what stands in those certificates.
    pub fn new(names: UriNames, own: &Pair, callers: Option<&str>) -> Result<Self, TlsError> {
        Ok(Self {
            names,
            current: Arc::new(RwLock::new(current(own, callers)?)),
        })
    }

    /// Takes another certificate or other authorities from now on. After an error everything is as
    /// before.
    pub fn replace(&self, own: &Pair, callers: Option<&str>) -> Result<(), TlsError> {
        let new = current(own, callers)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current().config
    }

    fn current(&self) -> Current {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificate that a caller with this chain has shown. `None`: it has shown none, or one of
    /// an authority that is trusted no more.
    pub(crate) fn shown(&self, chain: Option<&[CertificateDer<'_>]>) -> Option<Shown> {
        let leaf = chain?.first()?;
        let issuer = EndEntityCert::try_from(leaf).ok()?.issuer().to_vec();
        let current = self.current();
        let mut authorities = current.authorities.iter();
        let (_, authority) = authorities.find(|(name, _)| *name == issuer)?;
        Some(Shown {
            key: Pin::of(leaf)?,
            authority: *authority,
        })
    }

    /// Who a caller with this chain is. The handshake has already checked the chain. A certificate
    /// that names nobody of this cluster is worth as much as none.
    pub(crate) fn identity(&self, chain: Option<&[CertificateDer<'_>]>) -> Identity {
        let principal = || {
            let certificate = EndEntityCert::try_from(chain?.first()?).ok()?;
            let mut names = certificate.valid_uri_names();
            // SPIFFE: exactly one URI name. With two, nobody could say which of them counts.
            let (name, more) = (names.next()?, names.next());
            self.names.principal(name).filter(|_| more.is_none())
        };
        principal().map_or(Identity::Anonymous, Identity::Certified)
    }
}

fn current(own: &Pair, callers: Option<&str>) -> Result<Current, TlsError> {
    let (chain, key) = own.parse("the server's certificate")?;
    let unusable = |why| TlsError::Unusable {
        what: "the server's certificate".into(),
        why,
    };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?;
    let (builder, authorities) = match callers {
        None => (builder.with_no_client_auth(), Vec::new()),
        Some(callers) => {
            let what = "the callers' certificate authority";
            let callers = certificates(callers, what)?;
            let named = |certificate: &CertificateDer<'_>| {
                let parsed = EndEntityCert::try_from(certificate).ok()?;
                Some((parsed.subject().to_vec(), Pin::of(certificate)?))
            };
            let authorities = callers.iter().filter_map(named).collect();
            let roots = Arc::new(roots(callers, what)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .allow_unauthenticated()
                .build()
                .map_err(|e| TlsError::Roots {
                    what: what.to_owned(),
                    why: e.to_string(),
                })?;
            (builder.with_client_cert_verifier(verifier), authorities)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A session that is taken up again would not look at the caller's certificate again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Current {
        config: Arc::new(config),
        authorities: Arc::new(authorities),
    })
}
