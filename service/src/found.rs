//! What is there, as values, before anything is decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// What a plan goes by.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The texts of those of the service's files that are there.
    pub files: BTreeMap<PathBuf, String>,
    /// The service's user, if there is one.
    pub user: Option<User>,
    pub state_dir: Option<Owned>,
    /// The daemon has what it needs before its first start.
    pub is_enrolled: bool,
    pub is_enabled: bool,
    /// What systemd says. `None`: the service is for another root, where nothing runs.
    pub unit: Option<UnitState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// A folder, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    pub uid: u32,
    /// The permissions alone.
    pub mode: u32,
    pub is_empty: bool,
}

/// What `systemctl show` says of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    pub is_active: bool,
    /// Enabled in `/etc`, so that it starts with the machine.
    pub is_enabled: bool,
    /// The file has changed since systemd read it.
    pub needs_reload: bool,
    /// Which processes end when the unit stops. Empty: systemd does not know the unit.
    pub kill_mode: String,
    /// The unit's cgroup, below the root of its hierarchy.
    pub cgroup: String,
    pub main_pid: Option<u32>,
    /// The process that runs. `None`: nothing runs, or it has just ended.
    pub running: Option<Running>,
}

/// The daemon's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    pub environment: BTreeMap<String, String>,
    /// It is the program that is on the disk now.
    pub is_current: bool,
}

/// A process that lives in the unit's cgroup or below it, and is not the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub pid: u32,
    /// It is in a cgroup below the unit's own.
    pub is_below: bool,
}

impl UnitState {
    /// Reads the lines that `systemctl show --property=...` prints.
    pub(crate) fn parse(text: &str) -> Self {
        let values: BTreeMap<&str, &str> =
            text.lines().filter_map(|it| it.split_once('=')).collect();
        let value = |name: &str| values.get(name).copied().unwrap_or_default();
        let is_known = value("LoadState") == "loaded";
        Self {
            is_active: ["active", "reloading"].contains(&value("ActiveState")),
            is_enabled: value("UnitFileState") == "enabled",
            needs_reload: value("NeedDaemonReload") == "yes",
            kill_mode: match is_known {
                true => value("KillMode").to_owned(),
                false => String::new(),
            },
            cgroup: value("ControlGroup").to_owned(),
            main_pid: value("MainPID").parse().ok().filter(|pid| *pid > 0),
            running: None,
        }
    }
}

/// What [`UnitState::parse`] reads.
pub(crate) const PROPERTIES: &str =
    "LoadState,ActiveState,UnitFileState,NeedDaemonReload,KillMode,ControlGroup,MainPID";

/// Those of a process's cgroups (`/proc/PID/cgroup`) that are this one or below it. `Some(true)`: below.
pub(crate) fn is_in(cgroups: &str, unit: &str) -> Option<bool> {
    if unit.is_empty() || unit == "/" {
        return None;
    }
    let places: BTreeSet<bool> = cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2)?.strip_prefix(unit))
        .filter(|rest| rest.is_empty() || rest.starts_with('/'))
        .map(|rest| !rest.is_empty())
        .collect();
    places.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemctls_words_are_read() {
        let text = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=no\nKillMode=process\n\
                    ControlGroup=/system.slice/muster-agent.service\nMainPID=41\n";
        let state = UnitState::parse(text);
        assert_eq!(
            state,
            UnitState {
                is_active: true,
                is_enabled: true,
                needs_reload: false,
                kill_mode: "process".into(),
                cgroup: "/system.slice/muster-agent.service".into(),
                main_pid: Some(41),
                running: None,
            }
        );
        // What systemd says of a unit that it does not know.
        let unknown = "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nKillMode=control-group\nMainPID=0\n";
        assert_eq!(UnitState::parse(unknown), UnitState::default());
    }

    #[test]
    fn a_process_is_found_by_its_cgroup_in_either_version() {
        let unit = "/system.slice/muster-agent.service";
        assert_eq!(is_in(&format!("0::{unit}\n"), unit), Some(false));
        assert_eq!(is_in(&format!("0::{unit}/run-1/r0\n"), unit), Some(true));
        let old = format!("4:cpu,cpuacct:/\n1:name=systemd:{unit}\n");
        assert_eq!(is_in(&old, unit), Some(false));
        assert_eq!(
            is_in("0::/system.slice/muster-agent.service2\n", unit),
            None
        );
        assert_eq!(is_in("0::/system.slice/sshd.service\n", unit), None);
        assert_eq!(is_in("0::/anything\n", ""), None);
    }
}
