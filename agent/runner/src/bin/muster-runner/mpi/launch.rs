//! `muster-launch`: becomes the job's command in the launcher's member, once every host answers.
//!
//! The members of a generation are started together, and `mpirun` gives up if a host is not there. So
//! this waits. It needs no limit: a member that never starts breaks its generation.
//!
//! Where Kubeflow's operators put the files for MPI, the command means those of the run.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use muster_runner::wire::{HostSpec, LauncherSpec, MpiSpec};

use super::channel::Kind;
use super::rsh::Connection;
use crate::time;

/// A link of this name, in the run's directory, makes the runner's binary this program.
pub(crate) const NAME: &str = "muster-launch";

/// The gap between two attempts to reach a host.
const AGAIN: Duration = Duration::from_millis(50);

/// A host that does not answer for this long is named, and again after this long.
const TELL: Duration = Duration::from_secs(10);

pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let wrong = match super::part() {
        Ok((dir, MpiSpec::Launcher(launcher))) => {
            begin(&launcher, &with_own_files(args, &dir), &dir)
        }
        Ok(_) => "this member is no launcher".into(),
        Err(wrong) => wrong,
    };
    say!("{NAME}: {wrong}");
    ExitCode::from(127)
}

/// The files of Kubeflow's operators, and those that a run has in their place.
const FILES: [(&str, &str); 4] = [
    ("/etc/mpi/hostfile", "hostfile"),
    ("/etc/mpi/discover_hosts.sh", "discover_hosts.sh"),
    // AITrainingJob's.
    ("/etc/edl/discover_hosts.sh", "discover_hosts.sh"),
    ("/etc/mpi/kubexec.sh", "bin/muster-rsh"),
];

/// The command with the run's own files. Words that are no text are left alone.
fn with_own_files(command: Vec<OsString>, dir: &Path) -> Vec<OsString> {
    let own = |word: OsString| match word.into_string() {
        Ok(text) => {
            let named = FILES.iter().fold(text, |text, (theirs, own)| {
                text.replace(theirs, &dir.join(own).to_string_lossy())
            });
            named.into()
        }
        Err(word) => word,
    };
    command.into_iter().map(own).collect()
}

/// Becomes the command. Returns why it could not.
fn begin(launcher: &LauncherSpec, command: &[OsString], dir: &Path) -> String {
    let Some((program, args)) = command.split_first() else {
        return "there is nothing to run".into();
    };
    let (name, address) = (&launcher.own_name, &launcher.own_address);
    super::take_name(NAME, name.as_deref(), address.as_deref(), dir);
    launcher.hosts.iter().for_each(wait_for);
    super::unasked::begins(dir);
    let error = Command::new(program).args(args).exec();
    format!("{}: {error}", program.display())
}

fn wait_for(host: &HostSpec) {
    let mut told = time::boot();
    while let Err(why) = ask(host) {
        if time::boot().saturating_sub(told) >= TELL {
            told = time::boot();
            say!(
                "{NAME}: {} at {} does not answer yet: {why}",
                host.name,
                host.at
            );
        }
        // A host that listens is told of by nobody, so it is asked again.
        let _ = rustix::thread::nanosleep(&rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: AGAIN.subsec_nanos().into(),
        });
    }
}

fn ask(host: &HostSpec) -> Result<(), String> {
    let mut connection = Connection::open(host)?;
    connection.say(Kind::Ping, b"")?;
    match connection.hear()? {
        (Kind::Here, _) => Ok(()),
        (kind, _) => Err(format!("it answers with {kind:?}")),
    }
}
