//! The calling side: which authority must vouch for the coordinator, and the certificate that is
//! shown to it.

use std::{fmt, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};

use super::{ALPN, Pair, Pin, TlsError, certificates, provider, roots};

/// Who must vouch for the coordinator's certificate.
#[derive(Clone, Debug)]
pub enum Trust {
    /// One of these authorities, as PEM.
    Authorities(String),
    /// The authority with this key. The coordinator sends its authority's certificate along.
    Pinned(Pin),
}

/// With what a coordinator is called. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

impl ClientTls {
    /// `own`: the certificate to show, if there is one.
    pub fn new(trust: &Trust, own: Option<&Pair>) -> Result<Self, TlsError> {
        let what = "the certificate authority";
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|why| TlsError::Unusable {
                what: what.to_owned(),
                why,
            })?;
        let builder = match trust {
            Trust::Authorities(pem) => {
                builder.with_root_certificates(roots(certificates(pem, what)?, what)?)
            }
            Trust::Pinned(pin) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Pinned {
                    pin: *pin,
                    provider: provider(),
                })),
        };
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let (chain, key) = own.parse("the own certificate")?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|why| TlsError::Unusable {
                        what: "the own certificate".into(),
                        why,
                    })?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

/// Checks a server as usual, with the one authority that the pin names among those it sends.
#[derive(Debug)]
struct Pinned {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = intermediates
            .iter()
            .find(|certificate| Pin::of(certificate) == Some(self.pin))
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|e| Error::General(e.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
