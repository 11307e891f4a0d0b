//! What runs the images of jobs on this node, from the flags and from what is installed.

use std::{
    env, fmt, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use muster_core::{
    container::{RUNTIME_BYTES_MAX, Runtime},
    node::container::{MOUNTS_MAX, Mount},
};

use super::{WrongFlag, wrong};

/// How long a runtime may take to say its version. It takes 0.1 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at whether it has.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default, Args)]
pub struct Engines {
    /// What runs the images that jobs name: podman, apptainer, enroot, or none. auto: the first of these that PATH has, and
    /// none where jobs run as their owners, in pods and with --senses-only
    #[arg(
        long,
        env = "MUSTER_CONTAINERS",
        value_name = "auto|none|podman|apptainer|enroot",
        default_value = "auto"
    )]
    pub containers: String,
    /// A directory or file of this node to mount into every container, besides the working directories of its ranks. With
    /// :ro it is read-only. May be given several times
    #[arg(
        long,
        env = "MUSTER_CONTAINER_MOUNTS",
        value_name = "SRC[:DST[:ro]]",
        value_delimiter = ',',
        value_parser = Mount::read
    )]
    pub container_mount: Vec<Mount>,
}

/// What runs the images of jobs here.
#[derive(Clone, Debug)]
pub struct Containers {
    pub runtime: Runtime,
    pub program: PathBuf,
    /// As the program says it.
    pub version: String,
    pub mounts: Vec<Mount>,
}

/// As in the node's report.
impl fmt::Display for Containers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{} {}", self.runtime.name(), self.version);
        f.write_str(&text[..text.floor_char_boundary(RUNTIME_BYTES_MAX)])
    }
}

/// `hosts`: jobs run as the agent's user on this machine, and not in a pod.
pub(super) fn containers(flags: Engines, hosts: bool) -> Result<Option<Containers>, WrongFlag> {
    let mounts = flags.container_mount;
    if mounts.len() > MOUNTS_MAX {
        let why = format!(
            "{} are given, at most {MOUNTS_MAX} are allowed",
            mounts.len()
        );
        return Err(wrong("container-mount", why));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let made = |runtime: Runtime| -> Result<Containers, String> {
        let name = runtime.name();
        let found = env::split_paths(&path).map(|dir| dir.join(name));
        let program = { found }.find(|file| is_program(file));
        let program = program.ok_or_else(|| format!("{name} is not in PATH"))?;
        let version = version(runtime, &program)
            .map_err(|e| format!("{} does not say its version: {e}", program.display()))?;
        Ok(Containers {
            runtime,
            program,
            version,
            mounts: mounts.clone(),
        })
    };
    match flags.containers.as_str() {
        "none" => Ok(None),
        "auto" | "" if !hosts => Ok(None),
        "auto" | "" => Ok(Runtime::ALL.iter().find_map(|(_, one)| made(*one).ok())),
        word => {
            let known = Runtime::ALL.iter().find(|(name, _)| *name == word);
            let Some((_, runtime)) = known else {
                let why =
                    format!("is {word:?}, must be one of auto, none, podman, apptainer, enroot");
                return Err(wrong("containers", why));
            };
            if !hosts {
                let why = "cannot be with --run-as-owner, --pod or --senses-only: images are run by the agent's own user, on hosts";
                return Err(wrong("containers", why));
            }
            made(*runtime)
                .map(Some)
                .map_err(|why| wrong("containers", why))
        }
    }
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// The first word of what it says that begins with a digit.
fn version(runtime: Runtime, program: &Path) -> io::Result<String> {
    let flag = match runtime {
        Runtime::Podman | Runtime::Apptainer => "--version",
        Runtime::Enroot => "version",
    };
    let mut child = Command::new(program)
        .arg(flag)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK);
    }
    let said = io::read_to_string(
        child
            .stdout
            .take()
            .into_iter()
            .next()
            .ok_or(io::ErrorKind::BrokenPipe)?,
    )?;
    let mut words = said.split_whitespace();
    let number = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    Ok(number.unwrap_or("of an unknown version").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(containers: &str) -> Engines {
        Engines {
            containers: containers.into(),
            ..Engines::default()
        }
    }

    #[test]
    fn images_are_run_on_hosts_only() {
        assert!(containers(named("none"), true).unwrap().is_none());
        assert!(containers(named("auto"), false).unwrap().is_none());
        let why = |flags, hosts| containers(flags, hosts).unwrap_err().to_string();
        assert!(why(named("podman"), false).starts_with("--containers: cannot be with"));
        assert!(why(named("docker"), true).contains("must be one of auto, none, podman"));
        let many = Engines {
            container_mount: vec![Mount::read("/a").unwrap(); MOUNTS_MAX + 1],
            ..named("none")
        };
        assert!(why(many, true).starts_with("--container-mount: 65 are given"));
    }

    #[test]
    fn a_runtime_says_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("podman");
        fs::write(&program, "#!/bin/sh\necho podman version 4.3.1\n").unwrap();
        assert!(!is_program(&program));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_program(&program));
        assert_eq!(version(Runtime::Podman, &program).unwrap(), "4.3.1");
        let made = Containers {
            runtime: Runtime::Podman,
            program,
            version: "4.3.1".into(),
            mounts: Vec::new(),
        };
        assert_eq!(made.to_string(), "podman 4.3.1");
    }
}
