//! The certificates that a site issues itself, in place of an authority of the cluster's own.

use std::path::PathBuf;

use clap::Args;
use muster_rpc::uri_names::{UriNames, UriPattern};

use crate::trust::SiteFiles;

/// All are PEM files, and are read again when they have changed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Certificates of your site, in place of `muster-coordinator init`")]
pub struct SiteOptions {
    /// This coordinator's certificate, followed by those between it and your authority. Everything
    /// here is TLS then. `init`, `join`, `login` and --server-names are not used.
    #[arg(
        long,
        env = "MUSTER_TLS_CERT_FILE",
        value_name = "FILE",
        requires = "tls_private_key_file"
    )]
    pub tls_cert_file: Option<PathBuf>,

    /// The key of that certificate.
    #[arg(
        long,
        env = "MUSTER_TLS_PRIVATE_KEY_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    pub tls_private_key_file: Option<PathBuf>,

    /// The authorities that vouch for it. On Kubernetes they go into the ConfigMap muster-ca-bundle,
    /// by which agents know the coordinator.
    #[arg(
        long,
        env = "MUSTER_CA_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    pub ca_file: Option<PathBuf>,

    /// The authorities of your hosts' and users' certificates. Whom a certificate stands for is read
    /// from its one URI name, by --host-id and --user-id.
    #[arg(
        long,
        env = "MUSTER_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    pub client_ca_file: Option<PathBuf>,

    /// The URI name in the certificate of a node's agent, as spiffe://example.org/gpu/{name}. May be
    /// given several times.
    #[arg(
        long,
        env = "MUSTER_HOST_ID",
        value_name = "URI",
        value_delimiter = ',',
        requires = "client_ca_file"
    )]
    pub host_id: Vec<UriPattern>,

    /// The URI name in the certificate of a user, as spiffe://example.org/people/{name}. May be given
    /// several times. Which role a user has, `muster-coordinator user set` says.
    #[arg(
        long,
        env = "MUSTER_USER_ID",
        value_name = "URI",
        value_delimiter = ',',
        requires = "client_ca_file"
    )]
    pub user_id: Vec<UriPattern>,
}

impl SiteOptions {
    /// The files of the site, or which flag is wrong. `None`: it gives none. `publishes`: agents get
    /// the authorities from this coordinator.
    pub fn files(self, publishes: bool) -> Result<Option<SiteFiles>, String> {
        let (Some(certificate), Some(key)) = (self.tls_cert_file, self.tls_private_key_file) else {
            return Ok(None);
        };
        if self.client_ca_file.is_some() && self.host_id.is_empty() && self.user_id.is_empty() {
            return Err(
                "--client-ca-file: needs --host-id or --user-id, or its certificates would stand for nobody".into(),
            );
        }
        if publishes && self.ca_file.is_none() {
            return Err(
                "--ca-file: is needed with --kubernetes-agents and --kubernetes-pods, because agents know the coordinator by it".into(),
            );
        }
        let names = UriNames::new(&self.host_id, &self.user_id).map_err(|both| {
            format!("--user-id: {both} is also in --host-id, so nobody could say whether a name is a host's or a user's")
        })?;
        Ok(Some(SiteFiles {
            certificate,
            key,
            authorities: self.ca_file,
            client_authorities: self.client_ca_file,
            names,
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::options::Options;

    fn files(flags: &[&str], publishes: bool) -> Result<bool, String> {
        let flags = ["muster-coordinator", "--state-dir", "/s"]
            .iter()
            .chain(flags);
        let options = Options::try_parse_from(flags).map_err(|e| e.to_string())?;
        Ok(options.site.files(publishes)?.is_some())
    }

    const OWN: [&str; 4] = ["--tls-cert-file", "c", "--tls-private-key-file", "k"];

    #[test]
    fn a_sites_flags_go_together() {
        assert_eq!(files(&[], true), Ok(false));
        assert_eq!(files(&OWN, false), Ok(true));
        let refused = |more: &[&str], publishes| files(&[&OWN, more].concat(), publishes);
        let ids = "spiffe://a/{name}";
        for (more, says) in [
            (
                &["--client-ca-file", "ca"][..],
                "needs --host-id or --user-id, or its certificates",
            ),
            (&["--host-id", ids], "--client-ca-file <FILE>"),
            (
                &["--client-ca-file", "ca", "--host-id", "a"],
                "is not a URI like",
            ),
            (
                &["--client-ca-file", "ca", "--host-id", ids, "--user-id", ids],
                "is also in --host-id",
            ),
        ] {
            let why = refused(more, false).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let why = refused(&[], true).unwrap_err();
        assert!(
            why.starts_with("--ca-file: is needed with --kubernetes-agents"),
            "{why}"
        );
        assert_eq!(refused(&["--ca-file", "ca"], true), Ok(true));
        let alone = files(&["--tls-cert-file", "c"], false).unwrap_err();
        assert!(alone.contains("--tls-private-key-file"), "{alone}");
    }
}
