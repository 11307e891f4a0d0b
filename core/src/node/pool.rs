//! The warm pool: launchers that belong to no job yet. The next job with the same interpreter takes
//! one over.
//!
//! A pool launcher has imported torch and nothing else. It starts without the job's environment and
//! in `/`, so that it holds nothing of one job when another takes it. Values that a process reads
//! before a rank is forked from it cannot be changed afterwards. So a job takes a launcher only if
//! it would start its own with the same [`Key`]. A launcher runs as
//! the agent's user or, where jobs run as their owners, as one account.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    id::{Generation, JobName, JobUid},
    nccl::affinity,
    node::{
        account::Account,
        caches,
        torchrun::{self, Launch},
    },
    run::{Assignment, RunId},
    time::Timestamp,
    usage::Space,
};

/// Used in place of a job's uid for a launcher of the pool.
pub const NAME: &str = "warm-pool";

/// The end of the names of variables of a job with which a pool launcher may be started: numbers of
/// threads, which OpenMP, MKL and OpenBLAS read when they are loaded.
const CARRIED: &str = "_NUM_THREADS";

/// Prefixes of variables that may differ, besides those that [`torchrun::lasting`] leaves out. Only
/// packages that `import torch` does not load read them. A rank gets the job's own values.
const READ_BY_OTHERS: [&str; 5] = ["WANDB_", "MLFLOW_", "HF_", "TRANSFORMERS_", "TOKENIZERS_"];

/// Variables that name folders. A relative folder means a different one in each working directory.
const FOLDERS: [&str; 5] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "TMPDIR",
    "VIRTUAL_ENV",
];

/// A launcher is renewed after this time, as the agent's memory of interpreters is. So an upgrade
/// of a package that changes no folder's time is noticed on the same day.
pub const AGE_MAX: Duration = Duration::from_secs(4 * 3_600);

/// No launcher is started for this long after a job has started or ended here. The next generation
/// may follow at once, and an import beside it would take half of its processor time on a small
/// machine.
pub const CALM: Duration = Duration::from_secs(3);

/// In percent of the node's memory. Pool launchers end when less than this is available, and are
/// started only above twice as much, so that the memory of one does not change the decision.
pub const RESERVE: u64 = 10;

/// How often memory is checked while there is a pool. A training job rarely takes a tenth of a
/// node's memory in less time.
pub const LOOK: Duration = Duration::from_secs(5);

/// Everything that must be equal for a job to take a launcher of the pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    program: String,
    options: Vec<String>,
    env: BTreeMap<String, String>,
    /// Ranks on the node. They decide the CPUs on which the launcher runs.
    ranks: u32,
    /// Who the launcher runs as. A launcher of one user never becomes that of another.
    account: Option<Account>,
}

impl Key {
    /// Who such a launcher runs as. `None`: the agent's user.
    pub fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }
}

/// Why a job can take no launcher of any pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    NotPython,
    /// The name of the thing that contains a relative path.
    Relative(String),
    /// The name of a variable that the job sets and that a pool launcher must not have.
    OwnVariable(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NotPython => f.write_str("it is not Python"),
            Unfit::Relative(what) => write!(f, "{what} names a relative path"),
            Unfit::OwnVariable(name) => write!(
                f,
                "the job sets {name}, which may be read before ranks are forked"
            ),
        }
    }
}

/// The key of the launcher that this job may take. `launch` is the job's own launch, `bare` the
/// launch of [`without_job`].
pub fn key(assignment: &Assignment, launch: &Launch, bare: &Launch) -> Result<Key, Unfit> {
    let (options, _) = torchrun::ranks(assignment).ok_or(Unfit::NotPython)?;
    let program = launch.program.clone();
    let relative = |path: &str| !path.starts_with('/');
    if program.contains('/') && relative(&program) {
        return Err(Unfit::Relative(program));
    }
    if options
        .iter()
        .any(|option| option.contains("pycache_prefix"))
    {
        return Err(Unfit::Relative("-X pycache_prefix".into()));
    }
    let folders = FOLDERS.iter().find(|name| {
        launch
            .env
            .get(**name)
            .is_some_and(|list| !list.is_empty() && list.split(':').any(relative))
    });
    if let Some(name) = folders {
        return Err(Unfit::Relative((*name).to_owned()));
    }
    let (env, theirs) = (fixed(launch), fixed(bare));
    let differs = |name: &&String| env.get(*name) != theirs.get(*name);
    if let Some(name) = env.keys().chain(theirs.keys()).find(differs) {
        return Err(Unfit::OwnVariable(name.clone()));
    }
    Ok(Key {
        program,
        options,
        env,
        ranks: assignment.proc_per_node,
        account: launch.account.clone(),
    })
}

/// The variables that must be equal.
fn fixed(launch: &Launch) -> BTreeMap<String, String> {
    let ours = |name: &str| name.starts_with("MUSTER_") && name != affinity::RANK_CPUS;
    let late = |name: &str| READ_BY_OTHERS.iter().any(|prefix| name.starts_with(prefix));
    torchrun::lasting(launch)
        .into_iter()
        .filter(|(name, _)| !ours(name) && !late(name) && !caches::is_variable(name))
        .collect()
}

/// The assignment with which a pool launcher for this job's interpreter is started: the job without
/// its script, its folder and its environment.
pub fn without_job(assignment: &Assignment, program: &str) -> Assignment {
    let (options, _) = torchrun::ranks(assignment).unwrap_or_default();
    let env = assignment
        .env
        .iter()
        .filter(|(name, _)| name.ends_with(CARRIED))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    Assignment {
        run: RunId {
            job: JobUid::from(NAME),
            generation: Generation(0),
        },
        name: JobName {
            namespace: String::new(),
            name: NAME.into(),
        },
        hosts_store: false,
        env_files: BTreeMap::new(),
        store_clients: Vec::new(),
        step_pattern: None,
        fence_after: None,
        command: [vec![program.to_owned()], options].concat(),
        args: ["-m", "torch"].map(str::to_owned).into(),
        env,
        working_dir: Some("/".into()),
        ..assignment.clone()
    }
}

/// What the pool has and what it may have.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The most launchers that the operator allows.
    pub limit: usize,
    pub launchers: &'a [Member],
    /// The keys of the jobs that started here, the newest first, each once.
    pub used: &'a [Key],
    /// When a job last started or ended here. `None`: never.
    pub busy_at: Option<Timestamp>,
    /// Memory of the node.
    pub memory: Space,
    /// What a launcher of the pool took when one was last measured, in bytes. 0: not known.
    pub size: u64,
    /// Bytes that all launchers of this node may take together, and bytes that the launchers of
    /// jobs take.
    pub bytes_max: Option<u64>,
    pub bytes_of_jobs: u64,
}

#[derive(Clone, Debug)]
pub struct Member {
    pub number: u32,
    pub key: Key,
    pub started_at: Timestamp,
    /// What the launcher takes. `None`: it is starting.
    pub bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub start: Option<Key>,
    pub end: Vec<(u32, Cause)>,
    /// When to call [`plan`] again if nothing changes before.
    pub look_again: Option<Timestamp>,
}

/// Why a launcher of the pool ends without a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Jobs on this node use other interpreters now.
    Unused,
    Old,
    /// Too little of the node's memory is available.
    MemoryLow,
    /// All launchers of the node together take more memory than they may.
    TooMuch,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Unused => "jobs here use other interpreters now",
            Cause::Old => "it is renewed, in case its packages were upgraded",
            Cause::MemoryLow => "less than a tenth of this node's memory is available",
            Cause::TooMuch => "all launchers together take more memory than they may",
        })
    }
}

pub fn plan(now: Timestamp, held: &Held<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut wanted = wanted(held);
    let mut bytes = held.bytes_of_jobs;
    // Keep launchers for the most recently used keys first.
    let mut members: Vec<&Member> = held.launchers.iter().collect();
    members.sort_by_key(|member| {
        (
            held.used
                .iter()
                .position(|key| *key == member.key)
                .unwrap_or(usize::MAX),
            member.number,
        )
    });
    for member in members {
        let mut end = |cause| plan.end.push((member.number, cause));
        let Some(at) = wanted.iter().position(|key| **key == member.key) else {
            end(Cause::Unused);
            continue;
        };
        if held.memory.available < held.memory.total / RESERVE {
            end(Cause::MemoryLow);
        } else if held
            .bytes_max
            .is_some_and(|most| bytes + member.bytes.unwrap_or(0) > most)
        {
            end(Cause::TooMuch);
        } else if now.since(member.started_at) >= AGE_MAX {
            end(Cause::Old);
        } else {
            bytes += member.bytes.unwrap_or(0);
            wanted.remove(at);
        }
    }
    if held.limit == 0 || held.used.is_empty() {
        return plan;
    }
    plan.look_again = Some(now + LOOK);
    let starting = held.launchers.iter().any(|member| member.bytes.is_none());
    let full = held.bytes_max.is_some_and(|most| bytes + held.size > most);
    let low = held.memory.available < held.memory.total / RESERVE * 2;
    // A launcher that ends in this turn is replaced in a later turn, when its memory is free.
    if starting || full || low || !plan.end.is_empty() {
        return plan;
    }
    if let Some(key) = wanted.first() {
        match held.busy_at.map(|at| at + CALM).filter(|due| *due > now) {
            Some(due) => plan.look_again = plan.look_again.map(|at| at.min(due)),
            None => plan.start = Some((*key).clone()),
        }
    }
    plan
}

/// One launcher for each of the newest keys, and the rest of the limit for the newest of them.
fn wanted<'a>(held: &Held<'a>) -> Vec<&'a Key> {
    let mut wanted: Vec<&Key> = held.used.iter().take(held.limit).collect();
    if let Some(newest) = held.used.first() {
        wanted.resize(held.limit, newest);
    }
    wanted
}

#[cfg(test)]
mod tests;
