//! The short half of the compatibility suite: three of its scripts, each under plain torchrun and
//! forked from a launcher, on this node.
//!
//! It leaves out what a coordinator decides, the other lanes, more than one locale, and compiled
//! functions, which take a minute and a compiler.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_core::{exit::Exit, id::JobUid, node::torchrun, spec::Launch};
use muster_runner::place::Program;
use muster_suite::{RANKS, same_files, starts};

use super::bench::{Bench, Ended, Wanted};
use crate::host::RunnerHost;

/// The lane that a proven interpreter gets.
const LANE: &str = "fork";
/// How often a folder is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the launcher may take to import what the first generation has imported. A second
/// generation that starts earlier is right, too, but shows less.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// One script under plain torchrun. It takes seconds, and on a busy machine a minute.
const PLAIN_MAX_MS: u64 = 300_000;

pub(super) struct Short<'a> {
    pub(super) bench: Bench,
    pub(super) host: Arc<dyn RunnerHost>,
    /// The interpreter as the job names it.
    pub(super) python: &'a str,
    /// Where it is.
    pub(super) program: PathBuf,
    /// The folder with the scripts.
    pub(super) scripts: PathBuf,
    /// A folder for all that scripts leave.
    pub(super) left: PathBuf,
    /// The environment that ranks start from.
    pub(super) env: BTreeMap<String, String>,
}

impl Short<'_> {
    /// The differences that the first script shows which shows any, each with that script's name. An
    /// error: the suite could not be run.
    pub(super) async fn run(&mut self) -> Result<Vec<String>, String> {
        let named = |script: &str, found: Vec<String>| {
            let named = found.iter().map(|what| format!("{script}: {what}"));
            named.collect::<Vec<_>>()
        };
        let mut wrong = named("start.py", self.start().await?);
        if wrong.is_empty() {
            wrong = named("tongue.py", self.locale().await?);
        }
        if wrong.is_empty() {
            wrong = named("work.py", self.work().await?);
        }
        Ok(wrong)
    }

    /// What a script sees of its start, and how it ends.
    async fn start(&mut self) -> Result<Vec<String>, String> {
        let (plain, own) = (self.folder("start-plain")?, self.folder("start")?);
        let args = |folder: &Path| words(&["start.py", &shown(folder), "--lr", "0.1"]);
        let there = |rank: &str| format!("{rank}.json");
        let words = args(&plain);
        let verdict = beside(self.plain("start", &words, &[]), release(&plain, &there)).await?;
        if !muster_suite::start_ends_as_it_should(&verdict) {
            return Err(format!(
                "start.py does not end under plain torchrun as it should: {verdict}"
            ));
        }
        let wanted = self.wanted("start", 1, args(&own), &[]);
        let ended = beside(self.bench.run(wanted), release(&own, &there)).await?;
        let mut wrong = as_it_should(&ended, [Exit::Code(5), Exit::Code(1)])?;
        if wrong.is_empty() {
            wrong = starts(LANE, &plain, &own)?;
            wrong.extend(muster_suite::chances_met(&[&plain, &own])?);
        }
        Ok(wrong)
    }

    /// The locale of a node that sets none, in which CPython changes its own.
    async fn locale(&mut self) -> Result<Vec<String>, String> {
        let (plain, own) = (self.folder("locale-plain")?, self.folder("locale")?);
        let args = |folder: &Path| words(&["tongue.py", &shown(folder)]);
        let unset = [("LANG", ""), ("LC_ALL", ""), ("LC_CTYPE", "")];
        ended_well(&self.plain("locale", &args(&plain), &unset).await?)?;
        let wanted = self.wanted("locale", 1, args(&own), &unset);
        let ended = self.bench.run(wanted).await?;
        let mut wrong = as_it_should(&ended, [Exit::Code(0), Exit::Code(0)])?;
        if wrong.is_empty() {
            let name = |rank: &str| format!("{rank}.json");
            wrong = same_files(LANE, (&plain, &name), (&own, &name))?;
        }
        Ok(wrong)
    }

    /// What training scripts do, in a fork, and in a fork with imports made ahead.
    async fn work(&mut self) -> Result<Vec<String>, String> {
        let (plain, own) = (self.folder("work-plain")?, self.folder("work")?);
        let args = |folder: &Path| words(&["-m", "work", &shown(folder), "short"]);
        ended_well(&self.plain("work", &args(&plain), &[]).await?)?;
        fs::write(own.join("again"), "").map_err(|e| trouble(&own, &e))?;
        let runs = self.bench.runs().clone();
        let first = self.wanted("work", 1, args(&own), &[]);
        let release = async {
            await_files(&own, &|rank| format!("{rank}.0.txt")).await;
            let ahead = async {
                while !runs.has_imported_ahead(&JobUid::from("work")) {
                    tokio::time::sleep(LOOK).await;
                }
            };
            let _ = tokio::time::timeout(AHEAD_MAX, ahead).await;
            // An error: the script waits until the time of the whole trial is over.
            let _ = fs::write(own.join("go"), "");
        };
        let ended = beside(self.bench.run(first), release).await?;
        let mut wrong = as_it_should(&ended, [Exit::Code(1), Exit::Code(1)])?;
        if !wrong.is_empty() {
            return Ok(wrong);
        }
        let second = self.wanted("work", 2, args(&own), &[]);
        let ended = self.bench.run(second).await?;
        wrong = as_it_should(&ended, [Exit::Code(0), Exit::Code(0)])?;
        for start in ["0", "1"] {
            if wrong.is_empty() {
                wrong = same_files(
                    LANE,
                    (&plain, &|rank| format!("{rank}.0.txt")),
                    (&own, &|rank| format!("{rank}.{start}.txt")),
                )?;
            }
        }
        Ok(wrong)
    }

    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.left.join(name);
        fs::create_dir(&folder).map_err(|e| trouble(&folder, &e))?;
        Ok(folder)
    }

    fn wanted<'a>(
        &self,
        job: &'a str,
        generation: u64,
        args: Vec<String>,
        env: &[(&str, &str)],
    ) -> Wanted<'a>
    where
        Self: 'a,
    {
        Wanted {
            job,
            generation,
            lane: Launch::Fork,
            command: vec![self.python.to_owned()],
            args,
            env: own(env),
            dir: self.scripts.clone(),
        }
    }

    /// Runs a script under plain torchrun, as a user would. Returns the exit code (negative: a signal)
    /// and message of every failed rank, by local rank.
    async fn plain(
        &self,
        name: &str,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<serde_json::Value, String> {
        let (verdict, logs) = (
            self.left.join(format!("{name}.verdict")),
            self.left.join(format!("{name}.logs")),
        );
        let torchrun = [
            &shown(&self.scripts.join("plain.py")),
            &shown(&verdict),
            "--standalone",
            "--nproc-per-node",
            "2",
            "--redirects",
            "3",
            "--log-dir",
            &shown(&logs),
        ];
        let mut all = torchrun::passed(&self.env);
        all.extend(own(env));
        // As a launch sets them where a node runs several ranks.
        all.extend(own(&[("PYTHONUNBUFFERED", "1"), ("OMP_NUM_THREADS", "1")]));
        let program = Program {
            program: self.program.clone(),
            args: [words(&torchrun), args.to_vec()].concat(),
            env: all,
            dir: self.scripts.clone(),
            timeout_ms: PLAIN_MAX_MS,
        };
        let output = self.host.run(&program).await?;
        let said = fs::read(&verdict)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        said.ok_or_else(|| {
            let last = output.stderr.lines().last().unwrap_or("it said nothing");
            format!("plain torchrun does not run {name}: {last:.300}")
        })
    }
}

/// The job's own variables. No script of the suite opens a GPU.
fn own(env: &[(&str, &str)]) -> BTreeMap<String, String> {
    let hidden = ("CUDA_VISIBLE_DEVICES", "");
    env.iter()
        .chain([&hidden])
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn trouble(path: &Path, e: &std::io::Error) -> String {
    format!("{}: {e}", path.display())
}

fn ended_well(verdict: &serde_json::Value) -> Result<(), String> {
    match verdict.as_object().is_some_and(serde_json::Map::is_empty) {
        true => Ok(()),
        false => Err(format!("it fails under plain torchrun, too: {verdict}")),
    }
}

/// What differs if a generation was started in another lane, or ended otherwise than under torchrun.
/// An error: the suite could not be run, as on a machine that is too slow.
fn as_it_should(ended: &Ended, exits: [Exit; 2]) -> Result<Vec<String>, String> {
    if ended.lane != LANE {
        return Err(format!("lane {}: {}", ended.lane, ended.reason));
    }
    let was_killed = |exit: &Option<Exit>| matches!(exit, Some(Exit::Signal(9)));
    if ended.exits.iter().any(was_killed) && !exits.contains(&Exit::Signal(9)) {
        return Err(format!("a rank was killed: {}", ended.error));
    }
    let expected = exits.map(Some);
    if ended.exits != expected {
        let seen = &ended.exits;
        return Ok(vec![format!(
            "ranks ended with {seen:?} instead of {expected:?}: {}",
            ended.error
        )]);
    }
    Ok(Vec::new())
}

/// Waits for the first, and does the second meanwhile, which may never end.
async fn beside<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> T {
    let second = async {
        second.await;
        std::future::pending::<T>().await
    };
    tokio::select! {
        biased;
        outcome = first => outcome,
        outcome = second => outcome,
    }
}

/// Lets ranks that wait in this folder go on, once all have come so far.
async fn release(folder: &Path, name: &dyn Fn(&str) -> String) {
    await_files(folder, name).await;
    // An error: the script waits until the time of the whole trial is over.
    let _ = fs::write(folder.join("go"), "");
}

async fn await_files(folder: &Path, name: &dyn Fn(&str) -> String) {
    while !RANKS.iter().all(|rank| folder.join(name(rank)).exists()) {
        tokio::time::sleep(LOOK).await;
    }
}
