//! `muster config set-context`

mod kubernetes;

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

/// Add a context by a kubeconfig, a token of Kubernetes or a certificate.
///
/// With --kubernetes, your kubectl gives all that is needed with every command: the coordinator's
/// authorities, a token of a service account, and without --url a forwarded port. Your credentials for the
/// API server stay with kubectl, whatever they are. Without --kubernetes, the token comes from a file, or from
/// a command that prints it; no shell reads the command. A token must be for the coordinator's own audience:
/// never show it the one for your API server. It is got once now, to see that it can be, and kept nowhere.
/// A certificate and its key are read with every command.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # The cluster and the namespace that kubectl uses now, as its service account muster
  muster config set-context prod --kubernetes

  # As another service account, at an address where the coordinator is exposed
  muster config set-context prod --kubernetes --kube-context prod --service-account team-a/ann \\
    --url https://train:7070

  # A token of Kubernetes that another program prints
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
    /// The coordinator's address [with --kubernetes: default a port that kubectl forwards]
    #[arg(long, value_name = "URL", required_unless_present = "kubernetes")]
    url: Option<String>,
    /// The certificate authorities that vouch for it, PEM; read with every command
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "kubernetes",
        conflicts_with = "kubernetes"
    )]
    ca_file: Option<PathBuf>,
    /// The name that must stand in its certificate [default: the one in its address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    #[command(flatten)]
    kubernetes: kubernetes::Flags,
    /// The token, in a file that is read with every command
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["token_command", "kubernetes"],
        required_unless_present_any = ["token_command", "client_certificate", "kubernetes"]
    )]
    token_file: Option<PathBuf>,
    /// Your certificate, PEM, for a coordinator with --client-ca-file
    #[arg(
        long,
        value_name = "FILE",
        requires = "client_key",
        conflicts_with_all = ["token_file", "token_command", "kubernetes"]
    )]
    client_certificate: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,
    /// A program that prints the token, and its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "kubernetes")]
    token_command: Vec<String>,
}

pub(super) fn set_context(
    cx: &Context,
    mut contexts: Contexts,
    args: SetContext,
) -> Result<(), Failure> {
    let name = args.name.clone();
    if let Some(why) = name_error(&name) {
        return Err(Failure::usage(format!("{name:?} {why}")));
    }
    let namespace = cx.globals.namespace.clone();
    if let Some(why) = namespace.as_deref().and_then(label_error) {
        return Err(Failure::usage(format!("--namespace: {why}")));
    }
    let entry = Entry {
        server: args
            .url
            .as_deref()
            .map(address)
            .transpose()?
            .unwrap_or_default(),
        namespace,
        ..Entry::default()
    };
    let entry = match args.ca_file.clone() {
        Some(ca_file) => by_files(entry, ca_file, args)?,
        None => kubernetes::entry(cx, entry, args.kubernetes, args.server_name)?,
    };
    contexts.set(&name, entry)?;
    cx.say(format!("the context is {name} now"));
    Ok(())
}

fn address(url: &str) -> Result<String, Failure> {
    let address: Address = url
        .parse()
        .map_err(|e| Failure::usage(format!("--url {url:?}: {e}")))?;
    if !address.is_tls() || address.port().is_none() {
        return Err(Failure::usage(format!(
            "--url {address} is not a URL like https://train.example.org:7070"
        )));
    }
    Ok(address.to_string())
}

fn by_files(mut entry: Entry, ca_file: PathBuf, args: SetContext) -> Result<Entry, Failure> {
    let whole = |path: PathBuf| {
        std::path::absolute(&path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
    };
    let ca_file = whole(ca_file)?;
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
    Ok(entry)
}
