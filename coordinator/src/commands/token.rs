//! `muster-coordinator token`: join tokens.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use muster_core::{id::node_name_error, period};
use muster_rpc::identity::{Kind, Principal};
use serde::Serialize;

use super::{
    Change, PORT, State,
    table::{Output, print},
    user,
};
use crate::trust::{self, Listed, Role, Token};

/// How much of a token's id is shown: enough to tell some hundred tokens apart.
const ID_SHOWN: usize = 8;

/// Create join tokens, list them, delete them
///
/// A token is the right to get one certificate, or so many, within a time.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator token create --state-dir ~/coordinator --host --uses 10 --ttl 1d
  muster-coordinator token list --state-dir ~/coordinator")]
pub(super) struct TokenCommand {
    #[command(subcommand)]
    command: Tokens,
}

#[derive(Debug, Subcommand)]
enum Tokens {
    Create(Create),
    List(List),
    Delete(Delete),
}

/// Create a join token: the right to get one certificate, or --uses of them
///
/// Prints the token to stdout and nothing else there. It is shown once and kept nowhere.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # For ten new nodes, good for a day
  muster-coordinator token create --state-dir ~/coordinator --host --uses 10 --ttl 1d

  # For one node, also if it had a certificate before
  muster-coordinator token create --state-dir ~/coordinator --host node-2

  # For a user, with a role
  muster-coordinator token create --state-dir ~/coordinator --user ann --role submitter --namespace team-a")]
struct Create {
    #[command(flatten)]
    state: State,
    /// For a node's agent: of this node, or of any new one
    #[arg(long, value_name = "NODE", num_args = 0..=1, default_missing_value = "", conflicts_with = "user", required_unless_present = "user")]
    host: Option<String>,
    /// For this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Also give the user this role
    #[arg(long, value_enum, requires = "user")]
    role: Option<Role>,
    /// A namespace of the jobs that the role is for; may be given several times
    #[arg(long = "namespace", short, value_name = "NAMESPACE", requires = "role")]
    namespaces: Vec<String>,
    /// The role is for all namespaces
    #[arg(long, short = 'A', requires = "role", conflicts_with = "namespaces")]
    all_namespaces: bool,
    /// How many nodes may join with it; only without a name
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    uses: u32,
    /// How long it is good for
    #[arg(long, value_name = "PERIOD", default_value = "1h", value_parser = period::parse)]
    ttl: Duration,
}

/// List the tokens that are there
///
/// ID is the beginning of a token's public part; the secret part is kept nowhere. USES is how often
/// it can still be used. Tokens that were used up are not there any more.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator token list --state-dir ~/coordinator
  muster-coordinator token list --state-dir ~/coordinator -o json")]
struct List {
    #[command(flatten)]
    state: State,
    #[command(flatten)]
    output: Output,
}

/// Delete a token, so that nobody can join with it any more
///
/// Certificates that were got for it stay good. To refuse those, use deny.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator token delete --state-dir ~/coordinator 5f2a90c1")]
struct Delete {
    #[command(flatten)]
    state: State,
    /// The token's id as `token list` shows it, or a part of its beginning
    id: String,
}

impl TokenCommand {
    pub(super) fn state(&self) -> &State {
        match &self.command {
            Tokens::Create(args) => &args.state,
            Tokens::List(args) => &args.state,
            Tokens::Delete(args) => &args.state,
        }
    }

    pub(super) fn changes(&self) -> Vec<Change> {
        match &self.command {
            Tokens::Create(args) => args.changes(),
            Tokens::List(_) => Vec::new(),
            Tokens::Delete(args) => vec![Change::new(
                "token delete",
                format!("token/{}", public(&args.id)),
            )],
        }
    }

    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Tokens::Create(args) => create(args),
            Tokens::List(args) => list(&args),
            Tokens::Delete(args) => delete(&args),
        }
    }
}

impl Create {
    fn changes(&self) -> Vec<Change> {
        let (what, object) = match (&self.user, self.host.as_deref()) {
            (Some(user), _) => ("token create --user".to_owned(), format!("user/{user}")),
            (None, Some(host)) if !host.is_empty() => {
                ("token create --host".to_owned(), format!("host/{host}"))
            }
            (None, _) => {
                let what = format!("token create --host --uses {}", self.uses);
                (what, String::new())
            }
        };
        let role = self.user.as_deref().zip(self.role);
        let role = role.map(|(user, role)| user::setting(user, role, &self.namespaces));
        role.into_iter()
            .chain([Change::new(what, object)])
            .collect()
    }
}

fn create(args: Create) -> anyhow::Result<()> {
    let dir = &args.state.state_dir;
    let authority = trust::authorities(dir)?;
    let (kind, name) = match (args.host, args.user) {
        (_, Some(user)) => (Kind::User, Some(user)),
        (host, None) => (Kind::Host, host.filter(|name| !name.is_empty())),
    };
    if let Some(name) = &name {
        Principal::new(kind, name)?;
        if let Some(why) = node_name_error(name).filter(|_| kind == Kind::Host) {
            anyhow::bail!("--host: {why}");
        }
        if args.uses > 1 {
            anyhow::bail!("--uses: a token for one name is good for one certificate");
        }
    }
    if let (Some(user), Some(role)) = (&name, args.role) {
        if args.namespaces.is_empty() && !args.all_namespaces {
            anyhow::bail!("--role: for which jobs? give --namespace NAME, or --all-namespaces");
        }
        user::set(dir, user, role, args.namespaces)?;
    }
    let token = trust::create_token(
        dir,
        Token {
            kind,
            name: name.clone(),
            uses: args.uses,
            expires_us: trust::now_us().saturating_add(args.ttl.as_micros() as u64),
        },
    )?;
    let url = trust::endpoint(dir).unwrap_or_else(|| authority.endpoint(PORT));
    let pin = authority.pin();
    eprintln!("Use it within {}:", period::format(args.ttl));
    match (kind, &name) {
        (Kind::User, _) => eprintln!("  MUSTER_TOKEN=TOKEN muster login {url} --ca-pin {pin}"),
        (Kind::Host, Some(name)) => eprintln!(
            "  MUSTER_TOKEN=TOKEN muster-agent join {url} --ca-pin {pin} --node-name {name} --state-dir DIR"
        ),
        (Kind::Host, None) => {
            eprintln!(
                "  MUSTER_TOKEN=TOKEN muster-agent join {url} --ca-pin {pin} --state-dir DIR"
            );
        }
    }
    println!("{token}");
    Ok(())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    /// `host/NAME` or `user/NAME`; `host`: any new node.
    #[serde(rename = "for")]
    whom: String,
    uses: u32,
    expires: Timestamp,
    /// How long until then.
    #[serde(skip)]
    left: String,
}

fn list(args: &List) -> anyhow::Result<()> {
    let dir = &args.state.state_dir;
    trust::authorities(dir)?;
    let now_us = trust::now_us();
    let rows: Vec<Row> = (trust::tokens(dir)?.iter())
        .map(|token| row(token, now_us))
        .collect();
    let line = |row: &Row| {
        [
            row.id.clone(),
            row.whom.clone(),
            row.uses.to_string(),
            row.left.clone(),
        ]
    };
    let heads = ["ID", "FOR", "USES", "EXPIRES"];
    let none = "There are no tokens; make one with `muster-coordinator token create`.";
    print(&args.output, heads, &rows, line, none)
}

fn row(token: &Listed, now_us: u64) -> Row {
    let kind = match token.kind {
        Kind::Host => "host",
        Kind::User => "user",
    };
    let expires = i64::try_from(token.expires_us).ok();
    let expires = expires.and_then(|us| Timestamp::from_microsecond(us).ok());
    Row {
        id: public(&token.id),
        whom: match &token.name {
            Some(name) => format!("{kind}/{name}"),
            None => kind.to_owned(),
        },
        uses: token.uses,
        expires: expires.unwrap_or(Timestamp::MAX),
        left: left(token.expires_us, now_us),
    }
}

/// How long a token is still good for, in its largest unit.
fn left(expires_us: u64, now_us: u64) -> String {
    let seconds = expires_us.saturating_sub(now_us) / 1_000_000;
    match seconds {
        // It goes when somebody shows it.
        0 => "expired".to_owned(),
        1..120 => format!("in {seconds}s"),
        120..7_200 => format!("in {}m", seconds / 60),
        7_200..172_800 => format!("in {}h", seconds / 3_600),
        _ => format!("in {}d", seconds / 86_400),
    }
}

/// As much of a token as anybody may see, also if somebody gives a whole token with its secret.
fn public(token: &str) -> String {
    let id = token.chars().take_while(char::is_ascii_hexdigit);
    id.take(ID_SHOWN).collect()
}

fn delete(args: &Delete) -> anyhow::Result<()> {
    let dir = &args.state.state_dir;
    trust::authorities(dir)?;
    let wanted = args.id.split('.').next().unwrap_or_default();
    let found: Vec<Listed> = (trust::tokens(dir)?.into_iter())
        .filter(|token| !wanted.is_empty() && token.id.starts_with(wanted))
        .collect();
    let [token] = &found[..] else {
        let why = match found.len() {
            0 => "no token has this id",
            _ => "several tokens begin with this id",
        };
        anyhow::bail!(
            "{}: {why}; `muster-coordinator token list` shows them",
            public(wanted)
        );
    };
    trust::delete_token(dir, &token.id)?;
    eprintln!("token {} is deleted", public(&token.id));
    Ok(())
}
