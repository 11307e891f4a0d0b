//! `muster-coordinator user`: the roles of users.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use clap::{Args, Subcommand};
use muster_core::id::label_error;
use muster_rpc::identity::{Kind, Principal};
use serde::Serialize;

use super::{
    Change, State,
    table::{Output, print},
};
use crate::trust::{self, Grant, Role};

/// Give users roles, list them, take them away
///
/// The running coordinator takes every change within two seconds. What a user has open ends if its
/// role is for less than before.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator user set --state-dir ~/coordinator ann --role operator --all-namespaces
  muster-coordinator user list --state-dir ~/coordinator")]
pub(super) struct User {
    #[command(subcommand)]
    command: Users,
}

#[derive(Debug, Subcommand)]
enum Users {
    Set(Set),
    List(List),
    Delete(Delete),
}

/// Give a user a role, in place of the one it has
///
/// A role is for the namespaces that --namespace names, or for all with --all-namespaces.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator user set --state-dir ~/coordinator ann --role submitter --namespace team-a
  muster-coordinator user set --state-dir ~/coordinator bob --role viewer --all-namespaces")]
struct Set {
    #[command(flatten)]
    state: State,
    /// The user
    name: String,
    /// What the user may do
    #[arg(long, value_enum)]
    role: Role,
    /// A namespace of the jobs that the role is for; may be given several times
    #[arg(
        long = "namespace",
        short,
        value_name = "NAMESPACE",
        required_unless_present = "all_namespaces"
    )]
    namespaces: Vec<String>,
    /// The role is for all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespaces")]
    all_namespaces: bool,
}

/// List the users that have a role or are denied
///
/// NAMESPACES are those of the jobs that the role is for. A user with a certificate and without a
/// role is not listed: it may only ask who it is.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator user list --state-dir ~/coordinator
  muster-coordinator user list --state-dir ~/coordinator -o json")]
struct List {
    #[command(flatten)]
    state: State,
    #[command(flatten)]
    output: Output,
}

/// Take a user's role away
///
/// The user's certificate stays good, so it may still ask who it is. To refuse it everything, use
/// deny.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator user delete --state-dir ~/coordinator ann")]
struct Delete {
    #[command(flatten)]
    state: State,
    /// The user
    name: String,
}

impl User {
    pub(super) fn state(&self) -> &State {
        match &self.command {
            Users::Set(args) => &args.state,
            Users::List(args) => &args.state,
            Users::Delete(args) => &args.state,
        }
    }

    pub(super) fn change(&self) -> Option<Change> {
        match &self.command {
            Users::Set(args) => Some(setting(&args.name, args.role, &args.namespaces)),
            Users::List(_) => None,
            Users::Delete(args) => Some(Change::new("user delete", of(&args.name))),
        }
    }

    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Users::Set(args) => set(
                &args.state.state_dir,
                &args.name,
                args.role,
                args.namespaces,
            ),
            Users::List(args) => list(&args),
            Users::Delete(args) => delete(&args),
        }
    }
}

fn of(name: &str) -> String {
    format!("user/{name}")
}

/// What the audit trail says of a role that is given.
pub(super) fn setting(name: &str, role: Role, namespaces: &[String]) -> Change {
    let mut what = format!("user set --role {}", role.word());
    for namespace in namespaces {
        what += &format!(" --namespace {namespace}");
    }
    if namespaces.is_empty() {
        what += " --all-namespaces";
    }
    Change::new(what, of(name))
}

/// Gives the role for these namespaces, or for all if there are none.
pub(super) fn set(
    dir: &Path,
    name: &str,
    role: Role,
    namespaces: Vec<String>,
) -> anyhow::Result<()> {
    trust::has_grants(dir)?;
    Principal::new(Kind::User, name)?;
    for namespace in &namespaces {
        if let Some(why) = label_error(namespace) {
            anyhow::bail!("--namespace {namespace}: {why}");
        }
    }
    let grant = Grant {
        role,
        all_namespaces: namespaces.is_empty(),
        namespaces: namespaces.into_iter().collect(),
    };
    let of = match grant.all_namespaces {
        true => "all namespaces".to_owned(),
        false => format!("namespace {}", joined(&grant.namespaces)),
    };
    trust::grants(dir)?.set(name, grant)?;
    eprintln!("user/{name} is {} in {of}", role.word());
    Ok(())
}

fn joined(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join(", ")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    user: String,
    role: Option<Role>,
    namespaces: BTreeSet<String>,
    all_namespaces: bool,
    denied: bool,
}

fn list(args: &List) -> anyhow::Result<()> {
    let dir = &args.state.state_dir;
    trust::has_grants(dir)?;
    let grants = trust::grants(dir)?;
    let mut users: BTreeMap<String, Option<Grant>> = grants
        .users()
        .into_iter()
        .map(|(name, grant)| (name, Some(grant)))
        .collect();
    let denied: BTreeSet<String> = (grants.denied().iter())
        .filter_map(|name| name.strip_prefix("user/").map(str::to_owned))
        .collect();
    for name in &denied {
        users.entry(name.clone()).or_default();
    }
    let rows: Vec<Row> = (users.into_iter())
        .map(|(user, grant)| Row {
            role: grant.as_ref().map(|grant| grant.role),
            all_namespaces: grant.as_ref().is_some_and(|grant| grant.all_namespaces),
            namespaces: grant.map(|grant| grant.namespaces).unwrap_or_default(),
            denied: denied.contains(&user),
            user,
        })
        .collect();
    let line = |row: &Row| {
        let namespaces = match row.all_namespaces {
            true => "(all)".to_owned(),
            false => joined(&row.namespaces),
        };
        let denied = if row.denied { "yes" } else { "no" };
        [
            row.user.clone(),
            row.role.map(Role::word).unwrap_or_default().to_owned(),
            namespaces,
            denied.to_owned(),
        ]
    };
    let heads = ["NAME", "ROLE", "NAMESPACES", "DENIED"];
    print(
        &args.output,
        heads,
        &rows,
        line,
        "No user has a role; give one with `muster-coordinator user set`.",
    )
}

fn delete(args: &Delete) -> anyhow::Result<()> {
    let (dir, name) = (&args.state.state_dir, &args.name);
    trust::has_grants(dir)?;
    if !trust::grants(dir)?.remove(name)? {
        anyhow::bail!("user/{name} has no role; `muster-coordinator user list` shows who has one");
    }
    eprintln!("user/{name} has no role any more");
    Ok(())
}
