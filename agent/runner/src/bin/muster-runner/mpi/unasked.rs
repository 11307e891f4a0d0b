//! Whether an `mpirun` has ended before any rank began.
//!
//! A launcher that has no ranks of its own reaches its hosts by [`super::rsh`] alone, and every rank
//! descends from what it starts there. So if every host answered, `mpirun` was executed, and nothing was
//! asked of any host, then no rank began, and no host and no network between them is at fault: as a rule
//! `mpirun` has refused its own words. A file says so: [`super::launch`] makes it when it becomes `mpirun`,
//! and the first request to a host removes it. A file that is missing proves nothing.
//!
//! Only a command that is `mpirun` itself is judged. A script may have done much before it fails.

use std::path::Path;

use muster_runner::Folder;
use muster_runner::wire::{Exit, MpiSpec, StartSpec};

/// The file, in the run's directory.
const BEGUN: &str = "mpi-begun";

/// Programs that start ranks, by the names of Open MPI, MPICH and Intel MPI.
const LAUNCHERS: [&str; 6] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "mpiexec.openmpi",
    "mpirun.openmpi",
    "prterun",
];

/// Words by which somebody reaches hosts in another way, or starts ranks on the launcher's own.
const OTHER_WAYS: [&str; 8] = [
    "plm",
    "rsh",
    "ssh",
    "launcher",
    "bootstrap",
    "localhost",
    "127.0.0.1",
    "isolated",
];

/// The file of the hosts, as the launcher gets it (`core::node::mpi::HOSTFILE`).
const HOSTFILE: &str = "hostfile";

/// `mpirun` is executed next.
pub(super) fn begins(dir: &Path) {
    // Without the file the end is judged as any other.
    let _ = Folder::of_run(dir).and_then(|folder| folder.replace_unsynced(BEGUN, b""));
}

/// Something is asked of a host.
pub(super) fn asks(dir: &Path) {
    let _ = Folder::of_run(dir).and_then(|folder| folder.remove(BEGUN));
}

/// Whether the launcher in the current directory has ended so that no rank began.
pub(crate) fn no_rank_began(spec: Option<&StartSpec>, exit: Exit) -> bool {
    spec.is_some_and(|spec| is_judged(spec, exit))
        && Folder::trusted(Path::new(".")).is_ok_and(|folder| folder.has(BEGUN))
}

fn is_judged(spec: &StartSpec, exit: Exit) -> bool {
    let (Some(MpiSpec::Launcher(launcher)), Some(order)) = (&spec.mpi, &spec.order) else {
        return false;
    };
    let Some((program, words)) = order.command.split_first() else {
        return false;
    };
    let lines = launcher
        .files
        .get(HOSTFILE)
        .map_or(0, |file| file.lines().count());
    let has_own_ranks = lines != launcher.hosts.len();
    let other_way = |word: &String| OTHER_WAYS.iter().any(|way| word.contains(way));
    let is_mpirun = LAUNCHERS.contains(&program.rsplit('/').next().unwrap_or_default());
    // In between are a shell's own codes, and those of a signal.
    let refused = matches!(exit, Exit::Code { code: 1..=125 | 193..=255 });
    refused && is_mpirun && !has_own_ranks && lines > 0 && !words.iter().any(other_way)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_runner::wire::{HostSpec, Lane, LauncherSpec, Order};

    use super::*;

    fn spec(command: &[&str], hostfile: &str) -> StartSpec {
        let text = r#"{"program":"/bin/sh","args":[],"env":{},"cwd":"/","ranks":1,"first_rank":0}"#;
        let host = |name: &str| HostSpec {
            name: name.into(),
            at: "10.0.0.7:1".into(),
            key: String::new(),
        };
        StartSpec {
            order: Some(Order {
                lane: Lane::Direct,
                options: Vec::new(),
                argv: Vec::new(),
                command: command.iter().map(|word| (*word).to_owned()).collect(),
                run_id: "r".into(),
                peer_lost: Vec::new(),
                lacks: Vec::new(),
                inspect: false,
                collectives: false,
            }),
            mpi: Some(MpiSpec::Launcher(LauncherSpec {
                own_name: None,
                own_address: None,
                hosts: vec![host("pi-worker-0"), host("pi-worker-1")],
                files: BTreeMap::from([(HOSTFILE.to_owned(), hostfile.to_owned())]),
            })),
            ..serde_json::from_str(text).expect("the other fields have defaults")
        }
    }

    const TWO: &str = "pi-worker-0 slots=2\npi-worker-1 slots=2\n";

    #[test]
    fn only_an_mpirun_that_reaches_its_hosts_by_us_alone_is_judged() {
        let judged = |command: &[&str], hostfile, code| {
            is_judged(&spec(command, hostfile), Exit::Code { code })
        };
        let words = [
            "mpirun", "-np", "4", "-bind-to", "none", "-mca", "btl", "tcp,self", "python3", "a.py",
        ];
        assert!(judged(&words, TWO, 213));
        assert!(judged(&["/opt/ompi/bin/mpiexec", "-np", "4"], TWO, 1));
        for code in [0, 126, 127, 137] {
            assert!(!judged(&words, TWO, code), "{code}");
        }
        let killed = Exit::Signal {
            signal: 9,
            core: false,
        };
        assert!(!is_judged(&spec(&words, TWO), killed));
        let with_own = format!("here slots=2\n{TWO}");
        assert!(
            !judged(&words, &with_own, 1),
            "ranks on the launcher's own node need no daemon"
        );
        assert!(!judged(&words, "", 1));
        for other in [
            &["bash", "-c", "mpirun -np 4 a"][..],
            &["python3", "mpirun"],
            &["mpirun", "-H", "localhost:2", "a"],
            &["mpirun", "--mca", "plm_rsh_agent", "/usr/bin/ssh", "a"],
            &["mpirun", "-launcher", "slurm", "a"],
            &["mpirun", "-bootstrap=fork", "a"],
            &[],
        ] {
            assert!(!judged(other, TWO, 1), "{other:?}");
        }
        let torch = StartSpec {
            mpi: None,
            ..spec(&words, TWO)
        };
        assert!(!is_judged(&torch, Exit::Code { code: 1 }));
        assert!(!no_rank_began(None, Exit::Code { code: 1 }));
    }
}
