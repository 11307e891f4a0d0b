//! `muster-agent join --service`: what the agent's service needs, as values for the plan.

use std::path::Path;

use clap::CommandFactory;
use muster_core::id::node_name_error;
use muster_rpc::{Address, credentials::Credentials};
use muster_runner::Folder;
use muster_service::{Daemon, Step, Wanted, carry_out, install, settings_of};

use super::{Join, token};
use crate::config::{Flags, credentials_path};

const DAEMON: Daemon = Daemon::Agent;

/// Credentials have some kilobytes. Jobs of the node can write something else in their place.
const CREDENTIALS_MAX: u64 = 1 << 20;

/// What an earlier `join` has left.
#[derive(Debug, PartialEq, Eq)]
enum Joined {
    Not,
    /// The coordinator and the name that are asked for.
    So,
    /// Why the state directory is not for this.
    Otherwise(String),
}

impl Join {
    pub(super) fn install(self) -> Result<String, String> {
        if let Some(dir) = self
            .state_dir
            .as_deref()
            .filter(|dir| *dir != DAEMON.state_dir())
        {
            return Err(format!(
                "--state-dir: the service's state is in {}, not in {}; mount the disk that you mean there",
                DAEMON.state_dir().display(),
                dir.display()
            ));
        }
        let name = self.node_name.as_deref().unwrap_or_default();
        if let Some(why) = node_name_error(name).filter(|_| !name.is_empty()) {
            return Err(format!("--node-name: {why}"));
        }
        let address = self.address()?;
        let settings = settings_of(DAEMON, Flags::command(), &self.service.flags)?;
        let machine = self.service.machine(DAEMON).map_err(|e| e.to_string())?;
        if machine.is_at_rest() && address.is_some() && name.is_empty() {
            return Err(
                "--node-name: is needed with --root, or the node would have this machine's name"
                    .into(),
            );
        }
        let mut joined = Joined::Not;
        let look = |state_dir: &Path| {
            joined = match read(state_dir) {
                None => Joined::Not,
                Some(there) => {
                    let now_us = muster_rpc::credentials::now_us();
                    compare(&there, address.as_ref(), name, now_us)
                }
            };
            joined == Joined::So
        };
        let found = machine
            .look(DAEMON, self.run_as.as_deref(), look)
            .map_err(|e| e.to_string())?;
        if let Joined::Otherwise(why) = joined {
            return Err(why);
        }
        let wanted = Wanted {
            daemon: DAEMON,
            program: machine.program().map_err(|e| e.to_string())?,
            run_as: self.run_as.clone(),
            settings,
            enrolment: match &address {
                Some(address) => self.enrolment(address)?,
                None => Vec::new(),
            },
        };
        let steps = install(&wanted, &found).map_err(|e| e.to_string())?;
        let enrols = steps.iter().any(|step| matches!(step, Step::Enrol { .. }));
        let dry_run = self.service.dry_run;
        let token = match enrols && !dry_run {
            true => Some(token(self.token_file)?),
            false => None,
        };
        let done = carry_out(&machine, DAEMON, &steps, dry_run, token.as_deref());
        let has_changed = done.map_err(|e| e.to_string())?;
        let unit = DAEMON.unit();
        Ok(match (has_changed, machine.is_at_rest()) {
            _ if dry_run && !steps.is_empty() => String::new(),
            (false, true) => format!("Nothing to do: {unit} is as asked."),
            (false, false) => format!("Nothing to do: {unit} is as asked, and runs."),
            (true, true) if address.is_some() => {
                format!("{unit} is ready, and starts with that machine.")
            }
            (true, true) => format!(
                "{unit} is ready. On the machine itself: MUSTER_TOKEN=... {} join URL --ca-pin PIN --service",
                DAEMON.name()
            ),
            (true, false) => format!("{unit} runs. Its log: journalctl --unit {unit}"),
        })
    }

    /// The `join` that the service's user makes.
    fn enrolment(&self, address: &Address) -> Result<Vec<String>, String> {
        let mut args = vec!["join".into(), address.to_string()];
        if let Some(pin) = &self.ca_pin {
            args.extend(["--ca-pin".into(), pin.to_string()]);
        }
        if let Some(file) = &self.ca_file {
            let path = std::path::absolute(file).map_err(|e| format!("--ca-file: {e}"))?;
            args.extend(["--ca-file".into(), path.display().to_string()]);
        }
        if let Some(name) = &self.node_name {
            args.extend(["--node-name".into(), name.clone()]);
        }
        args.extend(["--token-file", "-"].map(String::from));
        Ok(args)
    }
}

/// What is in the state directory, where jobs can write.
fn read(state_dir: &Path) -> Option<Credentials> {
    let path = credentials_path(state_dir);
    let below = path.strip_prefix(state_dir).ok()?;
    let folder = Folder::trusted(state_dir)
        .ok()?
        .below(below.parent()?)
        .ok()?;
    let text = folder.read(path.file_name()?, CREDENTIALS_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

fn compare(there: &Credentials, address: Option<&Address>, name: &str, now_us: u64) -> Joined {
    let other_coordinator = address.is_some_and(|address| there.server != address.to_string());
    let other_name = !name.is_empty() && there.principal != format!("host/{name}");
    if other_coordinator || other_name {
        return Joined::Otherwise(format!(
            "this machine is {} of {} already; to move it, first: {} leave --service --purge",
            there.principal,
            there.server,
            DAEMON.name()
        ));
    }
    match there.is_expired(now_us) {
        true => Joined::Not,
        false => Joined::So,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_joins_once_and_again_when_its_certificate_is_over() {
        let there = Credentials {
            server: "https://train.example.org:7070".into(),
            principal: "host/n7".into(),
            certificate: String::new(),
            key: String::new(),
            authorities: String::new(),
            not_before_us: 0,
            not_after_us: 100,
        };
        let compare = |url: &str, name: &str, now_us| {
            let address: Address = url.parse().unwrap();
            compare(&there, Some(&address), name, now_us)
        };
        let here = "https://train.example.org:7070";
        assert_eq!(compare(here, "", 99), Joined::So);
        assert_eq!(compare(here, "n7", 99), Joined::So);
        assert_eq!(compare(here, "n7", 100), Joined::Not);
        for (url, name) in [("https://other.example.org:7070", ""), (here, "n8")] {
            let Joined::Otherwise(why) = compare(url, name, 99) else {
                panic!("{url} {name} is not the same");
            };
            assert!(
                why.contains("host/n7 of https://train.example.org:7070"),
                "{why}"
            );
            assert!(why.contains("leave --service --purge"), "{why}");
        }
    }

    #[test]
    fn a_job_cannot_make_root_read_something_else() {
        let state = tempfile::tempdir().unwrap();
        let identity = state.path().join("identity");
        std::fs::create_dir(&identity).unwrap();
        let file = identity.join("credentials.json");
        std::os::unix::fs::symlink("/proc/self/environ", &file).unwrap();
        assert!(read(state.path()).is_none());
        std::fs::remove_file(&file).unwrap();
        let fifo = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, fifo, 0).unwrap();
        assert!(
            read(state.path()).is_none(),
            "and it does not wait for a writer"
        );
    }
}
