//! `muster-coordinator init` and `pin`: the certificate authority.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use muster_service::{Daemon, ServiceFlags, Wanted, carry_out, install, settings_of};

use super::{Change, PORT, State};
use crate::{options::Options, trust};

const DAEMON: Daemon = Daemon::Coordinator;

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
  muster-coordinator init --state-dir ~/coordinator --name 10.1.0.5

  # As a service of systemd, as root; give it again to change something
  muster-coordinator init --name train.example.org --service -- --suspect-missed 5")]
pub(super) struct Init {
    /// Directory of the coordinator's state; that of a service is /var/lib/muster-coordinator
    #[arg(
        long,
        env = "MUSTER_STATE_DIR",
        value_name = "DIR",
        required_unless_present = "service"
    )]
    state_dir: Option<PathBuf>,
    /// A DNS name or IP address at which nodes and users call this coordinator; may be given several
    /// times, the first is the one that is printed
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<String>,
    /// The cluster's name in its certificates [default: muster]
    #[arg(long, value_name = "DOMAIN")]
    trust_domain: Option<String>,
    #[command(flatten)]
    service: ServiceFlags,
}

impl Init {
    /// The state directory that this process works on. `None`: the service's user does it.
    pub(super) fn state_dir(&self) -> Option<&Path> {
        let dir = self.state_dir.as_deref();
        dir.filter(|_| !self.service.service)
    }

    pub(super) fn change(&self) -> Change {
        Change::new(format!("init --name {}", self.names.join(" --name ")), "")
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        if let Some(bad) = self.names.iter().find(|name| !trust::is_server_name(name)) {
            anyhow::bail!("--name: {bad:?} is neither a DNS name nor an IP address");
        }
        let Some(dir) = self.state_dir() else {
            return self.install();
        };
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

impl Init {
    fn install(&self) -> anyhow::Result<()> {
        let state_dir = DAEMON.state_dir();
        if let Some(dir) = self.state_dir.as_deref().filter(|dir| *dir != state_dir) {
            anyhow::bail!(
                "--state-dir: the service's state is in {}, not in {}; mount the disk that you mean there",
                state_dir.display(),
                dir.display()
            );
        }
        let settings = settings_of(DAEMON, Options::command(), &self.service.flags);
        let settings = settings.map_err(anyhow::Error::msg)?;
        let machine = self.service.machine(DAEMON)?;
        let found = machine.look(DAEMON, None, |state_dir| {
            let Ok(there) = trust::authorities(state_dir) else {
                return false;
            };
            let domain = self.trust_domain.as_deref();
            // `init` itself refuses another domain.
            domain.is_none_or(|domain| there.domain().to_string() == domain)
                && self.names.iter().all(|name| there.names().contains(name))
        })?;
        let mut enrolment = vec!["init".to_owned()];
        for name in &self.names {
            enrolment.extend(["--name".to_owned(), name.clone()]);
        }
        if let Some(domain) = &self.trust_domain {
            enrolment.extend(["--trust-domain".to_owned(), domain.clone()]);
        }
        let wanted = Wanted {
            daemon: DAEMON,
            program: machine.program()?,
            run_as: None,
            settings,
            enrolment,
        };
        let steps = install(&wanted, &found)?;
        let dry_run = self.service.dry_run;
        let has_changed = carry_out(&machine, DAEMON, &steps, dry_run, None)?;
        if dry_run && !steps.is_empty() {
            return Ok(());
        }
        let unit = DAEMON.unit();
        match (has_changed, machine.is_at_rest()) {
            (false, true) => println!("Nothing to do: {unit} is as asked."),
            (false, false) => println!("Nothing to do: {unit} is as asked, and runs."),
            (true, true) => println!("{unit} is ready, and starts with that machine."),
            (true, false) => println!("{unit} runs. Its log: journalctl --unit {unit}"),
        }
        let authority = trust::authorities(&machine.path(state_dir))?;
        let (url, pin) = (authority.endpoint(PORT), authority.pin());
        let (user, state) = (DAEMON.user(), state_dir.display());
        println!(
            "
Next:
  # Here: a token for 10 nodes, good for a day. On each node, as root: join with it
  runuser -u {user} -- muster-coordinator token create --state-dir {state} --host --uses 10 --ttl 1d
  MUSTER_TOKEN=... muster-agent join {url} --ca-pin {pin} --service

  # Here: a token for a user. On the user's machine: log in with it
  runuser -u {user} -- muster-coordinator token create --state-dir {state} --user NAME --role admin --all-namespaces
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
