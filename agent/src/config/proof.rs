//! Which proof of its identity this node shows, from the flags and from what `muster-agent join` got.

use std::path::PathBuf;

use muster_rpc::Address;

use super::{WrongFlag, wrong};
use crate::proof::{Proof, read_token, tls};

/// `joined`: the file of the certificate, if the node has joined. `None`: this machine's coordinator
/// asks the kernel who calls.
pub(super) fn checked(
    coordinator: &Address,
    joined: Option<PathBuf>,
    token: Option<PathBuf>,
    authorities: Option<PathBuf>,
) -> Result<Option<Proof>, WrongFlag> {
    match (token, authorities) {
        (Some(_), _) if !coordinator.is_tls() => Err(wrong(
            "token-file",
            format!("a token is shown over TLS only, and {coordinator} has none; use https://"),
        )),
        (Some(_), None) => Err(wrong(
            "ca-file",
            "is needed with --token-file, to know the coordinator by; the coordinator keeps it in the ConfigMap muster-ca-bundle of its \
             namespace",
        )),
        (None, Some(_)) => Err(wrong(
            "ca-file",
            "is for --token-file; a node that has joined keeps the authority with its certificate",
        )),
        (Some(token), Some(authorities)) => {
            read_token(&token).map_err(|e| {
                let hint = "it is mounted by a projected volume with a serviceAccountToken";
                wrong("token-file", format!("{e}; {hint}"))
            })?;
            tls(&authorities).map_err(|e| wrong("ca-file", e.to_string()))?;
            Ok(Some(Proof::Token { token, authorities }))
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
            let checked = checked(&address, None, token.cloned(), ca.cloned());
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
}
