//! `muster config set-context`

use std::path::PathBuf;

use clap::Args;
use muster_core::id::label_error;
use muster_rpc::Address;

use crate::{
    context::Context,
    contexts::{CertificateEntry, Contexts, Entry, TokenEntry, name_error},
    fail::Failure,
    shown,
};

/// Add a context with a token of Kubernetes or a certificate of your site.
///
/// The token must be for the coordinator's own audience: never show it the one for your API server.
/// It comes from a file, or from a command that prints it; no shell reads the command. The token is
/// got once now, to see that it can be, and kept nowhere. A certificate and its key are read with every
/// command.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # The coordinator's authority, from the cluster
  kubectl get configmap muster-ca-bundle -n muster-system -o jsonpath='{.data.ca\\.crt}' > ca.crt

  # A new token of the service account ann for every command
  muster config set-context prod --url https://train:7070 --ca-file ca.crt -- kubectl create token ann \\
    --audience muster-coordinator.muster-system

  # A token that somebody else renews
  muster config set-context prod --url https://train:7070 --ca-file ca.crt --token-file token

  # A certificate that your site issues and renews
  muster config set-context prod --url https://train:7070 --ca-file ca.crt \\
    --client-certificate ann.crt --client-key ann.key")]
pub(super) struct SetContext {
    /// Name of the context
    name: String,
    /// The coordinator's address
    #[arg(long, value_name = "URL")]
    url: String,
    /// The certificate authorities that vouch for it, PEM; read with every command
    #[arg(long, value_name = "FILE")]
    ca_file: PathBuf,
    /// The name that must stand in its certificate [default: the one in its address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// The token, in a file that is read with every command
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "token_command",
        required_unless_present_any = ["token_command", "client_certificate"]
    )]
    token_file: Option<PathBuf>,
    /// Your certificate, PEM, for a coordinator with --client-ca-file
    #[arg(
        long,
        value_name = "FILE",
        requires = "client_key",
        conflicts_with_all = ["token_file", "token_command"]
    )]
    client_certificate: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,
    /// A program that prints the token, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    token_command: Vec<String>,
}

pub(super) fn set_context(
    cx: &Context,
    mut contexts: Contexts,
    args: SetContext,
) -> Result<(), Failure> {
    let SetContext { name, url, .. } = args;
    if let Some(why) = name_error(&name) {
        return Err(Failure::usage(format!("{name:?} {why}")));
    }
    let address: Address = url
        .parse()
        .map_err(|e| Failure::usage(format!("--url {url:?}: {e}")))?;
    if !address.is_tls() || address.port().is_none() {
        return Err(Failure::usage(format!(
            "--url {address} is not a URL like https://train.example.org:7070"
        )));
    }
    let namespace = cx.globals.namespace.clone();
    if let Some(why) = namespace.as_deref().and_then(label_error) {
        return Err(Failure::usage(format!("--namespace: {why}")));
    }
    let whole = |path: PathBuf| {
        std::path::absolute(&path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
    };
    let ca_file = whole(args.ca_file)?;
    let mut entry = Entry {
        server: address.to_string(),
        namespace,
        ..Entry::default()
    };
    if let (Some(file), Some(key)) = (args.client_certificate, args.client_key) {
        let certificate = CertificateEntry {
            ca_file,
            server_name: args.server_name,
            file: whole(file)?,
            key: whole(key)?,
        };
        shown::by_certificate(&certificate)?;
        entry.certificate = Some(certificate);
    } else {
        let token = TokenEntry {
            ca_file,
            server_name: args.server_name,
            file: args.token_file.map(whole).transpose()?,
            command: args.token_command,
        };
        shown::by_token(&token)?;
        entry.token = Some(token);
    }
    contexts.set(&name, entry)?;
    cx.say(format!("the context is {name} now"));
    Ok(())
}
