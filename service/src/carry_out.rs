//! The command line of a service, and its steps carried out in order, each told before it is done.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

use crate::{Daemon, Failure, Machine, Step, told};

/// The flags that both daemons have for it.
#[derive(Clone, Debug, Default, Args)]
pub struct ServiceFlags {
    /// Make it a service of systemd: its user, its folders, its unit; and start it. May be given again, also
    /// with other flags: what is as asked is left alone
    #[arg(long)]
    pub service: bool,
    /// Only print what would be done
    #[arg(long, requires = "service")]
    pub dry_run: bool,
    /// Prepare the machine whose root folder this is, as of an image; nothing is started
    #[arg(long, value_name = "DIR", requires = "service")]
    pub root: Option<PathBuf>,
    /// Flags of the daemon itself. They become lines of its file in /etc/muster
    #[arg(last = true, value_name = "FLAG", requires = "service")]
    pub flags: Vec<OsString>,
}

impl ServiceFlags {
    /// The machine that is meant.
    pub fn machine(&self, daemon: Daemon) -> Result<Machine, Failure> {
        match &self.root {
            Some(root) => Machine::at(root),
            None => Machine::this(daemon),
        }
    }
}

/// Carries the steps out, or only tells them. `token` is for an enrolment. Says whether anything was done.
pub fn carry_out(
    machine: &Machine,
    daemon: Daemon,
    steps: &[Step],
    dry_run: bool,
    token: Option<&str>,
) -> Result<bool, Failure> {
    if dry_run && !steps.is_empty() {
        println!("Nothing is done. It would:");
    }
    for step in steps {
        print!("{}", told(step));
        if !dry_run {
            machine.take(daemon, step, token)?;
        }
    }
    Ok(!dry_run && !steps.is_empty())
}
