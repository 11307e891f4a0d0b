//! An identity that somebody else keeps in PEM files, as the helpers of SPIFFE and cert-manager do.
//! They are read at every dial, so a renewal needs no restart.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    credentials::CredentialsError,
    tls::{ClientTls, Pair, Trust},
};

/// Certificate and key that are shown to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFiles {
    /// The certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authorities that vouch for the coordinator.
    pub authorities: PathBuf,
}

impl PemFiles {
    /// With what a coordinator is called now. Fails also while the files are replaced one after the
    /// other; the next attempt reads them again.
    pub fn tls(&self) -> Result<ClientTls, CredentialsError> {
        let own = Pair {
            chain: text(&self.certificate)?,
            key: text(&self.key)?,
        };
        let trust = Trust::Authorities(text(&self.authorities)?);
        // First alone, so that an error names the right file.
        ClientTls::new(&trust, None).map_err(|e| malformed(&self.authorities, &e))?;
        ClientTls::new(&trust, Some(&own)).map_err(|e| malformed(&self.certificate, &e))
    }
}

fn malformed(path: &Path, why: &crate::tls::TlsError) -> CredentialsError {
    CredentialsError::Malformed {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

fn text(path: &Path) -> Result<String, CredentialsError> {
    fs::read_to_string(path).map_err(|why| CredentialsError::Read {
        path: path.to_owned(),
        why,
    })
}
