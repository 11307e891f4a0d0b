//! `muster whoami` and `muster auth can-i`: who the coordinator thinks you are, and what you may do.

use clap::{Args, Subcommand};
use muster_proto::v1;
use serde::Serialize;

use crate::{args::Format, context::Context, fail::Failure, output};

/// Print who you are for the coordinator, and your role.
///
/// Over TLS you are the name in your certificate, or the user of Kubernetes whose token you show.
/// Without TLS you are the user of this machine that the kernel reports.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster whoami
  muster whoami -o json")]
pub(crate) struct WhoAmI {}

/// How a user of Kubernetes proves who it is.
const KUBERNETES: &str = "kubernetes-token";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Who {
    identity: String,
    role: String,
    /// certificate, kubernetes-token or kernel; empty: nothing is proven.
    proof: String,
    /// None: all.
    namespaces: Option<Vec<String>>,
}

pub(crate) async fn whoami(cx: &Context, _: WhoAmI) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let answer = client
        .access()
        .who_am_i(client.ask(v1::WhoAmIRequest {}))
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    let who = Who {
        identity: answer.identity,
        role: answer.role,
        proof: answer.proof,
        namespaces: Some(answer.namespaces).filter(|names| !names.is_empty()),
    };
    match cx.format() {
        Format::Json => cx.print(&output::json(&who)),
        Format::Yaml => cx.print(&output::yaml(&who)),
        _ if who.proof == KUBERNETES && who.role.is_empty() => cx.print(&format!(
            "{}, by a token of Kubernetes: that cluster's rules say what you may do (muster auth can-i)\n",
            who.identity
        )),
        _ if who.role.is_empty() => cx.print(&format!("{}, without a role\n", who.identity)),
        _ if who.role == "host" => cx.print(&format!("{}\n", who.identity)),
        _ => {
            let of = match &who.namespaces {
                None => "all namespaces".to_owned(),
                Some(names) => format!("namespace {}", names.join(", ")),
            };
            cx.print(&format!("{}: {} in {of}\n", who.identity, who.role))
        }
    }
}

/// Ask what you may do.
///
/// Nothing is changed by asking.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster auth can-i submit -n team-a")]
pub(crate) struct Auth {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(Debug, Subcommand)]
enum AuthCommand {
    CanI(CanI),
}

/// Ask whether you may do something.
///
/// Prints yes, or no and the reason, and exits 0 or 1. Commands on jobs are asked for the namespace
/// of the context, or that of --namespace.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster auth can-i submit -n team-a
  muster auth can-i cordon")]
struct CanI {
    /// A command of muster, such as submit, logs or cordon
    #[arg(value_name = "VERB", value_parser = clap::builder::PossibleValuesParser::new(VERBS.map(|(verb, _)| verb)))]
    verb: String,
}

/// The method that decides whether a command is allowed.
const VERBS: [(&str, &str); 15] = [
    ("submit", "JobService/Submit"),
    ("run", "JobService/Submit"),
    ("get", "JobService/List"),
    ("describe", "JobService/Get"),
    ("explain", "JobService/Explain"),
    ("logs", "JobService/Logs"),
    ("scale", "JobService/Scale"),
    ("suspend", "JobService/Suspend"),
    ("resume", "JobService/Resume"),
    ("cancel", "JobService/Cancel"),
    ("delete", "JobService/Delete"),
    ("wait", "JobService/Wait"),
    ("events", "EventService/List"),
    ("cordon", "NodeService/Cordon"),
    ("uncordon", "NodeService/Uncordon"),
];

pub(crate) async fn auth(cx: &Context, args: Auth) -> Result<(), Failure> {
    let AuthCommand::CanI(CanI { verb }) = args.command;
    let method = VERBS.iter().find(|(name, _)| *name == verb);
    let (_, method) = method.expect("clap allows only these");
    let client = cx.connect().await?;
    let namespace = if method.starts_with("JobService") {
        cx.namespace()
    } else {
        String::new()
    };
    let answer = client
        .access()
        .can_i(client.ask(v1::CanIRequest {
            method: (*method).to_owned(),
            namespace,
        }))
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    if answer.allowed {
        return cx.print("yes\n");
    }
    cx.print("no\n")?;
    Err(Failure::request(answer.reason))
}
