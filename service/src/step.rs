//! One thing to do, and how it is told.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{Daemon, Setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a file of root that everybody may read. What it replaces is kept beside it, with `.old`.
    Write {
        path: PathBuf,
        text: String,
        was: Option<String>,
    },
    /// Make the user that this file describes.
    MakeUser {
        name: String,
        file: PathBuf,
    },
    /// Make a folder, or give it this owner and mode 0700.
    Folder {
        path: PathBuf,
        owner: String,
    },
    /// Run the daemon's own program with these arguments, as this user, with the state directory added.
    Enrol {
        user: String,
        args: Vec<String>,
    },
    /// Ask the daemon's own program whether it would start with these settings.
    Check {
        user: String,
        settings: Vec<Setting>,
    },
    Reload,
    Enable(Daemon),
    Start(Daemon),
    Restart(Daemon, Vec<Because>),
    Stop(Daemon),
    /// Kill what still lives of a unit that has stopped.
    Kill(Daemon),
    Disable(Daemon),
    /// Rename a file, so that nothing reads it any more: it gets `.old` at its end.
    SetAside(PathBuf),
    RemoveFile(PathBuf),
    /// Remove a folder and all that is in it.
    RemoveFolder(PathBuf),
}

/// Why a daemon that runs is started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Because {
    /// Its unit has changed.
    Unit,
    /// Its program has been replaced.
    Program,
    /// It runs with another value of this variable.
    Setting {
        name: String,
        runs_with: Option<String>,
    },
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Unit => f.write_str("its unit has changed"),
            Because::Program => f.write_str("its program has been replaced"),
            Because::Setting {
                name,
                runs_with: Some(value),
            } => write!(f, "it runs with {name}={value}"),
            Because::Setting { name, .. } => write!(f, "it runs without {name}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write { path, was, .. } => match was {
                None => write!(f, "write {}", path.display()),
                Some(_) => write!(
                    f,
                    "change {} (as it was: {})",
                    path.display(),
                    old(path).display()
                ),
            },
            Step::MakeUser { name, file } => {
                write!(f, "make user {name}: systemd-sysusers {}", file.display())
            }
            Step::Folder { path, owner } => {
                write!(f, "folder {}: owner {owner}, mode 0700", path.display())
            }
            Step::Enrol { user, args } => write!(f, "as {user}: {}", args.join(" ")),
            Step::Check { user, .. } => write!(f, "as {user}: check the settings"),
            Step::Reload => f.write_str("systemctl daemon-reload"),
            Step::Enable(daemon) => write!(f, "systemctl enable {}", daemon.unit()),
            Step::Start(daemon) => write!(f, "systemctl start {}", daemon.unit()),
            Step::Restart(daemon, because) => {
                let because: Vec<String> = because.iter().map(Because::to_string).collect();
                write!(
                    f,
                    "systemctl restart {} ({})",
                    daemon.unit(),
                    because.join("; ")
                )?;
                match daemon {
                    Daemon::Agent => f.write_str("; workers go on"),
                    Daemon::Coordinator => Ok(()),
                }
            }
            Step::Stop(daemon) => write!(f, "systemctl stop {}", daemon.unit()),
            Step::Kill(daemon) => write!(f, "kill what is left of {}", daemon.unit()),
            Step::Disable(daemon) => write!(f, "systemctl disable {}", daemon.unit()),
            Step::SetAside(path) => {
                write!(f, "rename {} to {}", path.display(), old(path).display())
            }
            Step::RemoveFile(path) => write!(f, "remove {}", path.display()),
            Step::RemoveFolder(path) => write!(f, "remove {} and all in it", path.display()),
        }
    }
}

/// Where a file is kept as it was. systemd reads no file of such a name.
pub(crate) fn old(path: &Path) -> PathBuf {
    let mut old = path.as_os_str().to_owned();
    old.push(".old");
    old.into()
}

/// A step with the text that it writes: a new file whole, of an old one the lines that go and come.
pub fn told(step: &Step) -> String {
    let Step::Write { text, was, .. } = step else {
        return format!("{step}\n");
    };
    let lines: Vec<(char, &str)> = match was {
        None => text.lines().map(|line| ('+', line)).collect(),
        Some(was) => {
            let gone = was
                .lines()
                .filter(|line| !text.lines().any(|new| new == *line));
            let new = text
                .lines()
                .filter(|line| !was.lines().any(|old| old == *line));
            gone.map(|line| ('-', line))
                .chain(new.map(|line| ('+', line)))
                .collect()
        }
    };
    let mut told = format!("{step}\n");
    for (sign, line) in lines {
        told += format!("    {sign} {line}").trim_end();
        told.push('\n');
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_changed_file_the_changed_lines_are_told() {
        let write = |was: Option<&str>| Step::Write {
            path: "/etc/muster/agent.env".into(),
            text: "# Ours\nA=2\n\nB=1\n".into(),
            was: was.map(str::to_owned),
        };
        assert_eq!(
            told(&write(None)),
            "write /etc/muster/agent.env\n    + # Ours\n    + A=2\n    +\n    + B=1\n"
        );
        assert_eq!(
            told(&write(Some("# Ours\nA=1\n\nB=1\n"))),
            "change /etc/muster/agent.env (as it was: /etc/muster/agent.env.old)\n    - A=1\n    + A=2\n"
        );
        let because = vec![
            Because::Program,
            Because::Setting {
                name: "A".into(),
                runs_with: Some("1".into()),
            },
        ];
        assert_eq!(
            told(&Step::Restart(Daemon::Agent, because)),
            "systemctl restart muster-agent.service (its program has been replaced; it runs with A=1); workers go on\n"
        );
    }
}
