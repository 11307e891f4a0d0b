//! `muster-coordinator authority`: the change of the certificate authority while everything runs.

use std::{collections::BTreeMap, path::Path};

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use muster_rpc::{
    identity::{Kind, Principal},
    tls::Pin,
};
use serde::Serialize;

use super::{
    Change, PORT, State,
    table::{Output, print, print_text},
};
use crate::trust::{self, Authority, TrustError};

/// How many names a list has. The rest is counted; `-o json` has all.
const NAMES_MAX: usize = 20;

/// Change the certificate authority while everything runs
///
/// `rotate` makes a new authority beside the one that is there. From then on all certificates come
/// from the new one, and those of both are accepted: agents renew by themselves within minutes,
/// users at their next command. `status` says who still needs the old one, and `finish` ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator authority rotate --state-dir ~/coordinator
  muster-coordinator authority status --state-dir ~/coordinator
  muster-coordinator authority finish --state-dir ~/coordinator")]
pub(super) struct AuthorityCommand {
    #[command(subcommand)]
    command: Steps,
}

#[derive(Debug, Subcommand)]
enum Steps {
    Rotate(Rotate),
    Status(Status),
    Finish(Finish),
}

/// Begin a change: make a new authority beside the one that is there
///
/// A running coordinator follows within two seconds. No connection ends, and no job notices. Tokens
/// and pins that were handed out before are good until the change ends.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator authority rotate --state-dir ~/coordinator")]
struct Rotate {
    #[command(flatten)]
    state: State,
}

/// Show the authorities, and who still needs the old one
///
/// A name needs the old authority until it has shown a certificate of the new one, until its old
/// certificate has expired, or until it is denied.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator authority status --state-dir ~/coordinator
  muster-coordinator authority status --state-dir ~/coordinator -o json")]
struct Status {
    #[command(flatten)]
    state: State,
    #[command(flatten)]
    output: Output,
}

/// End a change: trust the old authority no more
///
/// Refused while somebody may have nothing but a certificate of the old authority. The old key is
/// removed.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator authority finish --state-dir ~/coordinator

  # Although some names must join or log in again then
  muster-coordinator authority finish --state-dir ~/coordinator --force")]
struct Finish {
    #[command(flatten)]
    state: State,
    /// End it although somebody needs the old authority: those names must join or log in again
    #[arg(long)]
    force: bool,
}

impl AuthorityCommand {
    pub(super) fn state(&self) -> &State {
        match &self.command {
            Steps::Rotate(args) => &args.state,
            Steps::Status(args) => &args.state,
            Steps::Finish(args) => &args.state,
        }
    }

    pub(super) fn change(&self) -> Option<Change> {
        match &self.command {
            Steps::Rotate(_) => Some(Change::new("authority rotate", "")),
            Steps::Status(_) => None,
            Steps::Finish(args) => {
                let force = if args.force { " --force" } else { "" };
                Some(Change::new(format!("authority finish{force}"), ""))
            }
        }
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            Steps::Rotate(args) => rotate(&args.state.state_dir),
            Steps::Status(args) => status(&args.state.state_dir, &args.output),
            Steps::Finish(args) => finish(&args.state.state_dir, args.force),
        }
    }
}

fn rotate(dir: &Path) -> anyhow::Result<()> {
    let authorities = trust::rotate(dir)?;
    let state = dir.display();
    println!(
        "Made a new certificate authority: {}. It issues all certificates from now on, and those of the old one are accepted too.

A running coordinator follows within two seconds. Agents renew by themselves within minutes, users at their next command.
Tokens name the new pin now. A machine or user that still has the old pin can join until the change ends.

Next:
  # Here: see who still needs the old authority
  muster-coordinator authority status --state-dir {state}

  # Here: when nobody does, trust it no more
  muster-coordinator authority finish --state-dir {state}",
        authorities.pin()
    );
    Ok(())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// The one that vouches for the coordinator first.
    authorities: Vec<Known>,
    /// Whether one takes the place of the other.
    changing: bool,
    needs_old: Vec<Needs>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    pin: Pin,
    since: Timestamp,
    /// It vouches for the coordinator's own certificate.
    serves: bool,
    /// It issues the certificates of nodes and users.
    issues: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Needs {
    name: String,
    /// Until when at most: its certificate expires then.
    until: Timestamp,
}

fn known(authority: &Authority, serves: bool, issues: bool) -> Known {
    Known {
        pin: authority.pin(),
        since: time(authority.made_us()),
        serves,
        issues,
    }
}

fn time(us: u64) -> Timestamp {
    let at = i64::try_from(us / 1_000_000).ok();
    at.and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
}

fn status(dir: &Path, output: &Output) -> anyhow::Result<()> {
    let authorities = trust::authorities(dir)?;
    let left = trust::needs_old(dir)?;
    let next = authorities.next();
    let serving = known(authorities.serving(), true, next.is_none());
    let report = Report {
        changing: next.is_some(),
        authorities: [serving]
            .into_iter()
            .chain(next.map(|next| known(next, false, true)))
            .collect(),
        needs_old: left
            .iter()
            .map(|(principal, until_us)| Needs {
                name: principal.to_string(),
                until: time(*until_us),
            })
            .collect(),
    };
    if output.is_json() {
        return print_text(&(serde_json::to_string_pretty(&report)? + "\n"));
    }
    let heads = ["PIN", "SINCE", "DOES"];
    let line = |known: &Known| {
        let does = match (known.serves, known.issues) {
            (true, true) => "issues all certificates",
            (true, false) => "vouches for the coordinator until the change ends",
            (false, _) => "issues the certificates of nodes and users",
        };
        [
            known.pin.to_string(),
            known.since.to_string(),
            does.to_owned(),
        ]
    };
    print(output, heads, &report.authorities, line, "")?;
    print_text(&format!("\n{}\n", what_next(dir, &report, &left)))
}

fn what_next(dir: &Path, report: &Report, left: &BTreeMap<Principal, u64>) -> String {
    let state = dir.display();
    if !report.changing {
        return format!(
            "No change is under way. To begin one:\n  muster-coordinator authority rotate --state-dir {state}"
        );
    }
    if left.is_empty() {
        return format!(
            "Nobody needs the old authority any more. To end the change:\n  muster-coordinator authority finish --state-dir {state}"
        );
    }
    format!(
        "{} still only a certificate of the old authority:\n{}\n{WAIT}",
        have(left.len()),
        list(left)
    )
}

/// What a person can do about names that need the old authority.
const WAIT: &str = "\
Agents renew by themselves while they are connected (`muster nodes`), users at their next command. Start agents that are down; deny
names that will not come back (`muster-coordinator deny`). A certificate that nobody renews expires at the time above.";

fn have(count: usize) -> String {
    match count {
        1 => "1 name has".to_owned(),
        count => format!("{count} names have"),
    }
}

fn list(left: &BTreeMap<Principal, u64>) -> String {
    let mut lines: Vec<String> = (left.iter().take(NAMES_MAX))
        .map(|(principal, until_us)| format!("  {principal} (until {})", time(*until_us)))
        .collect();
    if left.len() > NAMES_MAX {
        let more = left.len() - NAMES_MAX;
        lines.push(format!("  and {more} more (authority status -o json)"));
    }
    lines.join("\n")
}

fn finish(dir: &Path, force: bool) -> anyhow::Result<()> {
    let (authorities, left) = match trust::finish(dir, force) {
        Err(TrustError::OldNeeded(left)) => {
            anyhow::bail!(
                "not yet: {} still only a certificate of the old authority:\n{}\n{WAIT}\n--force ends the change now, and these \
                 names must join or log in again.",
                have(left.len()),
                list(&left)
            );
        }
        done => done.context("end the change of the authority")?,
    };
    let pin = authorities.pin();
    println!(
        "The old authority is trusted no more; the pin is {pin}. A running coordinator follows within two seconds.
Connections that are open go on."
    );
    let Some(first) = left.keys().next() else {
        return Ok(());
    };
    let (state, name) = (dir.display(), first.name());
    let url = trust::endpoint(dir).unwrap_or_else(|| authorities.endpoint(PORT));
    let how = match first.kind {
        Kind::Host => format!(
            "  muster-coordinator token create --state-dir {state} --host {name}
  MUSTER_TOKEN=... muster-agent join {url} --ca-pin {pin} --node-name {name} --state-dir DIR"
        ),
        Kind::User => format!(
            "  muster-coordinator token create --state-dir {state} --user {name}
  MUSTER_TOKEN=... muster login {url} --ca-pin {pin}"
        ),
    };
    println!(
        "\nThese must join or log in again, each with a token of its own:\n{}\nFor {first}:\n{how}",
        list(&left)
    );
    Ok(())
}
