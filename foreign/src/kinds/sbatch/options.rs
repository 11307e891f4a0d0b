//! The options of `sbatch` and `srun`: a table says what each means here.
//!
//! Source: sbatch(1) and srun(1) of Slurm 25.05, and src/common/slurm_opt.c. As with getopt, the beginning of
//! a name is enough if no other option begins with it.

use crate::spelling::nearest;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// A value only behind `=`.
    Maybe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// `asked` reads it.
    Read,
    Note(&'static str),
    Warn(&'static str),
    Refuse(&'static str),
}

/// The long name, the short one, whether a value follows, and what is done.
pub(super) type Entry = (&'static str, Option<char>, Takes, Use);

use Takes::{Maybe, Nothing, Value};
use Use::{Note, Read, Refuse, Warn};

const LOGS: Use = Note("has no effect: Muster keeps the output of every rank (muster logs)");
const CPUS: Use = Warn("has no effect: Muster does not divide CPUs");
const MEMORY: Use = Warn("has no effect: Muster does not divide memory");
const BINDS: Use = Note("has no effect: Muster binds ranks to the CPUs near their GPU");
const ORDER: Use = Warn("has no effect: name a number with spec.priority in a MusterJob");
const ACCOUNTS: Use = Note("has no effect: Muster counts by owner and namespace (muster history)");
const QUIET: Use = Note("has no effect: it is about what sbatch and srun print");
const IMAGE: Use = Refuse(
    "is not read: of a container only --container-image is; the nodes' agents say what it mounts (docs/images.md)",
);
const COUNT: Use =
    Refuse("leaves the number of tasks on each node open; give --ntasks-per-node instead");
const NEAR: Use = Warn("has no effect: see requiredTopology and preferredTopology of a MusterJob");
const STEPS: Use = Note("has no effect: there is one step, and it has the whole job");

pub(super) const OPTIONS: &[Entry] = &[
    ("account", Some('A'), Value, ACCOUNTS),
    ("acctg-freq", None, Value, ACCOUNTS),
    (
        "array",
        Some('a'),
        Value,
        Refuse(
            "makes many jobs of one script, which Muster does not; submit it once for each task, with what SLURM_ARRAY_TASK_ID would be as an argument",
        ),
    ),
    (
        "batch",
        None,
        Value,
        Warn("has no effect: every node runs the same"),
    ),
    (
        "bb",
        None,
        Value,
        Refuse("would stage files, which Muster does not; put them on the nodes"),
    ),
    (
        "bbf",
        None,
        Value,
        Refuse("would stage files, which Muster does not; put them on the nodes"),
    ),
    (
        "begin",
        Some('b'),
        Value,
        Refuse(
            "is not read; say the time with spec.startAfter in a MusterJob, or with muster run --start-after TIME",
        ),
    ),
    ("chdir", Some('D'), Value, Read),
    (
        "cluster-constraint",
        None,
        Value,
        Warn("has no effect: there is one cluster"),
    ),
    (
        "clusters",
        Some('M'),
        Value,
        Warn("has no effect: there is one cluster"),
    ),
    ("comment", None, Value, Note("is not kept")),
    ("constraint", Some('C'), Value, Read),
    ("container", None, Value, IMAGE),
    ("container-image", None, Value, Read),
    ("container-mounts", None, Value, IMAGE),
    ("container-name", None, Value, IMAGE),
    ("container-workdir", None, Value, IMAGE),
    ("contiguous", None, Nothing, NEAR),
    ("core-spec", Some('S'), Value, CPUS),
    ("cores-per-socket", None, Value, CPUS),
    ("cpu-freq", None, Value, CPUS),
    ("cpus-per-gpu", None, Value, CPUS),
    ("cpus-per-task", Some('c'), Value, Read),
    (
        "deadline",
        None,
        Value,
        Warn("has no effect: --time limits the job"),
    ),
    (
        "delay-boot",
        None,
        Value,
        Note("has no effect: Muster boots no nodes"),
    ),
    (
        "dependency",
        Some('d'),
        Value,
        Refuse(
            "names jobs of Slurm, which Muster does not know; name the job here with spec.after in a MusterJob, or with muster run --after JOB",
        ),
    ),
    ("distribution", Some('m'), Value, BINDS),
    ("error", Some('e'), Value, LOGS),
    ("exclude", Some('x'), Value, Read),
    (
        "exclusive",
        None,
        Maybe,
        Warn(
            "has no effect: a node has one member of this job, which has its GPUs for itself; jobs that need no GPU may share the node",
        ),
    ),
    ("export", None, Value, Read),
    (
        "export-file",
        None,
        Value,
        Refuse("reads variables from a file; write them into the script"),
    ),
    ("extra", None, Value, Note("is not kept")),
    ("extra-node-info", Some('B'), Value, CPUS),
    (
        "get-user-env",
        None,
        Maybe,
        Warn("has no effect: the script is run on the nodes without a login"),
    ),
    (
        "gid",
        None,
        Value,
        Refuse("would change the user, which Muster does not"),
    ),
    ("gpu-bind", None, Value, BINDS),
    (
        "gpu-freq",
        None,
        Value,
        Warn("has no effect: Muster does not set clocks"),
    ),
    ("gpus", Some('G'), Value, Read),
    ("gpus-per-node", None, Value, Read),
    (
        "gpus-per-socket",
        None,
        Value,
        Refuse("leaves the number of GPUs on each node open; give --gpus-per-node instead"),
    ),
    ("gpus-per-task", None, Value, Read),
    ("gres", None, Value, Read),
    ("gres-flags", None, Value, BINDS),
    ("hint", None, Value, BINDS),
    ("hold", Some('H'), Nothing, Read),
    ("ignore-pbs", None, Nothing, QUIET),
    (
        "input",
        Some('i'),
        Value,
        Refuse("gives the tasks a file as input, which Muster does not; let the script open it"),
    ),
    ("job-name", Some('J'), Value, Read),
    ("kill-on-invalid-dep", None, Value, QUIET),
    (
        "licenses",
        Some('L'),
        Value,
        Warn("has no effect: Muster counts no licences"),
    ),
    ("mail-type", None, Value, Read),
    ("mail-user", None, Value, Read),
    ("mcs-label", None, Value, ACCOUNTS),
    ("mem", None, Value, MEMORY),
    ("mem-bind", None, Value, BINDS),
    ("mem-per-cpu", None, Value, MEMORY),
    ("mem-per-gpu", None, Value, MEMORY),
    ("mincpus", None, Value, CPUS),
    (
        "network",
        None,
        Value,
        Warn("has no effect: Muster chooses the network by the node's profile"),
    ),
    ("nice", None, Maybe, ORDER),
    (
        "no-kill",
        Some('k'),
        Maybe,
        Note("is so anyway: a job goes on without a node that fails, or waits for another"),
    ),
    ("no-requeue", None, Nothing, Read),
    (
        "nodefile",
        Some('F'),
        Value,
        Refuse("reads names from a file; write them with --nodelist"),
    ),
    ("nodelist", Some('w'), Value, Read),
    ("nodes", Some('N'), Value, Read),
    ("ntasks", Some('n'), Value, Read),
    ("ntasks-per-core", None, Value, COUNT),
    ("ntasks-per-gpu", None, Value, COUNT),
    ("ntasks-per-node", None, Value, Read),
    ("ntasks-per-socket", None, Value, COUNT),
    ("open-mode", None, Value, LOGS),
    ("output", Some('o'), Value, LOGS),
    ("overcommit", Some('O'), Nothing, CPUS),
    ("oversubscribe", Some('s'), Maybe, CPUS),
    ("parsable", None, Nothing, QUIET),
    ("partition", Some('p'), Value, Read),
    ("power", None, Value, CPUS),
    (
        "prefer",
        None,
        Value,
        Warn("has no effect: a MusterJob can prefer nodes (affinity)"),
    ),
    ("priority", None, Value, ORDER),
    ("profile", None, Value, ACCOUNTS),
    (
        "propagate",
        None,
        Maybe,
        Warn("has no effect: the limits are the agent's"),
    ),
    ("qos", Some('q'), Value, Read),
    ("quiet", Some('Q'), Nothing, QUIET),
    (
        "reboot",
        None,
        Nothing,
        Warn("has no effect: Muster boots no nodes"),
    ),
    (
        "requeue",
        None,
        Nothing,
        Note(
            "is so anyway: a job that loses a node starts again on what is left, or waits for another",
        ),
    ),
    (
        "reservation",
        None,
        Value,
        Warn("has no effect: name its nodes with --nodelist"),
    ),
    ("signal", None, Value, Read),
    ("sockets-per-node", None, Value, CPUS),
    ("spread-job", None, Nothing, NEAR),
    ("switches", None, Value, NEAR),
    ("tasks-per-node", None, Value, Read),
    ("test-only", None, Nothing, QUIET),
    ("thread-spec", None, Value, CPUS),
    ("threads-per-core", None, Value, CPUS),
    ("time", Some('t'), Value, Read),
    (
        "time-min",
        None,
        Value,
        Warn("has no effect: a job has one limit, that of --time"),
    ),
    (
        "tmp",
        None,
        Value,
        Warn("has no effect: Muster does not count disks"),
    ),
    ("tres-bind", None, Value, BINDS),
    (
        "tres-per-task",
        None,
        Value,
        Refuse("is not read; give --gpus-per-task or --gpus-per-node instead"),
    ),
    (
        "uid",
        None,
        Value,
        Refuse("would change the user, which Muster does not"),
    ),
    (
        "use-min-nodes",
        None,
        Nothing,
        Warn("has no effect: a job gets as many nodes as there are, up to the most"),
    ),
    ("verbose", Some('v'), Nothing, QUIET),
    (
        "wait",
        Some('W'),
        Maybe,
        Note("has no effect: say --wait to muster submit"),
    ),
    (
        "wait-all-nodes",
        None,
        Value,
        Note("is so anyway: all nodes of a job begin together"),
    ),
    ("wckey", None, Value, ACCOUNTS),
    (
        "wrap",
        None,
        Value,
        Refuse("belongs to the command line of sbatch, not into a script"),
    ),
];

/// What only `srun` has.
pub(super) const OF_SRUN: &[Entry] = &[
    (
        "bcast",
        None,
        Maybe,
        Refuse("copies the program to the nodes, which Muster does not; put it there"),
    ),
    ("cpu-bind", None, Value, BINDS),
    ("environment", None, Value, IMAGE),
    ("exact", None, Nothing, STEPS),
    ("immediate", Some('I'), Maybe, STEPS),
    ("interactive", None, Nothing, STEPS),
    ("jobid", None, Value, STEPS),
    (
        "kill-on-bad-exit",
        Some('K'),
        Maybe,
        Note("is so anyway: if one rank fails, all start again or the job ends"),
    ),
    ("label", Some('l'), Nothing, LOGS),
    (
        "mpi",
        None,
        Value,
        Warn("has no effect: ranks find each other by MASTER_ADDR; programs of MPI need an MPIJob"),
    ),
    (
        "multi-prog",
        None,
        Nothing,
        Refuse("runs different programs; write a MusterJob with roles"),
    ),
    ("no-container-mount-home", None, Nothing, IMAGE),
    ("overlap", None, Nothing, STEPS),
    (
        "pty",
        None,
        Maybe,
        Refuse("needs a terminal, which ranks do not have"),
    ),
    (
        "relative",
        Some('r'),
        Value,
        Refuse("leaves out nodes of the job; make --nodes the number that trains"),
    ),
    ("unbuffered", Some('u'), Nothing, LOGS),
    (
        "het-group",
        None,
        Value,
        Refuse("is for jobs with different groups of nodes; write a MusterJob with roles"),
    ),
];

/// One option of a line.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Option {
        entry: &'static Entry,
        /// As the script writes it.
        written: String,
        value: Option<String>,
        /// How many words it is.
        words: usize,
    },
    Lacks(String),
    Unknown(String),
    /// No option.
    Command,
}

/// The option that some words begin with.
pub(super) fn look(words: &[&str], of_srun: bool) -> Found {
    let Some(first) = words.first() else {
        return Found::Command;
    };
    let found = match (first.strip_prefix("--"), first.strip_prefix('-')) {
        (Some(long), _) if !long.is_empty() => {
            let (name, own) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            let name = name.replace('_', "-");
            (by_name(&name, of_srun), format!("--{name}"), own)
        }
        (None, Some(short)) if !short.is_empty() => {
            let letter = short.chars().next().unwrap_or_default();
            let own = &short[letter.len_utf8()..];
            let own = own.strip_prefix('=').unwrap_or(own);
            let entry = all(of_srun).find(|entry| entry.1 == Some(letter));
            (
                entry,
                format!("-{letter}"),
                (!own.is_empty()).then_some(own),
            )
        }
        _ => return Found::Command,
    };
    let (Some(entry), written, own) = found else {
        return Found::Unknown(unknown(first, of_srun));
    };
    let (value, words) = match (entry.2, own) {
        (Value, None) => match words.get(1) {
            Some(value) => (Some((*value).to_owned()), 2),
            None => return Found::Lacks(written),
        },
        (_, own) => (own.map(str::to_owned), 1),
    };
    Found::Option {
        entry,
        written,
        value,
        words,
    }
}

fn all(of_srun: bool) -> impl Iterator<Item = &'static Entry> {
    let more: &[Entry] = if of_srun { OF_SRUN } else { &[] };
    OPTIONS.iter().chain(more)
}

fn by_name(name: &str, of_srun: bool) -> Option<&'static Entry> {
    if let Some(same) = all(of_srun).find(|entry| entry.0 == name) {
        return Some(same);
    }
    let mut begin = all(of_srun).filter(|entry| entry.0.starts_with(name));
    begin.next().filter(|_| begin.next().is_none())
}

fn unknown(word: &str, of_srun: bool) -> String {
    let program = if of_srun { "srun" } else { "sbatch" };
    let bare = word.trim_start_matches('-');
    let name = bare.split('=').next().unwrap_or_default();
    let names: Vec<&str> = all(of_srun).map(|entry| entry.0).collect();
    match nearest(name, &names).filter(|_| word.starts_with("--")) {
        Some(meant) => format!("is no option of {program}; did you mean --{meant}?"),
        None => format!("is no option of {program} that Muster knows"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_as_getopt_finds_them() {
        let read = |words: &[&str]| match look(words, true) {
            Found::Option {
                entry,
                value,
                words,
                ..
            } => {
                format!("{} {} {words}", entry.0, value.unwrap_or_default())
            }
            Found::Lacks(name) => format!("{name} lacks"),
            Found::Unknown(why) => why,
            Found::Command => "command".into(),
        };
        for (words, must) in [
            (&["--nodes=4"][..], "nodes 4 1"),
            (&["--nodes", "4"], "nodes 4 2"),
            (&["-N4"], "nodes 4 1"),
            (&["-N", "4"], "nodes 4 2"),
            (&["--part=gpu"], "partition gpu 1"),
            (&["--ntasks_per_node=2"], "ntasks-per-node 2 1"),
            (&["--exclusive", "x"], "exclusive  1"),
            (&["--nodes"], "--nodes lacks"),
            (&["python"], "command"),
            (&["--tme=1"], "is no option of srun; did you mean --time?"),
        ] {
            assert_eq!(read(words), must, "{words:?}");
        }
    }

    #[test]
    fn no_name_is_there_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for (long, short, ..) in all(true) {
            assert!(seen.insert((*long).to_owned()), "{long}");
            assert!(
                short.is_none_or(|short| seen.insert(format!("-{short}"))),
                "{long}"
            );
        }
    }
}
