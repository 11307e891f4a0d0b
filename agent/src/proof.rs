//! What this node shows to a coordinator that speaks TLS: the certificate that it has joined with, one
//! that its site gives it, or the token of its pod. All are read at every dial, because all are
//! replaced on disk while the agent runs: the first by the agent itself, the second by the site, the
//! token by the kubelet.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_rpc::{
    bearer::{BadBearer, Bearer},
    channel::Tokens,
    credentials::{Credentials, CredentialsError},
    dial,
    pem_files::PemFiles,
    tls::{ClientTls, TlsError, Trust},
};

/// Where a node's proof is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The file that `muster-agent join` wrote.
    Certificate(PathBuf),
    /// The files of a site.
    Site(PemFiles),
    /// A token that the coordinator asks its Kubernetes API server about.
    Token {
        token: PathBuf,
        /// The certificate authorities that vouch for the coordinator, PEM.
        authorities: PathBuf,
    },
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProofError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: io::Error },
    #[error("{}: {why}", path.display())]
    Token { path: PathBuf, why: BadBearer },
    #[error("{}: {why}", path.display())]
    Authorities { path: PathBuf, why: TlsError },
}

impl Proof {
    /// What a dial now shows, and whom it trusts.
    pub(crate) fn options(&self) -> Result<dial::Options, ProofError> {
        match self {
            Proof::Certificate(path) => {
                let own = Credentials::read(path)?;
                Ok(dial::Options {
                    tls: Some(own.tls().map_err(CredentialsError::from)?),
                    ..dial::Options::default()
                })
            }
            Proof::Site(files) => Ok(dial::Options {
                tls: Some(files.tls()?),
                ..dial::Options::default()
            }),
            Proof::Token { token, authorities } => Ok(dial::Options {
                tls: Some(tls(authorities)?),
                tokens: Some(Tokens::one(read_token(token)?)),
                ..dial::Options::default()
            }),
        }
    }
}

pub(crate) fn tls(authorities: &Path) -> Result<ClientTls, ProofError> {
    let trust = Trust::Authorities(text(authorities)?);
    ClientTls::new(&trust, None).map_err(|why| ProofError::Authorities {
        path: authorities.to_owned(),
        why,
    })
}

pub(crate) fn read_token(path: &Path) -> Result<Bearer, ProofError> {
    Bearer::parse(&text(path)?).map_err(|why| ProofError::Token {
        path: path.to_owned(),
        why,
    })
}

fn text(path: &Path) -> Result<String, ProofError> {
    fs::read_to_string(path).map_err(|why| ProofError::File {
        path: path.to_owned(),
        why,
    })
}
