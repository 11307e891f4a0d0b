//! Proof that nothing of a lost runner lives.
//!
//! A runner that is killed takes its launcher with it (parent-death signal) and its shims kill the rest. That takes a moment, and a
//! process could have got away from its shim. So the run's cgroup is emptied where it had one, and whatever names the run's directory
//! in its environment, which every process of a run inherits, is killed until nothing does. A process that cannot be killed keeps
//! the run alive: no timer declares it dead.

use std::{fs, io, os::unix::ffi::OsStrExt, path::Path};

use muster_core::node::torchrun::RUN_DIR;
use muster_runner::{
    RunnerIdentity,
    leftovers::{self, Leftovers},
    procfs,
};
use rustix::process::{Pid, Signal, kill_process};

/// Tells everything of the run in `dir`, which was `was` when its first processes were started, to end at once. None: nothing of it lives;
/// else who still did, as far as they carry its name.
pub(crate) fn kill_all(dir: &Path, was: Option<&Path>, runner: Option<&RunnerIdentity>) -> io::Result<Option<Vec<i32>>> {
    let in_cgroup = match runner.map(leftovers::clear).transpose()? {
        None | Some(Leftovers::Unknown | Leftovers::Empty) => false,
        Some(Leftovers::Killed | Leftovers::Held) => true,
    };
    let pids = kill_named(&[Some(dir), was])?;
    Ok((in_cgroup || !pids.is_empty()).then_some(pids))
}

fn kill_named(dirs: &[Option<&Path>]) -> io::Result<Vec<i32>> {
    let named = dirs.iter().flatten();
    let marks: Vec<Vec<u8>> = named.map(|dir| [RUN_DIR.as_bytes(), b"=", dir.as_os_str().as_bytes()].concat()).collect();
    let mut living = Vec::new();
    for stat in procfs::all()? {
        // The environment of a zombie, of another user's process and of one that has just ended cannot be read.
        let Ok(environment) = fs::read(Path::new("/proc").join(stat.pid.to_string()).join("environ")) else { continue };
        if !stat.is_dead() && environment.split(|b| *b == 0).any(|entry| marks.iter().any(|mark| mark == entry)) {
            living.push(stat.pid);
            if let Some(pid) = Pid::from_raw(stat.pid) {
                // One that has ended by itself in between is what is wanted.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    Ok(living)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn kills_what_carries_the_name_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("a-g1"), dir.path().join("a-g12"));
        let start = |dir: &Path| Command::new("/bin/sleep").arg("600").env_clear().env(RUN_DIR, dir).spawn().unwrap();
        let (mut mine, mut other) = (start(&one), start(&two));
        // Until exec the child carries this process's environment.
        while kill_all(&one, None, None).unwrap().is_none() {}
        assert!(!mine.wait().unwrap().success());
        assert_eq!(kill_all(&one, None, None).unwrap(), None);
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
