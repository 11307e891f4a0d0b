//! One launcher. It lives in `runs/<job uid>-launcher-<n>`, below its own runner, which ends soon
//! after the agent does. The runners that it has forked do not depend on it. What it has started by
//! itself, as an import may, ends with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use muster_core::{
    node::{
        account::Account,
        lane::Lane,
        launch,
        torchrun::{self, Launch, Site},
    },
    run::Assignment,
};
use muster_runner::{
    Folder, RunnerIdentity,
    place::{Left, Remains},
    record,
    wire::{self, AdoptSpec, Command, ParkSpec, Reply, Request, StandbySpec},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tracing::{debug, info, warn};

use super::{Outcome, imports::Imports, list::imported_ahead, standing::Standing};
use crate::{
    hold::hold,
    host::RunnerHost,
    last_words,
    preflight::{Answer, Preflight},
};

/// A launcher's runner ends this long after its agent. A restarted agent starts another launcher.
const IDLE_TIMEOUT_MS: u64 = 5_000;
/// A launcher forks in milliseconds. It waits up to 15 s for the forked runner, which syncs two
/// files.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);
/// Enough to kill one waiting process and to read its runner's last status.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between looks at what is left of a launcher: at first, and after a while.
const LOOK: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(200);
/// What still lives a minute after it was killed waits in the kernel.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit for importing torch and what the job imports. The coordinator waits as long for a node
/// that is to join.
const IMPORT_MAX: Duration = Duration::from_secs(60);
/// The limit for an import that nobody waits for. It has the lowest priority: beside jobs that used
/// all processors, 3 s of processor time took more than a minute.
const POOL_IMPORT_MAX: Duration = Duration::from_secs(600);
/// The longest answer of a runner: a sentence. Jobs can answer in its place.
const REPLY_MAX: usize = 1 << 20;
/// The room for a run's directory name: the job's uid has at most 256 bytes, and a generation 20
/// digits. The run's directory is written over the launcher's directory in the environment that the
/// kernel shows. A launcher without a job must therefore reserve this room.
const RUN_DIR_MAX: usize = 256 + 2 + 20;
/// The modules that torchrun itself imports, for the lane in which it runs in the launcher.
const TORCHRUN_SCRIPT: &str = "import torch.distributed.run, torch.distributed.launcher.api\n\
     import torch.distributed.elastic.agent.server.local_elastic_agent\n\
     import torch.distributed.elastic.rendezvous.static_tcp_rendezvous, torch.distributed.elastic.rendezvous.registry\n";
/// A file in the launcher's directory, from which it reads the script above.
const TORCHRUN_FILE: &str = "torchrun_imports.py";

/// A launcher that is ready, and the connection that keeps it.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(super) launcher: Launcher,
    stream: UnixStream,
    pub(super) bytes: u64,
    pub(super) imports: Box<Imports>,
    pub(super) standing: Box<Standing>,
    /// The GPUs that its ranks see.
    pub(super) gpus: Vec<String>,
    /// The files of its interpreter and packages, with their modification times at its start.
    files: Vec<(PathBuf, Option<SystemTime>)>,
}

/// What a caller must know to fork from a launcher.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    dir: PathBuf,
    /// Where its runner lives.
    host: Arc<dyn RunnerHost>,
    pub(super) number: u32,
    /// What it was started with, so far as a forked generation must have the same.
    pub(super) fit: Box<Fit>,
    /// It comes from the warm pool.
    pub(crate) pooled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    program: String,
    options: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    ranks: u32,
    account: Option<Account>,
}

/// Where a launcher is to be started, and with what.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) number: u32,
    pub(crate) host: Arc<dyn RunnerHost>,
    pub(crate) site: Site,
    /// Nobody waits for this launcher, so it takes no time from workers.
    pub(crate) background: bool,
}

pub(super) fn fit(assignment: &Assignment, launch: &Launch) -> Option<Fit> {
    let (options, _) = torchrun::ranks(assignment)?;
    let (program, cwd) = (launch.program.clone(), launch.dir.clone());
    Some(Fit {
        program,
        options,
        env: torchrun::lasting(launch),
        cwd,
        ranks: assignment.proc_per_node,
        account: launch.account.clone(),
    })
}

impl Place {
    /// Starts a launcher for a job, if the job can be started here at all. `ahead` means that the
    /// job has not run here yet, so the launcher imports what its script certainly imports.
    /// `pooled` is a launcher of the warm pool, which is used if it still fits. Whoever waits for the
    /// outcome is told it before the launchers in `unneeded` are ended, which may take
    /// [`END_TIMEOUT`] and [`GONE_TIMEOUT`].
    pub(crate) async fn start(
        self,
        assignment: &Assignment,
        preflight: &Preflight,
        ahead: bool,
        pooled: Option<Kept>,
        unneeded: &mut Vec<Kept>,
    ) -> Outcome {
        let checked = match self.check(assignment, preflight).await {
            Ok(checked) => checked,
            Err(outcome) => {
                unneeded.extend(pooled);
                return outcome;
            }
        };
        let (pooled, unused) = self.adopt(assignment, &checked, pooled).await;
        unneeded.extend(unused);
        let kept = match pooled {
            Some(kept) => Ok(kept),
            None => {
                self.bring_up(assignment, &checked, IMPORT_MAX, unneeded)
                    .await
            }
        };
        match kept {
            Ok(kept) => self.import_ahead(assignment, &checked, ahead, kept).await,
            Err(why) => Outcome::Without(why),
        }
    }

    /// Starts a launcher that belongs to no job.
    pub(crate) async fn start_for_pool(
        self,
        bare: &Assignment,
        preflight: &Preflight,
        unneeded: &mut Vec<Kept>,
    ) -> Outcome {
        let mut checked = match self.check(bare, preflight).await {
            Ok(checked) => checked,
            Err(outcome) => return outcome,
        };
        let root = self
            .dir
            .parent()
            .map_or(0, |root| root.as_os_str().len() + 1);
        let shown = format!("{:/<1$}", self.site.run_dir, root + RUN_DIR_MAX);
        checked
            .launch
            .env
            .insert(torchrun::RUN_DIR.to_owned(), shown);
        let kept = self.bring_up(bare, &checked, POOL_IMPORT_MAX, unneeded);
        match kept.await {
            Ok(kept) => Outcome::Ready(kept),
            Err(why) => Outcome::Without(why),
        }
    }

    async fn check(
        &self,
        assignment: &Assignment,
        preflight: &Preflight,
    ) -> Result<Checked, Outcome> {
        let refused = Outcome::Refused;
        let launch = launch::ahead(assignment, &self.site).map_err(refused)?;
        let answer = preflight
            .check(self.host.as_ref(), assignment, false, &launch, &self.site)
            .await
            .map_err(|refusal| refused(refusal.reason))?;
        let lane = launch::launcher_lane(assignment, &answer.interpreter);
        Ok(Checked {
            lane: lane.map_err(Outcome::Without)?,
            launch,
            answer,
        })
    }

    /// Gives a launcher of the pool to the job. If it no longer fits, it is returned as the second
    /// value.
    async fn adopt(
        &self,
        assignment: &Assignment,
        checked: &Checked,
        pooled: Option<Kept>,
    ) -> (Option<Kept>, Option<Kept>) {
        let Some(mut kept) = pooled else {
            return (None, None);
        };
        let done = async {
            let fit = fit(assignment, &checked.launch).ok_or("only Python has a launcher")?;
            if kept.files != checked.answer.files(self.host.as_ref()) {
                return Err("its packages were changed since it was started".to_owned());
            }
            let spec = AdoptSpec {
                env: checked.launch.env.clone(),
                cwd: checked.launch.dir.clone().into(),
            };
            ask(&mut kept.stream, Command::Adopt(spec), FORK_TIMEOUT).await?;
            kept.launcher = Launcher {
                fit: Box::new(fit),
                number: self.number,
                pooled: true,
                ..kept.launcher.clone()
            };
            Ok(())
        };
        match done.await {
            Ok(()) => (Some(kept), None),
            Err(why) => {
                info!(job = %assignment.run.job, "a launcher of the warm pool is not taken: {why}");
                (None, Some(kept))
            }
        }
    }

    async fn bring_up(
        &self,
        assignment: &Assignment,
        checked: &Checked,
        patience: Duration,
        unneeded: &mut Vec<Kept>,
    ) -> Result<Kept, String> {
        let Place {
            dir,
            number,
            host,
            site,
            background,
        } = self;
        let (launch, files) = (&checked.launch, checked.answer.files(self.host.as_ref()));
        let fit = fit(assignment, launch).ok_or("only Python has a launcher")?;
        let trouble =
            |what: &str, e: &dyn std::fmt::Display| format!("{}: {what}: {e}", dir.display());
        Folder::make_run(dir).map_err(|e| trouble("make", &e))?;
        let description = wire::Hold {
            generation: 0,
            node_rank: 0,
            nnodes: 1,
            world_size: 1,
            store: None,
            fence_after_ms: None,
            idle_timeout_ms: IDLE_TIMEOUT_MS,
            launcher: true,
            ..hold(assignment, site, std::net::Ipv4Addr::LOCALHOST.into())
        };
        record::write_atomic(dir, record::HOLD, &description)
            .map_err(|e| trouble(record::HOLD, &e))?;
        host.start(dir)
            .await
            .map_err(|e| trouble("start the runner", &e))?;
        let stream = host
            .reach(dir)
            .map_err(|e| trouble("reach the runner", &e))?;
        let park = ParkSpec {
            program: fit.program.clone(),
            options: fit.options.clone(),
            env: launch.env.clone(),
            cwd: launch.dir.clone().into(),
            background: *background,
            ranks: fit.ranks,
        };
        let launcher = Launcher {
            dir: dir.clone(),
            host: host.clone(),
            number: *number,
            fit: Box::new(fit),
            pooled: false,
        };
        let mut kept = Kept {
            launcher,
            stream,
            bytes: 0,
            imports: Box::default(),
            standing: Box::default(),
            gpus: assignment.gpus.clone(),
            files,
        };
        if let Err(why) = ask(&mut kept.stream, Command::Park(park), patience).await {
            let why = kept.launcher.why(&why);
            unneeded.push(kept);
            return Err(why);
        }
        Ok(kept)
    }

    /// Makes the launcher import what this job's ranks need besides torch.
    async fn import_ahead(
        &self,
        assignment: &Assignment,
        checked: &Checked,
        ahead: bool,
        mut kept: Kept,
    ) -> Outcome {
        let torchruns = kept.launcher.dir.join(TORCHRUN_FILE);
        let script = match checked.lane {
            Lane::Parked => put(&kept.launcher.dir, TORCHRUN_FILE, TORCHRUN_SCRIPT)
                .ok()
                .map(|()| torchruns),
            Lane::Fork | Lane::Direct if ahead => script(assignment, &checked.launch.dir),
            Lane::Fork | Lane::Direct | Lane::Exec | Lane::Cold => None,
        };
        if let Some(script) = script {
            kept.launcher.preload(&of_script(&script)).await;
            *kept.imports = Imports::sure(kept.launcher.imported_ahead());
        }
        Outcome::Ready(kept)
    }
}

/// A job that can be started here, and how.
struct Checked {
    launch: Launch,
    answer: Answer,
    lane: Lane,
}

/// The list that stands for what every run of a script imports.
fn of_script(script: &Path) -> String {
    format!("@{}\n", script.display())
}

/// The list of what every run of a job's script imports. None if its ranks run a module, or only
/// torchrun is forked.
pub(crate) fn sure_list(assignment: &Assignment, dir: &str) -> Option<String> {
    script(assignment, dir).map(|script| of_script(&script))
}

/// The script that the ranks run. None if they run a module.
fn script(assignment: &Assignment, dir: &str) -> Option<PathBuf> {
    let (_, argv) = torchrun::ranks(assignment)?;
    argv.first()
        .filter(|first| *first != "-m")
        .map(|script| Path::new(dir).join(script))
}

impl Launcher {
    /// Forks a runner for the directory of a generation, which holds its `hold.json`. Returns once
    /// that runner can be talked to.
    pub(crate) async fn fork(&self, dir: &Path) -> Result<(), String> {
        self.host
            .give(dir)
            .map_err(|e| format!("give the directory to its user: {e}"))?;
        let mut stream = self
            .host
            .reach(&self.dir)
            .map_err(|e| format!("its launcher cannot be reached: {e}"))?;
        let forked = ask(
            &mut stream,
            Command::Fork {
                dir: dir.to_owned(),
            },
            FORK_TIMEOUT,
        )
        .await;
        forked.map_err(|why| self.why(&why))
    }

    /// Makes a copy of the launcher import what `list` says, and serve the forks from then on. If
    /// it fails, the ranks import these modules themselves.
    pub(crate) async fn preload(&self, list: &str) {
        let told = async {
            put(&self.dir, record::PRELOAD, list)
                .map_err(|e| format!("{}: {e}", record::PRELOAD))?;
            let mut stream = self
                .host
                .reach(&self.dir)
                .map_err(|e| format!("it cannot be reached: {e}"))?;
            ask(&mut stream, Command::Preload, IMPORT_MAX).await
        };
        match told.await {
            Ok(()) => {
                debug!(dir = %self.dir.display(), "a launcher has imported what its job imports")
            }
            Err(why) => {
                info!(dir = %self.dir.display(), "a launcher goes on without its job's imports: {why}")
            }
        }
    }

    /// Tells the launcher which standbys to make for the next generation. If it fails, there are none.
    pub(crate) async fn standbys(&self, spec: StandbySpec) {
        let told = async {
            let mut stream = self
                .host
                .reach(&self.dir)
                .map_err(|e| format!("it cannot be reached: {e}"))?;
            ask(&mut stream, Command::Standbys(spec), FORK_TIMEOUT).await
        };
        if let Err(why) = told.await {
            info!(dir = %self.dir.display(), "a launcher makes no standbys: {why}");
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The modules that it has imported ahead, as lines of a record.
    pub(crate) fn imported_ahead(&self) -> BTreeSet<String> {
        imported_ahead(&self.dir)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The memory in bytes that it and its copies use. None if it is gone.
    pub(crate) fn memory(&self) -> Option<u64> {
        self.host.memory(&self.dir)
    }

    /// A refusal with the last error line that the launcher has printed, usually an exception.
    fn why(&self, refusal: &str) -> String {
        match last_words::of(&self.dir) {
            Ok(Some(line)) => format!("{refusal} (its last line: {line:.200})"),
            _ => refusal.to_owned(),
        }
    }
}

/// Writes a file into the launcher's directory.
fn put(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    Folder::of_run(dir)?.replace_unsynced(name, text.as_bytes())
}

impl Kept {
    pub(crate) fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Whether its runner has ended, as it does when its launcher has ended. The runner sends
    /// nothing without a request.
    pub(super) fn is_gone(&self) -> bool {
        !matches!(self.stream.try_read(&mut [0u8; 1]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Ends the launcher and removes its directory.
    pub(crate) async fn end(mut self) {
        let dir = &self.launcher.dir;
        let exchange = async {
            self.stream
                .write_all(&line(Command::Stop {
                    grace_ms: 0,
                    reason: "the launcher is not needed".into(),
                }))
                .await?;
            self.stream.write_all(&line(Command::Subscribe)).await?;
            // The runner of an ended launcher goes, which closes the stream.
            while self.stream.read(&mut [0u8; 4096]).await? > 0 {}
            io::Result::Ok(())
        };
        let ended = tokio::time::timeout(END_TIMEOUT, exchange).await;
        if ended.is_err() {
            warn!(dir = %dir.display(), "a launcher does not end, so its runner is killed");
        }
        prove_ended(self.launcher.host.as_ref(), dir, ended.is_err()).await;
        if let Err(e) = Folder::remove_run(dir) {
            debug!(dir = %dir.display(), "a launcher's directory cannot be removed: {e}");
        }
    }
}

/// Waits until nothing of a launcher lives, not even what its interpreter has started. `with_runner`:
/// its runner does not obey.
async fn prove_ended(host: &dyn RunnerHost, dir: &Path, with_runner: bool) {
    let runner = RunnerIdentity::read(dir).ok().flatten();
    let remains = Remains {
        dir,
        was: None,
        runner: runner.as_ref(),
        with_runner,
    };
    let begun = Instant::now();
    let mut gap = LOOK;
    loop {
        let left = match host.sweep(&remains).await {
            Ok(Left::Nothing) => return,
            Ok(Left::Unproven(why)) => {
                return warn!(dir = %dir.display(), "that nothing of a launcher lives cannot be proven: {why}");
            }
            Ok(Left::Living(pids)) => format!("processes {pids:?}"),
            Err(e) => e.to_string(),
        };
        if begun.elapsed() >= GONE_TIMEOUT {
            return warn!(dir = %dir.display(), "a launcher cannot be killed: {left}");
        }
        tokio::time::sleep(gap).await;
        gap = (gap * 2).min(LOOK_MAX);
    }
}

/// Ends a launcher that an earlier agent has left.
pub(crate) async fn clear(host: Arc<dyn RunnerHost>, dir: PathBuf) {
    let fit = Fit {
        program: String::new(),
        options: Vec::new(),
        env: BTreeMap::new(),
        cwd: String::new(),
        ranks: 0,
        account: None,
    };
    match host.reach(&dir) {
        Ok(stream) => {
            let launcher = Launcher {
                dir,
                host,
                number: 0,
                fit: Box::new(fit),
                pooled: false,
            };
            Kept {
                launcher,
                stream,
                bytes: 0,
                imports: Box::default(),
                standing: Box::default(),
                gpus: Vec::new(),
                files: Vec::new(),
            }
            .end()
            .await;
        }
        // Its runner is gone, and the kernel has killed the launcher with it. Its keeper ends the rest.
        Err(_) => {
            prove_ended(host.as_ref(), &dir, true).await;
            drop(Folder::remove_run(&dir));
        }
    }
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
    let mut line =
        serde_json::to_vec(&Request::new(1, command)).expect("requests have only text keys");
    line.push(b'\n');
    line
}

async fn read_reply(stream: &mut UnixStream) -> io::Result<Reply> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\n") {
        if bytes.len() > REPLY_MAX || stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(serde_json::from_slice(&bytes)?)
}
