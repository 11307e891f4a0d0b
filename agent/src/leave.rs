//! `muster-agent leave --service`: takes the agent's service away again. The state stays, and with it the
//! node's name and certificate, unless --purge is given.

use std::{collections::BTreeSet, fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use muster_runner::place::RUN_DIR;
use muster_runtime::version::version;
use muster_service::{Daemon, Held, Removal, ServiceFlags, carry_out, remove};

const DAEMON: Daemon = Daemon::Agent;

/// Stop the agent's service and remove its unit
///
/// The state directory, the settings and the user stay, so that `join --service` brings the node back.
#[derive(Debug, Parser)]
#[command(name = "muster-agent leave", bin_name = "muster-agent leave", version = version(), max_term_width = 110, after_help = "\
Example:
  muster-agent leave --service
  muster-agent leave --service --purge    # the node's certificate and the logs of its jobs go, too")]
pub struct Leave {
    // The word `leave` itself.
    #[arg(hide = true, value_name = "leave")]
    word: String,
    /// The service of systemd is meant, which `join --service` has made
    #[arg(long, required = true)]
    service: bool,
    /// Remove the state directory and the settings, too
    #[arg(long)]
    purge: bool,
    /// Kill the workers that run here
    #[arg(long)]
    force: bool,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// The root folder of a machine that does not run
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Leave {
    pub fn run(self) -> ExitCode {
        match self.leave() {
            Ok(said) => {
                println!("{said}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("muster-agent leave: {why}");
                ExitCode::FAILURE
            }
        }
    }

    fn leave(self) -> Result<String, String> {
        let flags = ServiceFlags {
            root: self.root,
            ..ServiceFlags::default()
        };
        let machine = flags.machine(DAEMON).map_err(|e| e.to_string())?;
        let found = machine.look(DAEMON, None, |_| true);
        let found = found.map_err(|e| e.to_string())?;
        let held = found.unit.iter().flat_map(|unit| machine.held(unit));
        let removal = Removal {
            daemon: DAEMON,
            purges: self.purge,
            is_forced: self.force,
            in_use: held
                .filter_map(|held| work(&held))
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
        };
        let steps = remove(&removal, &found).map_err(|e| e.to_string())?;
        let done = carry_out(&machine, DAEMON, &steps, self.dry_run, None);
        let has_changed = done.map_err(|e| e.to_string())?;
        let unit = DAEMON.unit();
        Ok(match has_changed {
            _ if self.dry_run && !steps.is_empty() => String::new(),
            false => format!("Nothing to do: there is no {unit}."),
            true if self.purge => format!(
                "{unit} is removed, with its state. The user stays (userdel {}). An operator ends the node's record: muster delete node NAME",
                DAEMON.user()
            ),
            true => format!(
                "{unit} is removed; {} and {} stay. An operator ends the node's record: muster delete node NAME",
                DAEMON.state_dir().display(),
                DAEMON.settings().display()
            ),
        })
    }
}

/// The work that a process of the unit is of, by the name of its run. `None`: it is no work, as a launcher
/// that waits for a job, and ends soon after the agent.
fn work(held: &Held) -> Option<String> {
    let read = |name: &str| fs::read(format!("/proc/{}/{name}", held.pid)).unwrap_or_default();
    work_of(held, &read("environ"), &read("cmdline"))
}

fn work_of(held: &Held, environment: &[u8], line: &[u8]) -> Option<String> {
    let words = |text: &[u8]| -> Vec<String> {
        let words = text.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    };
    let (environment, line) = (words(environment), words(line));
    let in_environment = environment.iter().find_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        (name == RUN_DIR).then(|| value.to_owned())
    });
    // A runner has its run in its command line.
    let in_line = line
        .iter()
        .enumerate()
        .find_map(|(at, word)| match word.as_str() {
            "--dir" => line.get(at + 1).cloned(),
            word => word.strip_prefix("--dir=").map(str::to_owned),
        });
    let run = in_environment.or(in_line);
    let run = run
        .as_deref()
        .and_then(|run| run.rsplit('/').find(|name| !name.is_empty()));
    match run {
        Some(run) if run.contains("-launcher-") => None,
        Some(run) => Some(run.to_owned()),
        // A worker group has a cgroup of its own. One of its processes may have emptied its environment.
        None => held.is_below.then(|| format!("process {}", held.pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_told_from_what_waits_for_work() {
        let work = |is_below, environment: &str, line: &str| {
            work_of(
                &Held { pid: 7, is_below },
                environment.as_bytes(),
                line.as_bytes(),
            )
        };
        let run = Some("4f1a-g3".to_owned());
        let of_run = "A=b\0MUSTER_RUN_DIR=/var/lib/muster-agent/runs/4f1a-g3\0";
        assert_eq!(work(true, of_run, "python\0train.py\0"), run);
        let hold = "muster-runner\0hold\0--dir\0/var/lib/muster-agent/runs/4f1a-g3\0";
        assert_eq!(work(false, "", hold), run);
        assert_eq!(work(false, "", &hold.replace("--dir\0", "--dir=")), run);
        assert_eq!(work(true, "", "python\0"), Some("process 7".into()));
        assert_eq!(work(false, "", "muster-runner\0ask\0"), None);
        let launcher = of_run.replace("-g3", "-launcher-1");
        assert_eq!(work(false, &launcher, "python\0"), None);
        assert_eq!(work(false, "", &hold.replace("-g3", "-launcher-1")), None);
    }
}
