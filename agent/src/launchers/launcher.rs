//! One launcher. It lives in `runs/<job uid>-launcher-<n>`, below a runner of its own that ends soon after its agent does. The runners it has
//! forked do not depend on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_core::{
    id::Generation,
    node::{
        lane::{self, Lane},
        torchrun::{self, Launch, Site},
    },
    run::{Assignment, Endpoint},
};
use muster_runner::{
    connect, record,
    wire::{self, Command, ParkSpec, Reply, Request},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tracing::{debug, info, warn};

use super::Outcome;
use crate::{last_words, preflight::Preflight, prepare};

/// A launcher's runner ends this long after its agent: an agent that is restarted starts another.
const IDLE_TIMEOUT_MS: u64 = 5_000;
/// A launcher forks in milliseconds, and waits 15 s for the runner it has forked, which syncs two files.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);
/// For killing one process that only waits, and its runner's last words.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// For the import of torch, and of what the job imports: as long as the coordinator waits for a node that is to join.
const IMPORT_MAX: Duration = Duration::from_secs(60);
/// Longest list of modules that is handed on: 10,000 names and files of 100 bytes.
const MODULES_BYTES: u64 = 1 << 20;
/// What torchrun itself imports, for the lane in which it runs in the launcher.
const TORCHRUN_SCRIPT: &str = "import torch.distributed.run, torch.distributed.launcher.api\n\
     import torch.distributed.elastic.agent.server.local_elastic_agent\n\
     import torch.distributed.elastic.rendezvous.static_tcp_rendezvous, torch.distributed.elastic.rendezvous.registry\n";
/// Lies in the launcher's directory for it to read.
const TORCHRUN_FILE: &str = "torchrun_imports.py";

/// A launcher that is ready, and the connection that keeps it.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(super) launcher: Launcher,
    stream: UnixStream,
    pub(super) bytes: u64,
    /// The generation whose imports were looked at last.
    pub(super) seen: Option<Generation>,
    /// Modules that a copy of it was told to import.
    pub(super) told: BTreeSet<String>,
}

/// What whoever forks from a launcher must know of it.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    dir: PathBuf,
    pub(super) number: u32,
    /// What it was started with, as far as it must be the same in a generation that is forked from it.
    pub(super) fit: Fit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    program: String,
    options: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    ranks: u32,
}

/// Where one is to be started, and with what.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) number: u32,
    pub(crate) runner: PathBuf,
    pub(crate) site: Site,
    /// Nobody waits for it: it takes no time from workers.
    pub(crate) background: bool,
}

pub(super) fn fit(assignment: &Assignment, launch: &Launch) -> Option<Fit> {
    let (options, _) = torchrun::ranks(assignment)?;
    let (program, cwd) = (launch.program.clone(), launch.dir.clone());
    Some(Fit { program, options, env: torchrun::lasting(launch), cwd, ranks: assignment.proc_per_node })
}

impl Place {
    /// Starts a launcher for a job, if the job can be started here at all. `ahead`: the job has not run here yet, so that the launcher
    /// imports what its script certainly imports.
    pub(crate) async fn start(self, assignment: &Assignment, preflight: &Preflight, ahead: bool) -> Outcome {
        let anywhere = Endpoint { host: self.site.report.address.clone(), port: 1 };
        let checked = async {
            let launch = torchrun::launch(assignment, torchrun::Meeting::Served(&anywhere), &self.site)?;
            let interpreter = preflight.check(assignment, &launch, &self.site).await?.interpreter;
            Ok((interpreter, launch))
        };
        let (interpreter, launch) = match checked.await {
            Ok(fit) => fit,
            Err(why) => return Outcome::Refused(why),
        };
        let python = torchrun::ranks(assignment).is_some();
        let lane = match lane::choose(assignment.launch, python, &interpreter) {
            (Lane::Cold, why) => return Outcome::Without(why),
            _ if !python => return Outcome::Without("only Python has a launcher".into()),
            (lane, _) => lane,
        };
        match self.start_in(assignment, launch, lane, ahead).await {
            Ok(kept) => Outcome::Ready(kept),
            Err(why) => Outcome::Without(why),
        }
    }

    async fn start_in(&self, assignment: &Assignment, launch: Launch, lane: Lane, ahead: bool) -> Result<Kept, String> {
        let Place { dir, number, runner, site, background } = self;
        let fit = fit(assignment, &launch).ok_or("only Python has a launcher")?;
        let trouble = |what: &str, e: &dyn std::fmt::Display| format!("{}: {what}: {e}", dir.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| trouble("make", &e))?;
        let hold = wire::Hold {
            generation: 0,
            node_rank: 0,
            nnodes: 1,
            world_size: 1,
            store: None,
            fence_after_ms: None,
            idle_timeout_ms: IDLE_TIMEOUT_MS,
            launcher: true,
            ..prepare::hold(assignment, site, std::net::Ipv4Addr::LOCALHOST.into())
        };
        record::write_atomic(dir, record::HOLD, &hold).map_err(|e| trouble(record::HOLD, &e))?;
        prepare::start_runner(runner, dir).await.map_err(|e| trouble("start the runner", &e))?;
        let stream = reach(dir).map_err(|e| trouble("reach the runner", &e))?;
        let park = ParkSpec {
            program: fit.program.clone(),
            options: fit.options.clone(),
            env: launch.env,
            cwd: launch.dir.clone().into(),
            background: *background,
            ranks: fit.ranks,
        };
        let launcher = Launcher { dir: dir.clone(), number: *number, fit };
        let mut kept = Kept { launcher, stream, bytes: 0, seen: None, told: BTreeSet::new() };
        if let Err(why) = ask(&mut kept.stream, Command::Park(park), IMPORT_MAX).await {
            let why = kept.launcher.why(&why);
            kept.end().await;
            return Err(why);
        }
        let script = match lane {
            Lane::Parked => fs::write(dir.join(TORCHRUN_FILE), TORCHRUN_SCRIPT).ok().map(|()| dir.join(TORCHRUN_FILE)),
            Lane::Fork | Lane::Direct if ahead => script(assignment, &launch.dir),
            Lane::Fork | Lane::Direct | Lane::Cold => None,
        };
        if let Some(script) = script {
            kept.launcher.preload(&format!("@{}\n", script.display())).await;
        }
        Ok(kept)
    }
}

/// The script that the ranks run, if it is one.
fn script(assignment: &Assignment, dir: &str) -> Option<PathBuf> {
    let (_, argv) = torchrun::ranks(assignment)?;
    argv.first().filter(|first| *first != "-m").map(|script| Path::new(dir).join(script))
}

impl Launcher {
    /// Forks a runner for the directory of a generation, in which its `hold.json` lies. Returns when it can be talked to.
    pub(crate) async fn fork(&self, dir: &Path) -> Result<(), String> {
        let mut stream = reach(&self.dir).map_err(|e| format!("its launcher cannot be reached: {e}"))?;
        let forked = ask(&mut stream, Command::Fork { dir: dir.to_owned() }, FORK_TIMEOUT).await;
        forked.map_err(|why| self.why(&why))
    }

    /// Has a copy of the launcher import what `list` says, and serve the forks from then on. Without it, ranks import by themselves.
    pub(crate) async fn preload(&self, list: &str) {
        let told = async {
            fs::write(self.dir.join(record::PRELOAD), list).map_err(|e| format!("{}: {e}", record::PRELOAD))?;
            let mut stream = reach(&self.dir).map_err(|e| format!("it cannot be reached: {e}"))?;
            ask(&mut stream, Command::Preload, IMPORT_MAX).await
        };
        match told.await {
            Ok(()) => debug!(dir = %self.dir.display(), "a launcher has imported what its job imports"),
            Err(why) => info!(dir = %self.dir.display(), "a launcher goes on without its job's imports: {why}"),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The memory it uses with its copies: the proportional set size (Pss), since ranks share its pages. None if it is gone.
    pub(crate) fn memory(&self) -> Option<u64> {
        let runner = muster_runner::Record::read(&self.dir).ok()?.runner?.pid;
        let launchers = children(runner)?;
        let copies = launchers.iter().filter_map(|pid| children(*pid)).flatten().collect::<Vec<_>>();
        let kib = |pid: &i32| {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        };
        Some(launchers.iter().chain(&copies).filter_map(kib).sum::<u64>() * 1_024)
    }

    /// A refusal with the last line that the launcher has printed, which is as a rule an exception.
    fn why(&self, refusal: &str) -> String {
        let log = self.dir.join(record::LOGS).join(record::LAUNCHER_LOG);
        match last_words::of(&log) {
            Ok(Some(line)) => format!("{refusal} (its last line: {line:.200})"),
            _ => refusal.to_owned(),
        }
    }
}

fn children(pid: i32) -> Option<Vec<i32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// What ranks that ran have imported.
pub(crate) fn read_some(path: &Path) -> String {
    use io::Read;
    let mut bytes = Vec::new();
    let _ = fs::File::open(path).map(|file| file.take(MODULES_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Kept {
    pub(crate) fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Ends it and removes what it left.
    pub(crate) async fn end(mut self) {
        let dir = &self.launcher.dir;
        let exchange = async {
            self.stream.write_all(&line(Command::Stop { grace_ms: 0, reason: "the launcher is not needed".into() })).await?;
            self.stream.write_all(&line(Command::Subscribe)).await?;
            // The runner of a launcher that has ended goes.
            while self.stream.read(&mut [0u8; 4096]).await? > 0 {}
            io::Result::Ok(())
        };
        match tokio::time::timeout(END_TIMEOUT, exchange).await {
            Ok(_) => {}
            Err(_) => return warn!(dir = %dir.display(), "a launcher does not end"),
        }
        if let Err(e) = fs::remove_dir_all(dir) {
            debug!(dir = %dir.display(), "a launcher's directory cannot be removed: {e}");
        }
    }
}

/// Ends what an earlier agent has left.
pub(crate) async fn clear(dir: PathBuf) {
    let fit = Fit { program: String::new(), options: Vec::new(), env: BTreeMap::new(), cwd: String::new(), ranks: 0 };
    match reach(&dir) {
        Ok(stream) => {
            let launcher = Launcher { dir, number: 0, fit };
            Kept { launcher, stream, bytes: 0, seen: None, told: BTreeSet::new() }.end().await;
        }
        // Its runner is gone, and with it, by the kernel's hand, its launcher.
        Err(_) => drop(fs::remove_dir_all(&dir)),
    }
}

fn reach(dir: &Path) -> io::Result<UnixStream> {
    let stream = connect(dir)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn ask(stream: &mut UnixStream, command: Command, patience: Duration) -> Result<(), String> {
    let exchange = async {
        stream.write_all(&line(command)).await?;
        read_reply(stream).await
    };
    match tokio::time::timeout(patience, exchange).await {
        Ok(Ok(reply)) => reply.error.map_or(Ok(()), |refusal| Err(refusal.text)),
        Ok(Err(e)) => Err(format!("its runner: {e}")),
        Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
    }
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
