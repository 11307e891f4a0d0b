//! `muster-coordinator init` and `pin`: the certificate authority.

use clap::Args;

use super::{Change, PORT, State};
use crate::trust;

/// Make the certificate authority, so that the coordinator can serve other machines
///
/// From then on everything that the coordinator listens on is TLS, and its callers need a
/// certificate. May be run again, to add names; a running coordinator takes them within two seconds.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # The coordinator is called by this name
  muster-coordinator init --state-dir ~/coordinator --name train.example.org

  # And by this address
  muster-coordinator init --state-dir ~/coordinator --name 10.1.0.5")]
pub(super) struct Init {
    #[command(flatten)]
    pub(super) state: State,
    /// A DNS name or IP address at which nodes and users call this coordinator; may be given several
    /// times, the first is the one that is printed
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<String>,
    /// The cluster's name in its certificates [default: muster]
    #[arg(long, value_name = "DOMAIN")]
    trust_domain: Option<String>,
}

impl Init {
    pub(super) fn change(&self) -> Change {
        Change::new(format!("init --name {}", self.names.join(" --name ")), "")
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let dir = &self.state.state_dir;
        if let Some(bad) = self.names.iter().find(|name| !trust::is_server_name(name)) {
            anyhow::bail!("--name: {bad:?} is neither a DNS name nor an IP address");
        }
        let (authority, new) = trust::init(dir, self.trust_domain.as_deref(), &self.names)?;
        let folder = dir.join("trust");
        if new {
            println!(
                "Made a certificate authority in {}. Anybody who can read that folder controls the cluster: keep it and its backups private.",
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
}

/// Print the pin by which other machines know this coordinator
///
/// The pin is the hash of the authority's key. It is no secret.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster-coordinator pin --state-dir ~/coordinator")]
pub(super) struct Pin {
    #[command(flatten)]
    pub(super) state: State,
}

impl Pin {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        println!("{}", trust::authorities(&self.state.state_dir)?.pin());
        Ok(())
    }
}
