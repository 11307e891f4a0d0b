//! Getting a certificate: for a join token the first time, for the certificate in use after that.
//! The private key is made here and is never sent.

use muster_proto::v1;
use rcgen::{KeyPair, PublicKeyData};
use tonic::Status;

use crate::{
    address::Address,
    credentials::Credentials,
    dial::{DialError, Options, dial},
    tls::{ClientTls, TlsError, Trust},
};

#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error("cannot reach the coordinator at {0}")]
    Unreachable(String, #[source] DialError),
    #[error("{}", .0.message())]
    Refused(Status),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("make a key: {0}")]
    Key(#[from] rcgen::Error),
    #[error("{0}")]
    Name(String),
    #[error("the coordinator answered without a certificate")]
    Empty,
}

/// The variable that holds the token. A flag would show it to every user of the machine.
pub const TOKEN: &str = "MUSTER_TOKEN";

impl EnrollError {
    /// What a person can do about it, if a TLS handshake failed.
    pub fn explain(&self) -> Option<&'static str> {
        match self {
            EnrollError::Unreachable(_, dial) => dial.explain(),
            _ => None,
        }
    }
}

/// Exchanges a join token for credentials. `name` may be empty if the token is for one name.
pub async fn join(
    address: &Address,
    trust: &Trust,
    token: &str,
    name: &str,
) -> Result<Credentials, EnrollError> {
    let options = Options {
        tls: Some(ClientTls::new(trust, None)?),
        ..Options::default()
    };
    let clients = dial(address, options)
        .await
        .map_err(|e| EnrollError::Unreachable(address.to_string(), e))?;
    let key = KeyPair::generate()?;
    let request = v1::JoinRequest {
        token: token.to_owned(),
        public_key: key.subject_public_key_info(),
        name: name.to_owned(),
    };
    let answer = clients
        .access()
        .join(request)
        .await
        .map_err(EnrollError::Refused)?;
    credentials(&address.to_string(), answer.into_inner().certificate, &key)
}

/// Gets a new certificate, with a new key, in place of these credentials, from the coordinator at
/// this address.
pub async fn renew(old: &Credentials, address: &Address) -> Result<Credentials, EnrollError> {
    let options = Options {
        tls: Some(old.tls()?),
        ..Options::default()
    };
    let clients = dial(address, options)
        .await
        .map_err(|e| EnrollError::Unreachable(address.to_string(), e))?;
    let key = KeyPair::generate()?;
    let request = v1::RenewRequest {
        public_key: key.subject_public_key_info(),
    };
    let answer = clients
        .access()
        .renew(request)
        .await
        .map_err(EnrollError::Refused)?;
    credentials(&address.to_string(), answer.into_inner().certificate, &key)
}

/// Shows these credentials to the coordinator once, so that it knows that they are in use.
pub async fn show(own: &Credentials, address: &Address) -> Result<(), EnrollError> {
    let options = Options {
        tls: Some(own.tls()?),
        ..Options::default()
    };
    let clients = dial(address, options)
        .await
        .map_err(|e| EnrollError::Unreachable(address.to_string(), e))?;
    let answer = clients.access().who_am_i(v1::WhoAmIRequest {}).await;
    answer.map(drop).map_err(EnrollError::Refused)
}

fn credentials(
    server: &str,
    certificate: Option<v1::Certificate>,
    key: &KeyPair,
) -> Result<Credentials, EnrollError> {
    let certificate = certificate.ok_or(EnrollError::Empty)?;
    let credentials = Credentials {
        server: server.to_owned(),
        principal: certificate.principal,
        certificate: certificate.chain_pem,
        key: key.serialize_pem(),
        authorities: certificate.authorities_pem,
        not_before_us: certificate.not_before_us,
        not_after_us: certificate.not_after_us,
    };
    // A certificate that cannot be used must not replace one that can.
    credentials.tls()?;
    Ok(credentials)
}
