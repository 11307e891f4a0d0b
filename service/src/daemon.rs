//! The two daemons, and what belongs to their services. Packages install the same templates.

use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    Agent,
    Coordinator,
}

/// Where packages put units; the second is the first on systems that have not merged `/usr`.
const PACKAGED_UNITS: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];

impl Daemon {
    /// The name of the program, and of the unit without `.service`.
    pub fn name(self) -> &'static str {
        match self {
            Daemon::Agent => "muster-agent",
            Daemon::Coordinator => "muster-coordinator",
        }
    }

    pub fn unit(self) -> String {
        format!("{}.service", self.name())
    }

    /// The user that is made for it.
    pub fn user(self) -> &'static str {
        match self {
            Daemon::Agent => "muster",
            Daemon::Coordinator => "muster-coordinator",
        }
    }

    /// The state directory. It is always this one, because a running agent that changed it would lose its
    /// workers; a disk can be mounted there.
    pub fn state_dir(self) -> &'static Path {
        Path::new(match self {
            Daemon::Agent => "/var/lib/muster-agent",
            Daemon::Coordinator => "/var/lib/muster-coordinator",
        })
    }

    /// The file of the operator's settings.
    pub fn settings(self) -> &'static Path {
        Path::new(match self {
            Daemon::Agent => "/etc/muster/agent.env",
            Daemon::Coordinator => "/etc/muster/coordinator.env",
        })
    }

    /// The unit as it is in packages, apart from the programs' path.
    pub(crate) fn template(self) -> &'static str {
        match self {
            Daemon::Agent => include_str!("../../manifests/systemd/muster-agent.service"),
            Daemon::Coordinator => {
                include_str!("../../manifests/systemd/muster-coordinator.service")
            }
        }
    }

    /// What systemd-sysusers makes the user from.
    pub(crate) fn sysusers(self) -> &'static str {
        match self {
            Daemon::Agent => include_str!("../../manifests/sysusers/muster-agent.conf"),
            Daemon::Coordinator => include_str!("../../manifests/sysusers/muster-coordinator.conf"),
        }
    }

    pub(crate) fn unit_path(self) -> PathBuf {
        Path::new("/etc/systemd/system").join(self.unit())
    }

    /// Where the unit of a package would be.
    pub(crate) fn packaged_units(self) -> [PathBuf; 2] {
        PACKAGED_UNITS.map(|folder| Path::new(folder).join(self.unit()))
    }

    /// What the unit gets another user by.
    pub(crate) fn drop_in(self) -> PathBuf {
        Path::new("/etc/systemd/system").join(format!("{}.d/user.conf", self.unit()))
    }

    pub(crate) fn sysusers_path(self) -> PathBuf {
        Path::new("/etc/sysusers.d").join(format!("{}.conf", self.name()))
    }

    /// The link that `systemctl enable` makes.
    pub(crate) fn enabled(self) -> PathBuf {
        Path::new("/etc/systemd/system/multi-user.target.wants").join(self.unit())
    }

    /// Every file whose text decides what is to be done.
    pub(crate) fn files(self) -> Vec<PathBuf> {
        let mut files = vec![
            self.unit_path(),
            self.drop_in(),
            self.sysusers_path(),
            self.settings().to_owned(),
        ];
        files.extend(self.packaged_units());
        files
    }
}
