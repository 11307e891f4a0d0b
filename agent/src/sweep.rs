//! Proof that nothing of a lost runner lives.
//!
//! A runner that is killed takes its launcher with it (parent-death signal) and its shims kill the rest. That takes a moment, and a
//! process could have got away from its shim; so whatever carries the run's name in its environment is killed until nothing does.
//! Every process of a run inherits that name. A process that cannot be killed keeps the run alive: no timer declares it dead.

use std::{fs, io, path::Path};

use muster_core::{id::NodeName, run::RunId};
use muster_runner::procfs;
use rustix::process::{Pid, Signal, kill_process};

/// The processes of a run that still live, each told to end at once.
pub(crate) fn kill_all(node: &NodeName, run: &RunId) -> io::Result<Vec<i32>> {
    let marks =
        [format!("MUSTER_JOB_UID={}", run.job), format!("MUSTER_GENERATION={}", run.generation), format!("MUSTER_NODE={node}")];
    let mut living = Vec::new();
    for stat in procfs::all()? {
        // The environment of a zombie, of another user's process and of one that has just ended cannot be read.
        let Ok(environment) = fs::read(Path::new("/proc").join(stat.pid.to_string()).join("environ")) else { continue };
        let carries = |mark: &String| environment.split(|b| *b == 0).any(|entry| entry == mark.as_bytes());
        if stat.state != b'Z' && marks.iter().all(carries) {
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

    use muster_core::id::{Generation, JobUid};

    use super::*;

    #[test]
    fn kills_what_carries_the_name_and_nothing_else() {
        let job = format!("sweep-{}", std::process::id());
        let run = RunId { job: JobUid(job.clone()), generation: Generation(2) };
        let start = |generation: &str| {
            let marks = [("MUSTER_JOB_UID", job.as_str()), ("MUSTER_GENERATION", generation), ("MUSTER_NODE", "n1")];
            Command::new("/bin/sleep").arg("600").env_clear().envs(marks).spawn().unwrap()
        };
        let (mut one, mut other) = (start("2"), start("3"));
        // Until exec the child carries this process's environment.
        while kill_all(&"n1".into(), &run).unwrap().is_empty() {}
        assert!(!one.wait().unwrap().success());
        assert_eq!(kill_all(&"n1".into(), &run).unwrap(), Vec::<i32>::new());
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
