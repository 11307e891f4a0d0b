//! What is to be done so that a service is gone. Its state stays, unless somebody asks for that too.

use std::path::PathBuf;

use crate::{Daemon, Found, Step, plan::Refusal};

#[derive(Clone, Debug)]
pub struct Removal {
    pub daemon: Daemon,
    /// Remove the state and the settings too.
    pub purges: bool,
    /// Stop it although it is in use.
    pub is_forced: bool,
    /// What uses it now, as a person would call it.
    pub in_use: Vec<String>,
}

/// The steps, in their order. None: it is gone already.
///
/// # Errors
/// It is in use.
pub fn remove(removal: &Removal, found: &Found) -> Result<Vec<Step>, Refusal> {
    let daemon = removal.daemon;
    if !removal.in_use.is_empty() && !removal.is_forced {
        return Err(Refusal::InUse {
            daemon,
            by: removal.in_use.clone(),
        });
    }
    let mut steps = Vec::new();
    if let Some(unit) = &found.unit {
        if unit.is_active || unit.main_pid.is_some() {
            steps.push(Step::Stop(daemon));
        }
        if daemon == Daemon::Agent && !removal.in_use.is_empty() {
            steps.push(Step::Kill(daemon));
        }
    }
    if found.is_enabled {
        steps.push(Step::Disable(daemon));
    }
    // A package's own unit goes with its package.
    let mut files = vec![daemon.drop_in(), daemon.unit_path()];
    if removal.purges {
        files.extend([daemon.settings().to_owned(), daemon.sysusers_path()]);
    }
    let is_there = |path: &PathBuf| found.files.contains_key(path);
    let gone: Vec<PathBuf> = files.into_iter().filter(is_there).collect();
    let changes_unit = gone.iter().any(|path| path.starts_with("/etc/systemd"));
    steps.extend(gone.into_iter().map(Step::RemoveFile));
    if changes_unit && found.unit.is_some() {
        steps.push(Step::Reload);
    }
    if removal.purges && found.state_dir.is_some() {
        steps.push(Step::RemoveFolder(daemon.state_dir().to_owned()));
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Owned, UnitState, unit::drop_in};

    fn installed() -> Found {
        let daemon = Daemon::Agent;
        let file = |path: PathBuf, text: &str| (path, text.to_owned());
        Found {
            files: [
                file(daemon.unit_path(), "unit"),
                file(daemon.drop_in(), &drop_in("ann")),
                file(daemon.settings().to_owned(), "MUSTER_SLOTS=2\n"),
            ]
            .into(),
            state_dir: Some(Owned {
                uid: 7,
                mode: 0o700,
                is_empty: false,
            }),
            is_enrolled: true,
            is_enabled: true,
            unit: Some(UnitState {
                is_active: true,
                main_pid: Some(5),
                ..UnitState::default()
            }),
            ..Found::default()
        }
    }

    fn removal(in_use: &[&str]) -> Removal {
        Removal {
            daemon: Daemon::Agent,
            purges: false,
            is_forced: false,
            in_use: in_use.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    #[test]
    fn the_state_stays_unless_it_is_asked_for() {
        let agent = Daemon::Agent;
        let unit = [
            Step::Stop(agent),
            Step::Disable(agent),
            Step::RemoveFile(agent.drop_in()),
            Step::RemoveFile(agent.unit_path()),
        ];
        let kept = [&unit[..], &[Step::Reload]].concat();
        assert_eq!(remove(&removal(&[]), &installed()), Ok(kept));
        let purge = Removal {
            purges: true,
            ..removal(&[])
        };
        let rest = [
            Step::RemoveFile(agent.settings().to_owned()),
            Step::Reload,
            Step::RemoveFolder(agent.state_dir().to_owned()),
        ];
        let purged = [&unit[..], &rest].concat();
        assert_eq!(remove(&purge, &installed()), Ok(purged));
        assert_eq!(remove(&purge, &Found::default()), Ok(vec![]));
    }

    #[test]
    fn workers_are_ended_only_by_force() {
        let used = removal(&["digits-g3"]);
        let why = remove(&used, &installed()).unwrap_err().to_string();
        assert!(why.contains("digits-g3"), "{why}");
        assert!(why.contains("--force"), "{why}");
        let forced = Removal {
            is_forced: true,
            ..used
        };
        let steps = remove(&forced, &installed()).unwrap();
        assert_eq!(
            steps[..2],
            [Step::Stop(Daemon::Agent), Step::Kill(Daemon::Agent)]
        );
    }

    #[test]
    fn a_packages_unit_goes_with_its_package() {
        let mut found = installed();
        let [packaged, _] = Daemon::Agent.packaged_units();
        found.files = [(packaged.clone(), "unit".to_owned())].into();
        let steps = remove(&removal(&[]), &found).unwrap();
        assert!(!steps.contains(&Step::RemoveFile(packaged)));
        assert!(!steps.contains(&Step::Reload));
    }
}
