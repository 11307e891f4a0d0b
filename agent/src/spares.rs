//! Spares: launchers that have imported torch, one per job on this node, for its next generation. Which jobs get one is
//! `core::node::spare`'s decision; this file makes, hands over and ends them.
//!
//! A spare is a runner of its own in `runs/<job uid>-spare-<n>`. It lives with its agent: a runner that nobody talks to ends soon. Adopted, it
//! gets the content of its new generation (`hold.json` is the moment of truth), then its directory the generation's name. An agent
//! killed in between finds a spare's directory that names a generation, and gives it its name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_core::{
    id::JobUid,
    node::{
        lane::{self, Lane},
        torchrun::{self, Launch, Site},
    },
    run::{Assignment, Endpoint, SpareState},
    time::Timestamp,
};
use muster_runner::{
    connect, record,
    wire::{self, Command, ParkSpec, Reply, Request},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tracing::{debug, warn};

use crate::{preflight::Preflight, prepare};

/// A spare's runner ends this long after its agent: an agent that is restarted makes another.
const IDLE_TIMEOUT_MS: u64 = 5_000;
/// An answer of a runner to an order: two synced files at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Killing one process that only waits, and its runner's last words.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// When a launcher has imported all it shall: it takes 2 to 5 s here, with a list of modules up to twice that.
pub(crate) const GROWN: Duration = Duration::from_secs(10);
/// What DistributedDataParallel imports when the first model is wrapped: seconds, which a script that is read does not show.
const DDP_MODULES: &str = "torch._dynamo\n";
/// The file a launcher leaves when it has imported what it shall.
const PARKED: &str = "parked";
/// How often that file is looked for: nobody stands still meanwhile, and an import takes seconds.
const LOOK: Duration = Duration::from_millis(50);
/// As long as the coordinator waits.
const IMPORT_MAX: Duration = Duration::from_secs(60);
/// Longest list of modules that is handed on: 10,000 names of 100 bytes.
const MODULES_BYTES: u64 = 1 << 20;
/// What torchrun itself imports, for the lane in which it runs in the launcher.
const TORCHRUN_MODULES: &str = "torch.distributed.run\ntorch.distributed.launcher.api\ntorch.distributed.elastic.agent.server.local_elastic_agent\n\
     torch.distributed.elastic.rendezvous.static_tcp_rendezvous\ntorch.distributed.elastic.rendezvous.registry\n";

/// All spares of one node.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    slots: BTreeMap<JobUid, Slot>,
    /// When each of these jobs last had anything on this node.
    last_here: BTreeMap<JobUid, Timestamp>,
    pub(crate) next: u32,
}

#[derive(Debug)]
enum Slot {
    Preparing(u32),
    Ready(Spare),
    /// Not tried again in this generation.
    Failed(SpareState),
}

/// Where one is to be made, and with what.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) number: u32,
    pub(crate) runner: PathBuf,
    pub(crate) site: Site,
}

/// A runner with a parked launcher, and the connection that keeps it.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) dir: PathBuf,
    /// What the launcher was started with, as far as it must be the same when it is used.
    fit: ParkSpec,
    stream: UnixStream,
    number: u32,
    bytes: u64,
    /// What is told of it; nothing while it imports.
    state: Option<SpareState>,
}

/// The outcome of making one.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) job: JobUid,
    pub(crate) number: u32,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Ready(Spare),
    /// There is none; the job starts without.
    Without(String),
    /// The job cannot be started on this node, told to its user.
    Refused(String),
    /// One that was made has imported what it shall, or why it will not.
    Imported(Result<(), String>),
    /// What one that is ready takes in memory, once it has imported what it shall.
    Size(u64),
}

impl Spares {
    /// Jobs that have one, are about to, or cannot, and when each last had anything here.
    pub(crate) fn jobs(&self) -> BTreeMap<JobUid, Timestamp> {
        let last_here = |job: &JobUid| self.last_here.get(job).copied().unwrap_or_default();
        self.slots.keys().map(|job| (job.clone(), last_here(job))).collect()
    }

    /// Notes which jobs have something here now.
    pub(crate) fn are_here(&mut self, jobs: BTreeSet<JobUid>, now: Timestamp) {
        self.last_here.retain(|job, _| self.slots.contains_key(job));
        self.last_here.extend(jobs.into_iter().map(|job| (job, now)));
    }

    /// Notes that one is being made, and gives its number.
    pub(crate) fn begin(&mut self, job: &JobUid) -> u32 {
        self.next += 1;
        self.slots.insert(job.clone(), Slot::Preparing(self.next));
        self.next
    }

    /// Takes a made one in; one that nobody waits for any more, or with which all take more memory than they may, is given back, to be ended.
    pub(crate) fn made(&mut self, made: Made, memory_max: Option<u64>) -> Option<Spare> {
        let awaited = matches!(self.slots.get(&made.job), Some(Slot::Preparing(number)) if *number == made.number);
        match made.outcome {
            Outcome::Ready(spare) if !awaited => return Some(spare),
            Outcome::Ready(spare) => drop(self.slots.insert(made.job, Slot::Ready(spare))),
            Outcome::Without(why) => {
                warn!(job = %made.job, "no spare launcher: {why}");
                if awaited {
                    self.slots.insert(made.job, Slot::Failed(SpareState::Without(why)));
                }
            }
            Outcome::Refused(why) => {
                warn!(job = %made.job, "it cannot be started here: {why}");
                if awaited {
                    self.slots.insert(made.job, Slot::Failed(SpareState::Refused(why)));
                }
            }
            Outcome::Imported(outcome) => {
                if let Some(Slot::Ready(spare)) = self.slots.get_mut(&made.job)
                    && spare.number == made.number
                {
                    spare.state = Some(outcome.map_or_else(SpareState::Without, |()| SpareState::Ready));
                }
            }
            Outcome::Size(bytes) => {
                match self.slots.get_mut(&made.job) {
                    Some(Slot::Ready(spare)) if spare.number == made.number => spare.bytes = bytes,
                    // Used or ended since.
                    _ => return None,
                }
                let all: u64 = self.slots.keys().map(|job| self.bytes(job)).sum();
                if let Some(most) = memory_max.filter(|most| all > *most) {
                    warn!(job = %made.job, bytes, "spare launchers take {all} bytes of the {most} they may: this one is ended");
                    let state = SpareState::Without(format!("spare launchers may take {most} bytes here, and would take {all}"));
                    if let Some(Slot::Ready(spare)) = self.slots.insert(made.job, Slot::Failed(state)) {
                        return Some(spare);
                    }
                }
            }
        }
        None
    }

    /// Memory of the job's spare, 0 if there is none or it is not known yet.
    pub(crate) fn bytes(&self, job: &JobUid) -> u64 {
        match self.slots.get(job) {
            Some(Slot::Ready(spare)) => spare.bytes,
            _ => 0,
        }
    }

    /// The job's spare, for its next generation; from then on it may get another.
    pub(crate) fn take(&mut self, job: &JobUid) -> Option<Spare> {
        match self.slots.remove(job) {
            Some(Slot::Ready(spare)) => Some(spare),
            // Nobody waits for it: it is ended when it comes.
            Some(Slot::Preparing(_) | Slot::Failed(_)) | None => None,
        }
    }

    /// What became of the job's, for the coordinator; nothing while it is being made.
    pub(crate) fn state(&self, job: &JobUid) -> Option<SpareState> {
        match self.slots.get(job)? {
            Slot::Preparing(_) => None,
            Slot::Ready(spare) => spare.state.clone(),
            Slot::Failed(state) => Some(state.clone()),
        }
    }
}

/// What a launcher must have been started with to serve this launch.
fn fit(assignment: &Assignment, launch: &Launch) -> Option<ParkSpec> {
    let (options, _) = torchrun::ranks(assignment)?;
    let (program, cwd) = (launch.program.clone(), launch.dir.clone().into());
    Some(ParkSpec { program, options, env: torchrun::lasting(launch), cwd })
}

impl Place {
    /// Makes a spare for a job that is about to come here, if it can be started here at all.
    pub(crate) async fn make_ahead(self, assignment: &Assignment, preflight: &Preflight) -> Outcome {
        let anywhere = Endpoint { host: self.site.report.address.clone(), port: 1 };
        let checked = async {
            let launch = torchrun::launch(assignment, torchrun::Meeting::Served(&anywhere), &self.site)?;
            let interpreter = preflight.check(assignment, &launch, &self.site).await?.interpreter;
            Ok((interpreter, launch.dir))
        };
        let (interpreter, dir) = match checked.await {
            Ok(fit) => fit,
            Err(why) => return Outcome::Refused(why),
        };
        let python = torchrun::ranks(assignment).is_some();
        match lane::choose(assignment.launch, python, &interpreter) {
            (Lane::Cold, why) => Outcome::Without(why),
            _ if !python => Outcome::Without("only Python can be started ahead".into()),
            (lane, _) => match self.make(assignment, lane, &guessed_imports(assignment, &dir)).await {
                Ok(spare) => Outcome::Ready(spare),
                Err(why) => Outcome::Without(why),
            },
        }
    }

    /// Makes a spare. `modules`: what it imports beside torch, as the launcher reads it, where ranks are forked from it.
    pub(crate) async fn make(&self, assignment: &Assignment, lane: Lane, modules: &str) -> Result<Spare, String> {
        let Place { dir, number, runner, site } = self;
        let anywhere = Endpoint { host: site.report.address.clone(), port: 1 };
        let launch = torchrun::launch(assignment, torchrun::Meeting::Served(&anywhere), site)?;
        let fit = fit(assignment, &launch).ok_or("only Python can be started ahead")?;
        let trouble = |what: &str, e: &dyn std::fmt::Display| format!("{}: {what}: {e}", dir.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| trouble("make", &e))?;
        let modules = match lane {
            Lane::Fork | Lane::Direct => modules,
            Lane::Cold | Lane::Parked => TORCHRUN_MODULES,
        };
        fs::write(dir.join(record::PRELOAD), modules).map_err(|e| trouble(record::PRELOAD, &e))?;
        let hold = wire::Hold {
            generation: 0,
            node_rank: 0,
            nnodes: 1,
            world_size: 1,
            store: None,
            fence_after_ms: None,
            idle_timeout_ms: IDLE_TIMEOUT_MS,
            spare: true,
            ..prepare::hold(assignment, site, std::net::Ipv4Addr::LOCALHOST.into())
        };
        record::write_atomic(dir, record::HOLD, &hold).map_err(|e| trouble(record::HOLD, &e))?;
        prepare::start_runner(runner, dir).await.map_err(|e| trouble("start the runner", &e))?;
        let stream = reach(dir).map_err(|e| trouble("reach the runner", &e))?;
        let park = ParkSpec { env: launch.env, ..fit.clone() };
        let mut spare = Spare { dir: dir.clone(), fit, stream, number: *number, bytes: 0, state: None };
        match spare.ask(Command::Park(park)).await {
            Ok(()) => Ok(spare),
            Err(why) => {
                spare.end().await;
                Err(why)
            }
        }
    }
}

/// What a script imports that has not run on this node yet, as the launcher reads it (`preload.txt`). `dir`: where it is run.
fn guessed_imports(assignment: &Assignment, dir: &str) -> String {
    let argv = torchrun::ranks(assignment).map(|(_, argv)| argv).unwrap_or_default();
    let script = argv.first().filter(|first| *first != "-m");
    let line = script.map(|script| format!("@{}\n", Path::new(dir).join(script).display()));
    format!("{DDP_MODULES}{}", line.unwrap_or_default())
}

/// Returns once the launcher in `dir` has imported what it shall, or why it will not.
pub(crate) async fn imported(dir: &Path) -> Result<(), String> {
    let parked = dir.join(PARKED);
    let wait = async {
        while !parked.exists() {
            if launchers(dir).is_none_or(|pids| pids.is_empty()) {
                return Err("the launcher has ended: its log says why".to_owned());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    };
    let late = || Err(format!("its imports take longer than {} s", IMPORT_MAX.as_secs()));
    tokio::time::timeout(IMPORT_MAX, wait).await.unwrap_or_else(|_| late())
}

/// The children of the runner in `dir`; None if it is gone.
fn launchers(dir: &Path) -> Option<Vec<String>> {
    let runner = muster_runner::Record::read(dir).ok()?.runner?.pid;
    let children = fs::read_to_string(format!("/proc/{runner}/task/{runner}/children")).ok()?;
    Some(children.split_whitespace().map(str::to_owned).collect())
}

/// What the launcher in `dir` takes: its share of pages that others use as well (Pss), as what ends with it. None if it is gone.
pub(crate) fn memory(dir: &Path) -> Option<u64> {
    let kib = |pid: String| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
    };
    Some(launchers(dir)?.into_iter().filter_map(kib).sum::<u64>() * 1_024)
}

/// What ranks that ran have imported.
pub(crate) fn read_some(path: &Path) -> String {
    use io::Read;
    let mut text = String::new();
    let _ = fs::File::open(path).map(|file| file.take(MODULES_BYTES).read_to_string(&mut text));
    text
}

impl Spare {
    pub(crate) fn fits(&self, assignment: &Assignment, launch: &Launch) -> bool {
        fit(assignment, launch).is_some_and(|wanted| wanted == self.fit)
    }

    /// Makes it the runner of a generation, in the directory `to`.
    pub(crate) async fn adopt(mut self, hold: wire::Hold, to: &Path) -> Result<(), String> {
        let outcome = async {
            self.ask(Command::Adopt { hold: Box::new(hold) }).await?;
            fs::rename(&self.dir, to).map_err(|e| format!("name it {}: {e}", to.display()))
        };
        match outcome.await {
            Ok(()) => Ok(()),
            Err(why) => {
                self.end().await;
                Err(why)
            }
        }
    }

    async fn ask(&mut self, command: Command) -> Result<(), String> {
        let exchange = async {
            self.stream.write_all(&line(command)).await?;
            read_reply(&mut self.stream).await
        };
        let reply = match tokio::time::timeout(ANSWER_TIMEOUT, exchange).await {
            Ok(reply) => reply.map_err(|e| format!("{}: runner: {e}", self.dir.display()))?,
            Err(_) => return Err(format!("{}: the runner does not answer", self.dir.display())),
        };
        reply.error.map_or(Ok(()), |refusal| Err(refusal.text))
    }

    /// Ends it and removes what it left.
    pub(crate) async fn end(mut self) {
        let exchange = async {
            self.stream.write_all(&line(Command::Stop { grace_ms: 0, reason: "the spare is not needed".into() })).await?;
            self.stream.write_all(&line(Command::Subscribe)).await?;
            // The runner of a dead spare goes.
            while self.stream.read(&mut [0u8; 4096]).await? > 0 {}
            io::Result::Ok(())
        };
        match tokio::time::timeout(END_TIMEOUT, exchange).await {
            Ok(_) => {}
            Err(_) => return warn!(dir = %self.dir.display(), "a spare does not end"),
        }
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            debug!(dir = %self.dir.display(), "a spare's directory cannot be removed: {e}");
        }
    }
}

/// Ends what an earlier agent has left ready.
pub(crate) async fn clear(dir: PathBuf) {
    let stand_in = ParkSpec { program: String::new(), options: Vec::new(), env: BTreeMap::new(), cwd: PathBuf::new() };
    match reach(&dir) {
        Ok(stream) => Spare { dir, fit: stand_in, stream, number: 0, bytes: 0, state: None }.end().await,
        // Its runner is gone, and with it, by the kernel's hand, its launcher.
        Err(_) => drop(fs::remove_dir_all(&dir)),
    }
}

fn reach(dir: &Path) -> io::Result<UnixStream> {
    let stream = connect(dir)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

fn line(command: Command) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Request::new(1, command)).expect("requests have only text keys");
    line.push(b'\n');
    line
}

async fn read_reply(stream: &mut UnixStream) -> io::Result<Reply> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\n") {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(serde_json::from_slice(&bytes)?)
}
