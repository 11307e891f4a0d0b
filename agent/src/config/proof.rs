//! Which proof of its identity this node shows, from the flags and from what `muster-agent join` got.

use std::path::PathBuf;

use clap::Args;
use muster_rpc::{Address, pem_files::PemFiles};

use super::{WrongFlag, wrong};
use crate::proof::{Proof, read_token, tls};

/// What to show to a coordinator on another machine, if the node has not joined.
#[derive(Clone, Debug, Default, Args)]
pub struct Shown {
    /// Show the token in this file to the coordinator instead of a certificate: that of a pod's
    /// projected volume, for a coordinator with --kubernetes-agents. It is read at every dial. Needs
    /// --ca-file
    #[arg(long, env = "MUSTER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Show this certificate to the coordinator instead of one of `muster-agent join`: one that your
    /// site issues and renews, PEM, for a coordinator with --client-ca-file. It is read at every
    /// dial. Needs --client-key and --ca-file
    #[arg(long, env = "MUSTER_CLIENT_CERTIFICATE", value_name = "FILE")]
    pub client_certificate: Option<PathBuf>,
    /// The key of --client-certificate, PEM
    #[arg(long, env = "MUSTER_CLIENT_KEY", value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// With --token-file or --client-certificate: the certificate authorities that vouch for the
    /// coordinator, PEM. Read at every dial
    #[arg(long, env = "MUSTER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The name that must stand in the coordinator's certificate [default: the one in its address]
    #[arg(long, env = "MUSTER_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,
}

impl Shown {
    pub(super) fn names_files(&self) -> bool {
        self.token_file.is_some() || self.client_certificate.is_some()
    }
}

/// What the flags name.
enum Given {
    Token(PathBuf),
    /// With its key.
    Certificate(PathBuf, PathBuf),
}

/// `joined`: the file of the certificate, if the node has joined. `None`: this machine's coordinator
/// asks the kernel who calls.
pub(super) fn checked(
    coordinator: &Address,
    joined: Option<PathBuf>,
    shown: &Shown,
) -> Result<Option<Proof>, WrongFlag> {
    let Shown {
        token_file: token,
        client_certificate: certificate,
        client_key: key,
        ca_file: authorities,
        server_name: _,
    } = shown.clone();
    let (flag, what) = match &certificate {
        Some(_) => ("client-certificate", "a certificate"),
        None => ("token-file", "a token"),
    };
    let shown = match (token, certificate, key) {
        (Some(_), Some(_), _) => Err(wrong(
            flag,
            "cannot be used with --token-file: only one of them is shown",
        )),
        (Some(token), None, None) => Ok(Some(Given::Token(token))),
        (None, Some(certificate), Some(key)) => Ok(Some(Given::Certificate(certificate, key))),
        (_, Some(_), None) => Err(wrong(
            flag,
            "needs --client-key, the key of the certificate",
        )),
        (_, None, Some(_)) => Err(wrong("client-key", "is for --client-certificate")),
        (None, None, None) => Ok(None),
    }?;
    match (shown, authorities) {
        (Some(_), _) if !coordinator.is_tls() => Err(wrong(
            flag,
            format!("{what} is shown over TLS only, and {coordinator} has none; use https://"),
        )),
        (Some(Given::Token(_)), None) => Err(wrong(
            "ca-file",
            "is needed with --token-file, to know the coordinator by; the coordinator keeps it in the ConfigMap muster-ca-bundle of its \
             namespace",
        )),
        (Some(Given::Certificate(..)), None) => Err(wrong(
            "ca-file",
            "is needed with --client-certificate: the authorities of your site that vouch for the coordinator",
        )),
        (None, Some(_)) => Err(wrong(
            "ca-file",
            "is for --token-file and --client-certificate; a node that has joined keeps the authority with its certificate",
        )),
        (Some(Given::Token(token)), Some(authorities)) => {
            read_token(&token).map_err(|e| {
                let hint = "it is mounted by a projected volume with a serviceAccountToken";
                wrong("token-file", format!("{e}; {hint}"))
            })?;
            tls(&authorities).map_err(|e| wrong("ca-file", e.to_string()))?;
            Ok(Some(Proof::Token { token, authorities }))
        }
        (Some(Given::Certificate(certificate, key)), Some(authorities)) => {
            let files = PemFiles {
                certificate,
                key,
                authorities,
            };
            files.tls().map_err(|e| wrong(flag, e.to_string()))?;
            Ok(Some(Proof::Site(files)))
        }
        (None, None) if coordinator.is_tls() => match joined {
            Some(path) => Ok(Some(Proof::Certificate(path))),
            None => {
                let message = format!(
                    "{coordinator} speaks TLS, and this node has no certificate; get a token from whoever runs the coordinator, and run \
                     MUSTER_TOKEN=... muster-agent join {coordinator} --ca-pin PIN and the same --state-dir"
                );
                Err(wrong("coordinator", message))
            }
        },
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_needs_tls_and_an_authority_and_says_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let (token, ca) = (folder.path().join("token"), folder.path().join("ca.pem"));
        let (away, secure) = ("http://127.0.0.1:1", "https://10.0.0.1:1");
        let check = |address: &str, token: Option<&PathBuf>, ca: Option<&PathBuf>| {
            let address = address.parse().unwrap();
            let shown = Shown {
                token_file: token.cloned(),
                ca_file: ca.cloned(),
                ..Shown::default()
            };
            let checked = checked(&address, None, &shown);
            checked.map_err(|e| e.to_string().replace(folder.path().to_str().unwrap(), ""))
        };
        let refused = |address, token, ca| check(address, token, ca).unwrap_err();
        let (with_token, with_ca) = (Some(&token), Some(&ca));
        assert_eq!(
            refused(away, with_token, with_ca),
            "--token-file: a token is shown over TLS only, and http://127.0.0.1:1 has none; use https://"
        );
        assert!(refused(secure, with_token, None).starts_with("--ca-file: is needed with"));
        assert!(refused(secure, None, with_ca).starts_with("--ca-file: is for --token-file"));
        assert_eq!(
            refused(secure, with_token, with_ca),
            "--token-file: /token: No such file or directory (os error 2); it is mounted by a projected volume with a serviceAccountToken"
        );
        fs::write(&token, " \n").unwrap();
        assert!(
            refused(secure, with_token, with_ca)
                .starts_with("--token-file: /token: there is no token in it; ")
        );
        fs::write(&token, "a.b.c\n").unwrap();
        assert_eq!(
            refused(secure, with_token, with_ca),
            "--ca-file: /ca.pem: No such file or directory (os error 2)"
        );
        fs::write(&ca, "nothing").unwrap();
        assert_eq!(
            refused(secure, with_token, with_ca),
            "--ca-file: /ca.pem: the certificate authority: holds no certificate"
        );
    }

    #[test]
    fn a_sites_certificate_needs_its_key_and_an_authority() {
        let address = |text: &str| text.parse().unwrap();
        let some = || Some(PathBuf::from("/no/such"));
        let refused = |coordinator: &str, shown: Shown| {
            let refused = checked(&address(coordinator), None, &shown).unwrap_err();
            refused.to_string()
        };
        let both = || Shown {
            client_certificate: some(),
            client_key: some(),
            ..Shown::default()
        };
        let secure = "https://10.0.0.1:1";
        let no_key = Shown {
            client_key: None,
            ..both()
        };
        assert_eq!(
            refused(secure, no_key),
            "--client-certificate: needs --client-key, the key of the certificate"
        );
        let no_certificate = Shown {
            client_certificate: None,
            ..both()
        };
        assert_eq!(
            refused(secure, no_certificate),
            "--client-key: is for --client-certificate"
        );
        let with_token = Shown {
            token_file: some(),
            ..both()
        };
        assert!(refused(secure, with_token).contains("cannot be used with --token-file"));
        assert!(refused("http://127.0.0.1:1", both()).contains("a certificate is shown over TLS"));
        assert!(refused(secure, both()).starts_with("--ca-file: is needed with --client-cert"));
        let all = Shown {
            ca_file: some(),
            ..both()
        };
        assert_eq!(
            refused(secure, all),
            "--client-certificate: read /no/such: No such file or directory (os error 2)"
        );
    }
}
