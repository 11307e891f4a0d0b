//! What a user shows to a coordinator: the credentials of `muster login`, a certificate of the site, or
//! a token of a Kubernetes cluster, which a file, a command or the user's kubectl gives. A token is kept in memory only, and a new one is got shortly before it ends, so that
//! commands that follow something outlive it.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_rpc::{
    bearer::Bearer,
    channel::Tokens,
    credentials::now_us,
    dial::Options,
    pem_files::PemFiles,
    tls::{ClientTls, Trust},
};

use crate::{
    contexts::{CertificateEntry, KubernetesEntry, TokenEntry},
    fail::Failure,
    kubectl::Kubectl,
};

/// A token is not shown any more when it ends within this time, because clocks differ.
const LEFT: Duration = Duration::from_secs(10);

/// What a user shows.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// The file of a certificate.
    Credentials(PathBuf),
    Token(TokenEntry),
    Certificate(CertificateEntry),
    /// A token, and the authorities that vouch for the coordinator, by the user's kubectl.
    Kubernetes(KubernetesEntry),
}

/// With what a coordinator is called by a certificate of the site.
pub(crate) fn by_certificate(entry: &CertificateEntry) -> Result<Options, Failure> {
    let files = PemFiles {
        certificate: entry.file.clone(),
        key: entry.key.clone(),
        authorities: entry.ca_file.clone(),
    };
    Ok(Options {
        tls: Some(files.tls().map_err(Failure::request)?),
        server_name: entry.server_name.clone(),
        ..Options::default()
    })
}

/// With what a coordinator is called. Gets the first token, so that its failure is told before
/// anything is sent.
pub(crate) fn by_token(entry: &TokenEntry) -> Result<Options, Failure> {
    let path = &entry.ca_file;
    let authorities = fs::read_to_string(path)
        .map_err(|e| Failure::request(format!("{}: {e}", path.display())))?;
    let tls = ClientTls::new(&Trust::Authorities(authorities), None)
        .map_err(|e| Failure::request(format!("{}: {e}", path.display())))?;
    let of = entry.clone();
    Ok(Options {
        tls: Some(tls),
        server_name: entry.server_name.clone(),
        tokens: Some(tokens(move || next(&of))?),
        ..Options::default()
    })
}

/// With what the coordinator of a Kubernetes cluster is called. Asks the cluster for its authorities
/// and for the first token.
pub(crate) fn by_kubernetes(kubectl: &Kubectl) -> Result<Options, Failure> {
    let authorities = kubectl.authorities().map_err(Failure::Unreachable)?;
    let tls = ClientTls::new(&Trust::Authorities(authorities), None)
        .map_err(|e| Failure::request(format!("the authorities of the coordinator: {e}")))?;
    let of = kubectl.clone();
    let next = move || {
        let text = of.token()?;
        Bearer::parse(&text).map_err(|e| format!("the token that kubectl has printed: {e}"))
    };
    Ok(Options {
        tls: Some(tls),
        server_name: kubectl.server_name(),
        tokens: Some(tokens(next)?),
        ..Options::default()
    })
}

/// Gets the first token, and another one whenever the last is about to end.
fn tokens(
    next: impl Fn() -> Result<Bearer, String> + Send + Sync + 'static,
) -> Result<Tokens, Failure> {
    let kept = Mutex::new(next().map_err(Failure::Unreachable)?);
    Ok(Tokens::new(move || {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if is_over(&kept) {
            *kept = next()?;
        }
        Ok(kept.clone())
    }))
}

/// A token that does not say when it ends is got once.
fn is_over(token: &Bearer) -> bool {
    let left_us = LEFT.as_micros() as u64;
    (token.claims()).is_some_and(|claims| claims.expires_us <= now_us() + left_us)
}

/// Gets a token from the file or from the command.
fn next(entry: &TokenEntry) -> Result<Bearer, String> {
    if let Some(path) = &entry.file {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        return Bearer::parse(&text).map_err(|e| format!("{}: {e}", path.display()));
    }
    let Some((program, arguments)) = entry.command.split_first() else {
        return Err("the context names neither a file nor a command for its token; see muster config set-context".into());
    };
    // It may ask the user something, as a login in a browser does.
    let ran = Command::new(program)
        .args(arguments)
        .stdin(Stdio::inherit())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("get a token: {program}: {e}"))?;
    if !ran.status.success() {
        return Err(format!("get a token: {program}: {}", ran.status));
    }
    let text = String::from_utf8_lossy(&ran.stdout);
    Bearer::parse(&text).map_err(|e| format!("get a token: what {program} has printed: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> TokenEntry {
        TokenEntry {
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            ..TokenEntry::default()
        }
    }

    #[test]
    fn a_token_is_what_a_command_prints_and_no_shell_reads_the_command() {
        let got = next(&command(&["printf", "%s\n", "a.b.c"])).unwrap();
        assert_eq!(got.secret(), "a.b.c");
        for (words, says) in [
            (&["/no/such"][..], "get a token: /no/such: No such file"),
            (&["false"], "get a token: false: exit status: 1"),
            (
                &["printf", ""],
                "what printf has printed: there is no token in it",
            ),
            (
                &["printf", "$(id)"],
                "what printf has printed: it holds other characters",
            ),
            (&[], "neither a file nor a command"),
        ] {
            let why = next(&command(words)).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_file_is_read_again_when_its_token_is_about_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let entry = TokenEntry {
            file: Some(folder.path().join("token")),
            ..TokenEntry::default()
        };
        let missing = next(&entry).unwrap_err();
        assert!(missing.ends_with("token: No such file or directory (os error 2)"));
        // {"aud":"a","exp":1} and {"aud":"a","exp":9999999999}
        for (payload, over) in [
            ("eyJhdWQiOiJhIiwiZXhwIjoxfQ", true),
            ("eyJhdWQiOiJhIiwiZXhwIjo5OTk5OTk5OTk5fQ", false),
        ] {
            let text = format!("e30.{payload}.c2ln\n");
            fs::write(entry.file.as_ref().unwrap(), text).unwrap();
            assert_eq!(is_over(&next(&entry).unwrap()), over);
        }
        assert!(!is_over(&Bearer::parse("opaque").unwrap()));
    }
}
