//! The steps that make a service as wanted. A step whose result is there already is left out, so a command that
//! is given again does nothing.

use std::path::{Path, PathBuf};

use crate::{
    Because, Daemon, Found, Setting, Step, User,
    settings::{read, with},
    unit::{drop_in, program, unit, user},
};

/// Folders that the coordinator's unit hides (`ProtectHome=yes`).
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];
/// The agent's flag that starts each job as its owner.
const RUN_AS_OWNER: &str = "MUSTER_RUN_AS_OWNER";

#[derive(Clone, Debug)]
pub struct Wanted {
    pub daemon: Daemon,
    /// The daemon's program, as the unit shall name it.
    pub program: PathBuf,
    /// A user that is there already, in place of the service's own.
    pub run_as: Option<String>,
    /// Lines that the file of settings shall have. Its other lines stay.
    pub settings: Vec<Setting>,
    /// What the program does, as the service's user, before its first start. Empty: nothing.
    pub enrolment: Vec<String>,
}

/// Why a service cannot be made so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "no user {0} is on this machine; make it first, as with useradd, or leave --run-as out"
    )]
    NoUser(String),
    #[error(
        "user {0} is root, and every program that a job names would be too; name another user, or start each job as its owner: -- --run-as-owner"
    )]
    Root(String),
    #[error(
        "{} belongs to user {uid}, not to {user}, and is not empty; give it to {user} (chown -R {user}: {}), or name its user with --run-as",
        dir.display(), dir.display()
    )]
    StateOwner {
        dir: PathBuf,
        uid: u32,
        user: String,
    },
    #[error(
        "a package has installed {}, which runs {}; give this command with that program", unit.display(), program.display()
    )]
    OtherProgram { unit: PathBuf, program: PathBuf },
    #[error(
        "a unit cannot name the program {}: only letters, digits and ./_-+@:~,= may be in its path; copy the programs to /usr/local/bin", .0.display()
    )]
    Path(PathBuf),
    #[error(
        "the coordinator's unit sees nothing below /home, /root and /run/user, where {} is; copy the programs to /usr/local/bin", .0.display()
    )]
    Hidden(PathBuf),
    #[error("{}", in_use(*.daemon, .by))]
    InUse { daemon: Daemon, by: Vec<String> },
}

fn in_use(daemon: Daemon, by: &[String]) -> String {
    let by = by.join(", ");
    match daemon {
        Daemon::Agent => format!(
            "workers run here: {by}. Make jobs leave this node first (touch {}/termination-notice, and see `muster nodes`), or cancel them; \
             --force kills them",
            daemon.state_dir().display()
        ),
        Daemon::Coordinator => format!(
            "it is in use: {by}. Take its nodes away first (`muster-agent leave --service` on each); --force stops it anyway, and nobody \
             decides about their jobs any more"
        ),
    }
}

/// The steps, in their order. None: everything is so already.
///
/// # Errors
/// Why it cannot be so. Nothing was changed.
pub fn install(wanted: &Wanted, found: &Found) -> Result<Vec<Step>, Refusal> {
    let daemon = wanted.daemon;
    let mut steps = Vec::new();
    let name = service_user(wanted, found)?;
    make_user(daemon, &name, found, &mut steps);
    state_dir(daemon, &name, found, &mut steps)?;

    let enrols = !found.is_enrolled && !wanted.enrolment.is_empty();
    if enrols {
        steps.push(Step::Enrol {
            user: name.clone(),
            args: wanted.enrolment.clone(),
        });
    }
    let settings = settings_file(wanted, found);
    let unit = unit_files(wanted, &name, found)?;
    let is_new_unit = !unit.is_empty();
    let starts = found.unit.as_ref().map(|state| {
        let because = because(wanted, state.needs_reload || is_new_unit, found);
        match state.is_active {
            false => Some(Step::Start(daemon)),
            true if because.is_empty() => None,
            true => Some(Step::Restart(daemon, because)),
        }
    });
    // A daemon that would not start with its settings must not be stopped for them.
    if starts.as_ref().is_some_and(Option::is_some) || settings.is_some() && found.unit.is_some() {
        steps.push(Step::Check {
            user: name,
            settings: all_settings(wanted, found),
        });
    }
    steps.extend(settings);
    steps.extend(unit);
    let needs_reload = found.unit.as_ref().is_some_and(|unit| unit.needs_reload);
    if found.unit.is_some() && (is_new_unit || needs_reload) {
        steps.push(Step::Reload);
    }
    // In another root, a daemon that is not enrolled would start for nothing.
    let shall_start = found.unit.is_some() || found.is_enrolled || enrols;
    if !found.is_enabled && shall_start {
        steps.push(Step::Enable(daemon));
    }
    steps.extend(starts.flatten());
    Ok(steps)
}

fn service_user(wanted: &Wanted, found: &Found) -> Result<String, Refusal> {
    let daemon = wanted.daemon;
    let dropped = found.files.get(&daemon.drop_in()).map(String::as_str);
    let name = user_name(daemon, wanted.run_as.as_deref(), dropped);
    match &found.user {
        None if name != daemon.user() => Err(Refusal::NoUser(name)),
        Some(User { uid: 0, .. }) if !runs_as_owner(wanted, found) => Err(Refusal::Root(name)),
        _ => Ok(name),
    }
}

/// Whether the agent starts each job as its owner, for which it must be root.
fn runs_as_owner(wanted: &Wanted, found: &Found) -> bool {
    let is_on = |it: &Setting| it.name == RUN_AS_OWNER && it.value == "true";
    wanted.daemon == Daemon::Agent && all_settings(wanted, found).iter().any(is_on)
}

/// The name of the service's user: as asked, else as the drop-in says, else the service's own.
pub(crate) fn user_name(daemon: Daemon, run_as: Option<&str>, drop_in: Option<&str>) -> String {
    let dropped = drop_in.and_then(user);
    run_as.or(dropped).unwrap_or(daemon.user()).to_owned()
}

fn make_user(daemon: Daemon, name: &str, found: &Found, steps: &mut Vec<Step>) {
    if found.user.is_some() {
        return;
    }
    let (path, text) = (daemon.sysusers_path(), daemon.sysusers());
    let was = found.files.get(&path);
    if was.is_none_or(|was| was != text) {
        steps.push(Step::Write {
            path: path.clone(),
            text: text.to_owned(),
            was: was.cloned(),
        });
    }
    steps.push(Step::MakeUser {
        name: name.to_owned(),
        file: path,
    });
}

fn state_dir(
    daemon: Daemon,
    name: &str,
    found: &Found,
    steps: &mut Vec<Step>,
) -> Result<(), Refusal> {
    let dir = daemon.state_dir();
    let uid = found.user.as_ref().map(|user| user.uid);
    let is_right = match found.state_dir {
        None => false,
        // Where jobs run as their owners, these pass through it to their own runs.
        Some(there) if there.uid == 0 && uid == Some(0) => {
            [0o700, 0o711].contains(&(there.mode & 0o777))
        }
        Some(there) if Some(there.uid) == uid => there.mode & 0o777 == 0o700,
        // As a disk that was just mounted there.
        Some(there) if there.uid == 0 && there.is_empty => false,
        Some(there) => {
            return Err(Refusal::StateOwner {
                dir: dir.to_owned(),
                uid: there.uid,
                user: name.to_owned(),
            });
        }
    };
    if !is_right {
        steps.push(Step::Folder {
            path: dir.to_owned(),
            owner: name.to_owned(),
        });
    }
    Ok(())
}

fn settings_file(wanted: &Wanted, found: &Found) -> Option<Step> {
    let path = wanted.daemon.settings();
    let was = found.files.get(path);
    let old = was.map(String::as_str).unwrap_or_default();
    let text = with(old, &wanted.settings);
    (text != old).then(|| Step::Write {
        path: path.to_owned(),
        text,
        was: was.cloned(),
    })
}

/// All that the daemon will find in its environment by its unit, as far as it is ours.
fn all_settings(wanted: &Wanted, found: &Found) -> Vec<Setting> {
    let old = found.files.get(wanted.daemon.settings());
    let text = with(
        old.map(String::as_str).unwrap_or_default(),
        &wanted.settings,
    );
    let setting = |(name, value)| Setting { name, value };
    read(&text).into_iter().map(setting).collect()
}

/// The unit and what changes it: steps that write or remove them.
fn unit_files(wanted: &Wanted, name: &str, found: &Found) -> Result<Vec<Step>, Refusal> {
    let daemon = wanted.daemon;
    let is_hidden = HIDDEN
        .iter()
        .any(|folder| wanted.program.starts_with(folder));
    if daemon == Daemon::Coordinator && is_hidden {
        return Err(Refusal::Hidden(wanted.program.clone()));
    }
    let mut files: Vec<(PathBuf, Option<String>)> = Vec::new();
    match packaged(daemon, found) {
        Some((path, text)) => {
            let runs = program(text).unwrap_or(Path::new(""));
            if runs != wanted.program {
                return Err(Refusal::OtherProgram {
                    unit: path,
                    program: runs.to_owned(),
                });
            }
            // One in /etc would hide the package's, and its upgrades.
            files.push((daemon.unit_path(), None));
        }
        None => {
            let text = unit(daemon, &wanted.program)
                .ok_or_else(|| Refusal::Path(wanted.program.clone()))?;
            files.push((daemon.unit_path(), Some(text)));
        }
    }
    let is_own = name == daemon.user();
    files.push((daemon.drop_in(), (!is_own).then(|| drop_in(name))));
    let step = |(path, text): (PathBuf, Option<String>)| {
        let was = found.files.get(&path).cloned();
        match text {
            text if text == was => None,
            Some(text) => Some(Step::Write { path, text, was }),
            None => Some(Step::SetAside(path)),
        }
    };
    Ok(files.into_iter().filter_map(step).collect())
}

fn packaged(daemon: Daemon, found: &Found) -> Option<(PathBuf, &str)> {
    let mut units = daemon.packaged_units().into_iter();
    units.find_map(|path| {
        let text = found.files.get(&path)?;
        Some((path, text.as_str()))
    })
}

/// Why the daemon that runs must be started again.
fn because(wanted: &Wanted, is_new_unit: bool, found: &Found) -> Vec<Because> {
    let mut because = Vec::new();
    if is_new_unit {
        because.push(Because::Unit);
    }
    let running = found.unit.as_ref().and_then(|unit| unit.running.as_ref());
    let Some(running) = running else {
        return because;
    };
    if !running.is_current {
        because.push(Because::Program);
    }
    let other = |it: &&Setting| running.environment.get(&it.name) != Some(&it.value);
    because.extend(
        wanted
            .settings
            .iter()
            .filter(other)
            .map(|it| Because::Setting {
                name: it.name.clone(),
                runs_with: running.environment.get(&it.name).cloned(),
            }),
    );
    because
}

#[cfg(test)]
mod tests;
