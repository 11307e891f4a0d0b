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

use super::{ALPN, Pair, TlsError, certificates, provider, roots};
use crate::identity::{Identity, Principal, TrustDomain};

/// The configuration with which connections are accepted. Cheap to clone; a change holds for every
/// connection after it, and no connection ends by it.
#[derive(Clone)]
pub struct ServerTls {
    domain: TrustDomain,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl ServerTls {
    /// `own`: shown to callers. `callers`: the authorities whose certificates callers may show, as
    /// PEM.
    pub fn new(domain: TrustDomain, own: &Pair, callers: &str) -> Result<Self, TlsError> {
        Ok(Self {
            domain,
            config: Arc::new(RwLock::new(Arc::new(config(own, callers)?))),
        })
    }

    /// Takes another certificate or other authorities from now on. After an error everything is as
    /// before.
    pub fn replace(&self, own: &Pair, callers: &str) -> Result<(), TlsError> {
        let new = Arc::new(config(own, callers)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Who a caller with this chain is. The handshake has already checked the chain. A certificate
    /// of this authority that names nobody of this cluster is worth as much as none.
    pub(crate) fn identity(&self, chain: Option<&[CertificateDer<'_>]>) -> Identity {
        let principal = || {
            let certificate = EndEntityCert::try_from(chain?.first()?).ok()?;
            let mut names = certificate.valid_uri_names();
            // SPIFFE: exactly one URI name. With two, nobody could say which of them counts.
            let (name, more) = (names.next()?, names.next());
            Principal::of_uri(name, &self.domain).filter(|_| more.is_none())
        };
        principal().map_or(Identity::Anonymous, Identity::Certified)
    }
}

fn config(own: &Pair, callers: &str) -> Result<ServerConfig, TlsError> {
    let (chain, key) = own.parse("the server's certificate")?;
    let what = "the certificate authority";
    let roots = roots(certificates(callers, what)?, what)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|e| TlsError::Roots {
            what: what.to_owned(),
            why: e.to_string(),
        })?;
    let unusable = |why| TlsError::Unusable {
        what: "the server's certificate".into(),
        why,
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A session that is taken up again would not look at the caller's certificate again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}
