//! Jobs of MPI: the member that runs `mpirun`, and those that lend their nodes to it.
//!
//! MPI's launchers start a daemon on every other host by a program like ssh, and the daemons start the
//! ranks. Here [`rsh`] is that program. It asks the [`lend`]er of the host, which is the only process
//! that Muster starts there. So all ranks descend from their node's runner, and end with it.
//!
//! The programs are links to this binary, in the run's directory. They read there which part the member
//! has.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use muster_runner::{Folder, record::RECORD_MAX, wire::MpiSpec};

mod channel;
mod client;
pub(crate) mod launch;
pub(crate) mod lend;
mod ranks;
pub(crate) mod rsh;
pub(crate) mod unasked;

/// The part of this member, in the run's directory.
const PART: &str = "mpi.json";

/// The variable that names the run's directory (`core::node::torchrun::RUN_DIR`).
const RUN_DIR: &str = "MUSTER_RUN_DIR";

/// The folder of the programs for remote starts (`core::node::mpi::BIN`).
const BIN: &str = "bin";

/// The folder may already have what an earlier attempt of the same start has made.
fn fresh(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(e),
    })
}

/// Writes what the member's programs need into the current directory, and returns what the member
/// executes.
pub(crate) fn prepare(part: &MpiSpec, command: &[String], here: &Path) -> io::Result<Vec<String>> {
    write(PART, &serde_json::to_vec(part)?)?;
    let own = std::env::current_exe()?;
    let link = |name: &str| fresh(symlink(&own, name));
    let program = match part {
        MpiSpec::Lender(_) => lend::NAME,
        MpiSpec::Launcher(launcher) => {
            for (name, text) in &launcher.files {
                if name.contains('/') || name.starts_with('.') {
                    let text = format!("{name:?} cannot be a file's name");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
                write(name, text.as_bytes())?;
            }
            fresh(DirBuilder::new().mode(0o700).create(BIN))?;
            for name in rsh::NAMES {
                link(&format!("{BIN}/{name}"))?;
            }
            launch::NAME
        }
    };
    link(program)?;
    let program = here.join(program).to_string_lossy().into_owned();
    let own = match part {
        MpiSpec::Lender(_) => &[],
        MpiSpec::Launcher(_) => command,
    };
    Ok([&[program], own].concat())
}

/// Writes a file that only this user can read, and run if it is a program.
fn write(name: &str, content: &[u8]) -> io::Result<()> {
    let here = Folder::trusted(Path::new("."))?;
    match content.starts_with(b"#!") {
        true => here.replace_program(name, content),
        false => here.replace_unsynced(name, content),
    }
}

/// The run's directory and this member's part.
fn part() -> Result<(PathBuf, MpiSpec), String> {
    let dir = std::env::var_os(RUN_DIR).ok_or_else(|| format!("{RUN_DIR} is not set"))?;
    let dir = PathBuf::from(dir);
    let file = dir.join(PART);
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = { Folder::of_run(&dir) }
        .and_then(|folder| folder.read(PART, RECORD_MAX))
        .map_err(|e| wrong(&e))?;
    let part = serde_json::from_slice(&text).map_err(|e| wrong(&e))?;
    Ok((dir, part))
}

/// Takes the name that tells this member from others on the same machine. Without it MPI may take them
/// for one host, which is only said: some programs do not mind.
///
/// The name resolves to `address`, as a pod's does: gloo looks up the name of its own host.
fn take_name(program: &str, name: Option<&str>, address: Option<&str>, dir: &Path) {
    let Some(name) = name else { return };
    if let Err(e) = crate::sys::take_own_name(name) {
        say!(
            "{program}: this process cannot have the host name {name} ({e}); MPI may take all members on this machine for one host"
        );
        return;
    }
    let Some(address) = address else { return };
    if let Err(e) = resolve_own(name, address, &dir.join("hosts")) {
        say!(
            "{program}: the host name {name} does not resolve here ({e}); Horovod with gloo needs it"
        );
    }
}

/// Adds a line to what this process and its children see as the machine's hosts. `own`: where that is
/// written.
fn resolve_own(name: &str, address: &str, own: &Path) -> io::Result<()> {
    const HOSTS: &str = "/etc/hosts";
    let machine = fs::read_to_string(HOSTS)?;
    // The first answer is ours, should the machine know the name, too.
    let (folder, file) = (own.parent(), own.file_name());
    let (Some(folder), Some(file)) = (folder, file) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let hosts = format!("{address} {name}\n{machine}");
    Folder::of_run(folder)?.replace_unsynced(file, hosts.as_bytes())?;
    crate::sys::own_file(own, HOSTS)?;
    // It is still seen at its other place. Here a job could write over it without knowing what it is.
    fs::remove_file(own)
}

/// The environment of a member's processes: that of a launch, without what torchrun would say.
pub(crate) fn environment(launch: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const OF_TORCH: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];
    let of_torch = |name: &str| {
        OF_TORCH.contains(&name)
            || name.starts_with("TORCHELASTIC_")
            || name.starts_with("TORCH_ELASTIC_")
            || crate::rank_env::OURS.contains(&name)
    };
    let mut env = launch.clone();
    env.retain(|name, _| !of_torch(name));
    env
}
