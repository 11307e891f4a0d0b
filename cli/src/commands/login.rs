//! `muster login`

use std::{
    env, fs,
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use clap::Args;
use muster_core::id::label_error;
use muster_rpc::{
    Address,
    enroll::{self, EnrollError, TOKEN},
    tls::{Pin, Trust},
};

use crate::{
    context::Context,
    contexts::{Contexts, name_error, name_for},
    fail::Failure,
};

/// Log in to a coordinator on another machine, with a token.
///
/// Whoever runs the coordinator makes the token with `muster-coordinator token create --user NAME`.
/// The command gets a certificate for it, which lasts 30 days and renews itself when commands are
/// used, and adds a context, which later commands use.
#[derive(Debug, Args)]
#[command(after_help = "\
The token is read from $MUSTER_TOKEN, from --token-file, or from the standard input.

EXAMPLES:
  MUSTER_TOKEN=... muster login https://train.example.org:7070 --ca-pin sha256:...

  # Under a name of your own, with the authority's certificate in place of its pin
  muster login https://train:7070 --token-file token --ca-file ca.pem --as-context prod")]
pub(crate) struct Login {
    /// The coordinator's address
    #[arg(value_name = "URL")]
    server: String,
    /// The pin of its certificate authority, as `muster-coordinator pin` prints it
    #[arg(long, value_name = "PIN", required_unless_present = "ca_file")]
    ca_pin: Option<Pin>,
    /// The certificate authority itself, PEM, in place of its pin
    #[arg(long, value_name = "FILE", conflicts_with = "ca_pin")]
    ca_file: Option<PathBuf>,
    /// The token, in a file; - is the standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Name of the context [default: the host in the address]
    #[arg(long, value_name = "NAME")]
    as_context: Option<String>,
}

pub(crate) async fn login(cx: &Context, args: Login) -> Result<(), Failure> {
    let address: Address = args
        .server
        .parse()
        .map_err(|e| Failure::usage(format!("{:?}: {e}", args.server)))?;
    if !address.is_tls() || address.port().is_none() {
        return Err(Failure::usage(format!(
            "{address} is not a URL like https://train.example.org:7070"
        )));
    }
    let name = args.as_context.unwrap_or_else(|| name_for(address.host()));
    if let Some(why) = name_error(&name) {
        return Err(Failure::usage(format!("--as-context: {name:?} {why}")));
    }
    let namespace = cx.globals.namespace.clone();
    if let Some(why) = namespace.as_deref().and_then(label_error) {
        return Err(Failure::usage(format!("--namespace: {why}")));
    }
    let trust = match (args.ca_pin, args.ca_file) {
        (Some(pin), _) => Trust::Pinned(pin),
        (None, Some(file)) => Trust::Authorities(read(&file)?),
        (None, None) => return Err(Failure::usage("--ca-pin is needed")),
    };
    let mut contexts = Contexts::load()?;
    let token = token(args.token_file)?;
    let got = enroll::join(&address, &trust, token.trim(), "")
        .await
        .map_err(|e| match &e {
            EnrollError::Unreachable(..) => {
                let hint = e.explain().map(|hint| format!(": {hint}"));
                Failure::Unreachable(format!("{e}{}", hint.unwrap_or_default()))
            }
            _ => Failure::request(&e),
        })?;
    contexts.add(&name, namespace, &got)?;
    cx.say(format!(
        "logged in to {address} as {}; the context is {name}",
        got.principal
    ));
    Ok(())
}

fn token(file: Option<PathBuf>) -> Result<String, Failure> {
    match file {
        Some(file) if file.as_os_str() != "-" => read(&file),
        None if env::var_os(TOKEN).is_some() => {
            env::var(TOKEN).map_err(|e| Failure::usage(format!("{TOKEN}: {e}")))
        }
        None if io::stdin().is_terminal() => Err(Failure::usage(format!(
            "there is no token: set {TOKEN}, or give --token-file"
        ))),
        _ => {
            let mut text = String::new();
            io::stdin()
                .read_to_string(&mut text)
                .map_err(|e| Failure::request(format!("read the token: {e}")))?;
            Ok(text)
        }
    }
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}
