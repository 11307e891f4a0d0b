//! What the supervisor says about the runs it holds, and what follows from it: which job an XID
//! belongs to, which run uses memory, and which processes cannot be killed. Only the latest message
//! counts, so nothing ever waits for the senses.

use std::collections::BTreeMap;

use muster_core::{
    health::{Reading, Subject, TCPSTORE_REFUSAL, Value, WORKER_UNKILLABLE},
    id::Generation,
    run::RunId,
};
use tokio::sync::watch;

/// A run that this node holds, from when its runner is up until the coordinator has acknowledged
/// its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldRun {
    /// The name of its directory.
    pub name: String,
    /// The uid of its job. With the generation it names the run on the wire.
    pub uid: String,
    pub generation: u64,
    /// The job's name, which is the same in all generations.
    pub job: String,
    pub gpus: Vec<String>,
    /// Processes that still live a minute after they were killed, as far as they can be named.
    pub unkillable: Option<Vec<i32>>,
    /// Why the death of the run cannot be proven.
    pub unproven: Option<String>,
    /// What the TCPStore that it serves has refused.
    pub store_refused: Option<String>,
    /// Its workers are at work. They are not being started or stopped.
    pub training: bool,
    pub ranks: Vec<HeldRank>,
    /// Its ranks are in another container, and so are the pids and paths that it names.
    pub elsewhere: bool,
    /// Where its workers start. As a rule they write their checkpoints there.
    pub work_dir: Option<String>,
}

impl HeldRun {
    pub(super) fn id(&self) -> RunId {
        RunId {
            job: self.uid.as_str().into(),
            generation: Generation(self.generation),
        }
    }
}

/// A rank of a run, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRank {
    pub rank: u32,
    pub pid: u32,
    pub alive: bool,
}

/// How many processes of a run are named. More would say nothing new.
const NAMED: usize = 8;

pub(super) struct Held {
    told: watch::Receiver<Vec<HeldRun>>,
    runs: Vec<HeldRun>,
    /// The last job on each GPU. An XID may come after its run has ended.
    last: BTreeMap<String, String>,
}

impl Held {
    pub(super) fn new(told: watch::Receiver<Vec<HeldRun>>) -> Self {
        Self {
            told,
            runs: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Takes the latest message. True if it is a new one.
    pub(super) fn hear(&mut self) -> bool {
        if !self.told.has_changed().unwrap_or(false) {
            return false;
        }
        let runs = self.told.borrow_and_update().clone();
        for run in runs
            .iter()
            .filter(|run| !self.runs.iter().any(|known| known.name == run.name))
        {
            self.last
                .extend(run.gpus.iter().map(|gpu| (gpu.clone(), run.job.clone())));
        }
        self.runs = runs;
        true
    }

    /// The job that is on a whole GPU, or was there last. Instances of one GPU may belong to
    /// several jobs, and an XID does not say to which.
    pub(super) fn job_on(&self, uuid: &str) -> Option<&str> {
        self.last.get(uuid).map(String::as_str)
    }

    /// If a line of the kernel log says that a rank's process was killed, adds which rank it was.
    pub(super) fn with_victim(&self, line: &str) -> String {
        let number = |word: &str| word.parse::<u32>().ok();
        let killed = line
            .split_once("rocess ")
            .and_then(|(_, rest)| number(rest.split(' ').next()?));
        let of = |run: &HeldRun| {
            run.ranks
                .iter()
                .find(|rank| Some(rank.pid) == killed)
                .map(|rank| (rank.rank, run.job.clone()))
        };
        let mut here = self.runs.iter().filter(|run| !run.elsewhere);
        match here.find_map(of) {
            Some((rank, job)) => format!("{line}: rank {rank} of {job}"),
            None => line.to_owned(),
        }
    }

    /// Removes memory readings about GPUs that one of our runs holds: the memory belongs to the
    /// run, or to its workers that are just ending.
    pub(super) fn not_of_ours(&self, readings: &[Reading]) -> Vec<Reading> {
        let ours = |subject: &Subject| matches!(subject, Subject::Gpu(uuid) if self.runs.iter().any(|run| run.gpus.contains(uuid)));
        readings
            .iter()
            .filter(|reading| reading.check != "memory-held" || !ours(&reading.subject))
            .cloned()
            .collect()
    }

    /// Readings about runs: processes that cannot be killed, deaths that cannot be proven, and
    /// connections that a TCPStore has refused.
    pub(super) fn readings(&self) -> Vec<Reading> {
        self.left_over().into_iter().chain(self.refused()).collect()
    }

    fn refused(&self) -> Option<Reading> {
        let of = |run: &HeldRun| Some((run.id(), run.name.clone(), run.store_refused.clone()?));
        let all: Vec<_> = self.runs.iter().filter_map(of).collect();
        let words = all
            .iter()
            .map(|(_, name, refused)| format!("TCPStore of {name}: {refused}"));
        let words: Vec<String> = words.collect();
        (!all.is_empty()).then(|| Reading {
            check: TCPSTORE_REFUSAL,
            subject: Subject::Node,
            value: Value::Flag(true),
            words: words.join("; "),
            runs: all.into_iter().map(|(run, ..)| run).collect(),
        })
    }

    fn left_over(&self) -> Option<Reading> {
        let stuck: Vec<String> = self
            .runs
            .iter()
            .filter_map(|run| Some(described(run, run.unkillable.as_ref()?)))
            .collect();
        let mut words = Vec::new();
        if !stuck.is_empty() {
            words.push(format!(
                "{} cannot be killed: alive a minute after SIGKILL",
                stuck.join(", ")
            ));
        }
        for run in &self.runs {
            let todo = "reboot the node, or make sure of it and move the run's directory away";
            let unproven = |why| {
                format!(
                    "cannot prove that nothing of {} lives: {why}; {todo}",
                    run.name
                )
            };
            words.extend(run.unproven.iter().map(unproven));
        }
        let reading = Reading {
            check: WORKER_UNKILLABLE,
            subject: Subject::Node,
            value: Value::Flag(true),
            words: words.join("; "),
            runs: self.runs.iter().filter_map(told_of).collect(),
        };
        (!words.is_empty()).then_some(reading)
    }
}

/// The run's id, if processes of it cannot be killed, or its death cannot be proven.
fn told_of(run: &HeldRun) -> Option<RunId> {
    (run.unkillable.is_some() || run.unproven.is_some()).then(|| run.id())
}

fn described(run: &HeldRun, pids: &[i32]) -> String {
    let named: Vec<String> = pids.iter().take(NAMED).map(ToString::to_string).collect();
    let more = if pids.len() > NAMED { " and more" } else { "" };
    match named.as_slice() {
        [] => format!("what is left of {}", run.name),
        [one] => format!("process {one} of {}", run.name),
        several => format!("processes {}{more} of {}", several.join(", "), run.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_the_kernel_killed_is_named() {
        let ranks = vec![HeldRank {
            rank: 5,
            pid: 77,
            alive: false,
        }];
        let runs = vec![HeldRun {
            job: "default/digits".into(),
            ranks,
            ..HeldRun::default()
        }];
        let mut held = Held {
            runs,
            ..Held::new(watch::channel(Vec::new()).1)
        };
        let line = "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB";
        assert_eq!(
            held.with_victim(line),
            format!("{line}: rank 5 of default/digits")
        );
        for other in [
            "Out of memory: Killed process 78 (java) total-vm:1kB",
            "Out of memory: Killed process",
            "",
        ] {
            assert_eq!(held.with_victim(other), other);
        }
        // The kernel's log has the machine's pids, and not those of a container.
        held.runs[0].elsewhere = true;
        assert_eq!(held.with_victim(line), line);
    }
}
