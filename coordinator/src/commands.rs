//! The commands beside the daemon: `init`, `token`, `user`, `deny`, `allow`, `pin`. They work on the
//! state directory, whether or not the coordinator runs.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use muster_core::{
    id::{label_error, node_name_error},
    period,
};
use muster_rpc::identity::{Kind, Principal};

use crate::trust::{self, Grant, Role, Token};

/// The commands, as `muster-coordinator COMMAND`.
const NAMES: [&str; 6] = ["init", "token", "user", "deny", "allow", "pin"];
const PORT: u16 = 7070;

/// Looks after the certificate authority of a coordinator.
#[derive(Debug, Parser)]
#[command(name = "muster-coordinator", version = muster_runtime::version::version(), max_term_width = 120)]
pub struct Command {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Debug, Subcommand)]
enum Commands {
    Init(Init),
    Token(TokenCommand),
    User(UserCommand),
    Deny(Deny),
    Allow(Allow),
    Pin(Pin),
}

#[derive(Debug, Args)]
struct State {
    /// Directory of the coordinator's state
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    state_dir: PathBuf,
}

/// Make the certificate authority, so that the coordinator can serve other machines
///
/// From then on everything that the coordinator listens on is TLS, and its callers need a
/// certificate. May be run again, to add names; the running coordinator takes them at its next start.
#[derive(Debug, Args)]
struct Init {
    #[command(flatten)]
    state: State,
    /// A DNS name or IP address at which nodes and users call this coordinator; may be given several
    /// times, the first is the one that is printed
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<String>,
    /// The cluster's name in its certificates [default: muster]
    #[arg(long, value_name = "DOMAIN")]
    trust_domain: Option<String>,
}

/// Work with join tokens
#[derive(Debug, Args)]
struct TokenCommand {
    #[command(subcommand)]
    command: TokenCommands,
}

#[derive(Debug, Subcommand)]
enum TokenCommands {
    Create(Create),
}

/// Create a join token: the right to get one certificate, or --uses of them
///
/// Prints the token to stdout and nothing else there. It is shown once and kept nowhere.
#[derive(Debug, Args)]
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

/// Give users roles
#[derive(Debug, Args)]
struct UserCommand {
    #[command(subcommand)]
    command: UserCommands,
}

#[derive(Debug, Subcommand)]
enum UserCommands {
    Set(Set),
}

/// Give a user a role, in place of the one it has
#[derive(Debug, Args)]
struct Set {
    #[command(flatten)]
    state: State,
    /// The user
    name: String,
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

/// Deny a node or user everything, within seconds
///
/// The session of a denied node ends at its next heartbeat. What a denied user watches or follows
/// already goes on until that ends; every new call is refused. The workers of a denied node go on as after any lost connection, until the coordinator has given
/// their job other nodes.
#[derive(Debug, Args)]
struct Deny {
    #[command(flatten)]
    state: State,
    /// host/NAME or user/NAME
    name: String,
}

/// Take a denial back
#[derive(Debug, Args)]
struct Allow {
    #[command(flatten)]
    state: State,
    /// host/NAME or user/NAME
    name: String,
}

/// Print the pin by which other machines know this coordinator
#[derive(Debug, Args)]
struct Pin {
    #[command(flatten)]
    state: State,
}

impl Command {
    fn state_dir(&self) -> &Path {
        let state = match &self.command {
            Commands::Init(args) => &args.state,
            Commands::Token(TokenCommand {
                command: TokenCommands::Create(args),
            }) => &args.state,
            Commands::User(UserCommand {
                command: UserCommands::Set(args),
            }) => &args.state,
            Commands::Deny(args) => &args.state,
            Commands::Allow(args) => &args.state,
            Commands::Pin(args) => &args.state,
        };
        &state.state_dir
    }

    /// The command that the process was started with. `None`: it shall serve.
    pub fn of_arguments() -> Option<Self> {
        let first = env::args().nth(1)?;
        NAMES.contains(&first.as_str()).then(Self::parse)
    }

    pub fn run(self) -> anyhow::Result<()> {
        check_owner(self.state_dir())?;
        match self.command {
            Commands::Init(args) => init(&args),
            Commands::Token(TokenCommand {
                command: TokenCommands::Create(args),
            }) => create(args),
            Commands::User(UserCommand {
                command: UserCommands::Set(args),
            }) => set(
                &args.state.state_dir,
                &args.name,
                args.role,
                args.namespaces,
            ),
            Commands::Deny(args) => deny(&args.state.state_dir, &args.name, true),
            Commands::Allow(args) => deny(&args.state.state_dir, &args.name, false),
            Commands::Pin(args) => {
                println!("{}", trust::authority(&args.state.state_dir)?.pin());
                Ok(())
            }
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

fn init(args: &Init) -> anyhow::Result<()> {
    let dir = &args.state.state_dir;
    if let Some(bad) = args.names.iter().find(|name| !is_server_name(name)) {
        anyhow::bail!("--name: {bad:?} is neither a DNS name nor an IP address");
    }
    let (authority, new) = trust::init(dir, args.trust_domain.as_deref(), &args.names)?;
    let folder = dir.join("trust");
    if new {
        println!(
            "Made a certificate authority in {}. Who has that folder has the cluster: keep it and its backups private.",
            folder.display()
        );
    } else {
        println!(
            "The certificate authority in {} is there already; the names are now {}.",
            folder.display(),
            authority.names().join(", ")
        );
    }
    let state = dir.display();
    let url = authority.endpoint(PORT);
    let pin = authority.pin();
    println!(
        "
Next:
  # Here: serve
  muster-coordinator --state-dir {state} --listen 0.0.0.0:{PORT}

  # Here: a token for 10 nodes, good for a day. On each node: join with it
  muster-coordinator token create --state-dir {state} --host --uses 10 --ttl 1d
  MUSTER_TOKEN=... muster-agent join {url} --ca-pin {pin} --state-dir DIR

  # Here: a token for a user. On the user's machine: log in with it
  muster-coordinator token create --state-dir {state} --user NAME --role admin --all-namespaces
  MUSTER_TOKEN=... muster login {url} --ca-pin {pin}"
    );
    Ok(())
}

fn create(args: Create) -> anyhow::Result<()> {
    let dir = &args.state.state_dir;
    let authority = trust::authority(dir)?;
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
        set(dir, user, role, args.namespaces)?;
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

fn set(dir: &Path, name: &str, role: Role, namespaces: Vec<String>) -> anyhow::Result<()> {
    trust::authority(dir)?;
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
    let of = if grant.all_namespaces {
        "all namespaces".to_owned()
    } else {
        let names: Vec<&str> = grant.namespaces.iter().map(String::as_str).collect();
        format!("namespace {}", names.join(", "))
    };
    trust::grants(dir)?.set(name, grant)?;
    eprintln!("user/{name} is {} in {of}", role.word());
    Ok(())
}

fn deny(dir: &Path, name: &str, denied: bool) -> anyhow::Result<()> {
    trust::authority(dir)?;
    let principal: Principal = name.parse()?;
    trust::grants(dir)?
        .deny(&principal, denied)
        .with_context(|| format!("change the denial of {principal}"))?;
    let what = if denied { "denied" } else { "allowed again" };
    eprintln!("{principal} is {what}");
    Ok(())
}

/// What may stand in a certificate as a server's name.
fn is_server_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    name.parse::<std::net::IpAddr>().is_ok()
        || !name.is_empty()
            && name.len() <= 253
            && name.chars().all(plain)
            && !name.starts_with(['-', '.'])
}
