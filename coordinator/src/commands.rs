//! The commands beside the daemon: `init`, `authority`, `token`, `user`, `deny`, `allow`, `pin`. They
//! work on the state directory, whether or not the coordinator runs. What they change goes into its
//! audit trail. `crd` prints, and needs none of that. `remove` takes a service away.
//!
//! | file | owns |
//! |---|---|
//! | `init` | making the certificate authority, and its pin; the coordinator as a service |
//! | `remove` | taking that service away |
//! | `authority` | changing the authority |
//! | `token` | join tokens |
//! | `user` | roles of users |
//! | `deny` | denials |
//! | `crd` | the definition of `MusterJob` objects |
//! | `table` | lists on stdout |

mod authority;
mod crd;
mod deny;
mod init;
mod remove;
mod table;
#[cfg(test)]
mod tests;
mod token;
mod user;

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use clap::{Args, Parser, Subcommand};
use muster_rpc::Identity;
use tonic::Code;

use crate::{
    audit::{self, Entry},
    trust,
};

/// The commands, as `muster-coordinator COMMAND`.
const NAMES: [&str; 9] = [
    "init",
    "remove",
    "authority",
    "token",
    "user",
    "deny",
    "allow",
    "pin",
    "crd",
];
const PORT: u16 = 7070;

/// The kernel's word for a process that began without a login, as services do.
const NO_LOGIN: u32 = u32::MAX;

/// Looks after the certificate authority of a coordinator.
#[derive(Debug, Parser)]
#[command(name = "muster-coordinator", version = muster_runtime::version::version(), max_term_width = 120)]
pub struct Command {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Debug, Subcommand)]
enum Commands {
    Init(init::Init),
    Remove(remove::Remove),
    Authority(authority::AuthorityCommand),
    Token(token::TokenCommand),
    User(user::User),
    Deny(deny::Deny),
    Allow(deny::Allow),
    Pin(init::Pin),
    Crd(crd::Crd),
}

#[derive(Debug, Args)]
struct State {
    /// Directory of the coordinator's state
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    state_dir: PathBuf,
}

/// What a command changes, in the words of the audit trail.
struct Change {
    what: String,
    object: String,
}

impl Change {
    fn new(what: impl Into<String>, object: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            object: object.into(),
        }
    }
}

impl Command {
    /// `None`: the command needs none.
    fn state_dir(&self) -> Option<&Path> {
        let state = match &self.command {
            Commands::Init(args) => return args.state_dir(),
            Commands::Authority(args) => args.state(),
            Commands::Token(args) => args.state(),
            Commands::User(args) => args.state(),
            Commands::Deny(args) => &args.state,
            Commands::Allow(args) => &args.state,
            Commands::Pin(args) => &args.state,
            Commands::Remove(_) | Commands::Crd(_) => return None,
        };
        Some(&state.state_dir)
    }

    fn changes(&self) -> Vec<Change> {
        match &self.command {
            Commands::Init(args) => vec![args.change()],
            Commands::Authority(args) => args.change().into_iter().collect(),
            Commands::Token(args) => args.changes(),
            Commands::User(args) => args.change().into_iter().collect(),
            Commands::Deny(args) => vec![args.change()],
            Commands::Allow(args) => vec![args.change()],
            Commands::Remove(_) | Commands::Pin(_) | Commands::Crd(_) => Vec::new(),
        }
    }

    /// The command that the process was started with. `None`: it shall serve.
    pub fn of_arguments() -> Option<Self> {
        let first = env::args().nth(1)?;
        NAMES.contains(&first.as_str()).then(Self::parse)
    }

    pub fn run(self) -> anyhow::Result<()> {
        let state_dir = self.state_dir().map(Path::to_owned);
        state_dir.as_deref().map_or(Ok(()), check_owner)?;
        let changes = self.changes();
        let done = match self.command {
            Commands::Init(args) => args.run(),
            Commands::Remove(args) => args.run(),
            Commands::Authority(args) => args.run(),
            Commands::Token(args) => args.run(),
            Commands::User(args) => args.run(),
            Commands::Deny(args) => args.run(),
            Commands::Allow(args) => args.run(),
            Commands::Pin(args) => args.run(),
            Commands::Crd(args) => args.run(),
        };
        let changes_something = !changes.is_empty();
        if let Some(state_dir) = &state_dir {
            record(state_dir, changes, done.is_ok());
        }
        match state_dir.filter(|_| changes_something) {
            Some(state_dir) if done.is_ok() => Ok(trust::until_shared(&state_dir)?),
            _ => done,
        }
    }
}

/// Refuses to write as another user than the coordinator's: it could not read what was written, and
/// a denial, say, would not hold.
fn check_owner(state_dir: &Path) -> anyhow::Result<()> {
    let Ok(data) = fs::metadata(state_dir) else {
        // The command itself says what is wrong with it.
        return Ok(());
    };
    let (owner, own) = (data.uid(), rustix::process::geteuid().as_raw());
    if owner != own {
        anyhow::bail!(
            "{} belongs to user {owner}, and you are user {own}; run this as that user, as with: runuser -u \"$(id -nu {owner})\" -- \
             muster-coordinator ...",
            state_dir.display()
        );
    }
    Ok(())
}

/// Puts what was changed into the audit trail. The change itself is done, so a trail that cannot be
/// written is only told.
fn record(state_dir: &Path, changes: Vec<Change>, done: bool) {
    // A command that failed because there is no such directory must not make it.
    if changes.is_empty() || !state_dir.is_dir() {
        return;
    }
    // A command has no gRPC code. It failed for what it was given, or for the disk.
    let code = if done { Code::Ok } else { Code::Unknown };
    let who = who(fs::read_to_string("/proc/self/loginuid").ok());
    let entries: Vec<Entry> = changes
        .into_iter()
        .map(|Change { what, object }| {
            Entry::of_call(who.clone(), "local".into(), &what, object, code)
        })
        .collect();
    if let Err(e) = audit::append(&audit::Options::of(state_dir), &entries) {
        eprintln!("muster-coordinator: warning: the audit trail was not written: {e}");
    }
}

/// The user that runs this, and the one that has logged in, if that is another: commands are run by
/// way of runuser or sudo.
fn who(login: Option<String>) -> String {
    let user = |uid| Identity::Local { uid }.to_string();
    let own = rustix::process::getuid().as_raw();
    let login = login.and_then(|text| text.trim().parse::<u32>().ok());
    match login.filter(|uid| *uid != own && *uid != NO_LOGIN) {
        Some(uid) => format!("{} (login: {})", user(own), user(uid)),
        None => user(own),
    }
}
