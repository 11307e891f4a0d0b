//! One container of a job: its start, its end, and how the next agent finds it.
//!
//! It has a directory in the agent's state directory, `containers/<job uid>`, which it sees at the same path, with the
//! socket of its first process and the runner's program. The agent's note about it and the runtime's log lie beside that
//! directory, where no job can write. The note is written before anything is started.

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use muster_core::{
    container::{Runtime, START_MAX},
    id::JobUid,
    node::container::{
        self, Asked, Commands, Mount, PROGRAM, REMOVE_MAX, Wanted, due_to, last_line,
    },
    run::DueTo,
};
use muster_runner::{
    Folder,
    folder::read_named,
    pod::{self, Look, Question, RUNS},
    procfs::{self, Stat},
};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::found;
use crate::{
    config::{Config, Containers},
    containers::NotMade,
    host::ImageHost,
    preflight::Preflight,
};

/// The directory of all containers, below the agent's state directory.
const CONTAINERS: &str = "containers";
/// The end of the name of the agent's note about a container.
const NOTE: &str = ".json";
/// The same of what its runtime has said.
const LOG: &str = ".log";
/// How much of that is read. The last line counts.
const LOG_READ: u64 = 16 << 10;
/// How many containers an earlier agent can have left.
const LEFT_MAX: usize = 100_000;
/// Time between two looks at whether a container answers.
const LOOK: Duration = Duration::from_millis(50);
/// How long a container that runs may take to answer. It takes some milliseconds.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The longest line of a runtime that is told, in characters.
const SAID_MAX: usize = 500;
/// The longest program of a runner. One with debug information has 25 MB.
const RUNNER_MAX: u64 = 1 << 30;
/// The longest note. Most of it is the image's environment.
const NOTE_MAX: u64 = 4 << 20;
/// How long its first process may take to end. Nothing lives in the container by then.
const END_MAX: Duration = Duration::from_secs(10);
/// How long SIGKILL may take.
const KILL_MAX: Duration = Duration::from_secs(10);
/// A container in which runners can be started.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) asked: Asked,
    /// The environment that the image gives to its programs.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) host: Arc<ImageHost>,
    /// What its interpreters have said. Another image has others at the same paths.
    pub(crate) preflight: Arc<Preflight>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    asked: Asked,
    /// The runtime's name and program.
    runtime: String,
    program: PathBuf,
    /// The image's environment. None: the container was not ready yet.
    env: Option<BTreeMap<String, String>>,
}

/// Where a job's container is, or is to be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    node: String,
    job: JobUid,
    state_dir: PathBuf,
    runs: PathBuf,
    runner: PathBuf,
    engine: Option<Containers>,
}

impl Place {
    pub(crate) fn new(config: &Config, job: JobUid) -> Self {
        Self {
            node: config.node.to_string(),
            job,
            state_dir: config.state_dir.clone(),
            runs: config.holds_runs().join(RUNS),
            runner: config.runner.clone(),
            engine: config.containers.clone(),
        }
    }

    fn volume(&self) -> PathBuf {
        self.state_dir.join(CONTAINERS).join(self.job.as_str())
    }

    /// Several agents of one machine share what their runtime keeps.
    fn name(&self) -> String {
        format!("muster-{}-{}", self.node, self.job)
    }

    /// The container that serves this, which may be one that runs already. `may_replace`: no other run of the job lives here,
    /// which would lose its files with the container that it is in.
    pub(crate) async fn bring_up(
        &self,
        asked: &Asked,
        known: Option<Container>,
        may_replace: bool,
    ) -> Result<Container, NotMade> {
        if let Some(known) = known.filter(|known| known.asked.serves(asked)) {
            let volume = self.volume();
            if apart(move || pod::served_by(&volume)).await.is_ok() {
                return Ok(known);
            }
            warn!(job = %self.job, "its container has ended by itself: another is started");
        }
        if !may_replace && self.note().is_some() {
            return Err(NotMade::Later);
        }
        self.end().await;
        let begun = Instant::now();
        info!(job = %self.job, image = asked.image, "starting the container of a job");
        match self.start(asked).await {
            Ok(container) => {
                let seconds = begun.elapsed().as_secs_f64();
                info!(job = %self.job, image = asked.image, "its container is ready after {seconds:.1} s");
                Ok(container)
            }
            Err((due_to, why)) => {
                self.end().await;
                let (image, node) = (&asked.image, &self.node);
                let why = format!("image {image} cannot be run on {node}: {why}");
                Err(NotMade::Refused(due_to.because(why)))
            }
        }
    }

    /// How the runtime is asked.
    fn commands(
        &self,
        asked: &Asked,
        runtime: Runtime,
        program: &Path,
    ) -> Result<Commands, String> {
        let utf8 = |path: &Path| {
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| format!("{} is not UTF-8", path.display()))
        };
        let (work_dirs, devices) = (found::work_dirs(asked), found::devices());
        let mounts = self.engine.as_ref().map(|engine| &engine.mounts);
        let none: Vec<Mount> = Vec::new();
        container::commands(&Wanted {
            runtime,
            program: &utf8(program)?,
            image: &asked.image,
            name: &self.name(),
            volume: &utf8(&self.volume())?,
            runs: &utf8(&self.runs)?,
            work_dirs: &work_dirs,
            mounts: mounts.unwrap_or(&none),
            gpus: asked.gpus,
            devices: &devices,
        })
    }

    async fn start(&self, asked: &Asked) -> Result<Container, (DueTo, String)> {
        let of_node = |why: String| (DueTo::Node, why);
        let engine = { self.engine.as_ref() }.ok_or_else(|| {
            of_node("its agent has neither podman nor apptainer nor enroot".into())
        })?;
        let (runtime, program) = (engine.runtime, &engine.program);
        let commands = self.commands(asked, runtime, program).map_err(of_node)?;
        let mut note = Note {
            asked: asked.clone(),
            runtime: runtime.name().to_owned(),
            program: program.clone(),
            env: None,
        };
        self.furnish(&note, &commands)
            .map_err(|e| of_node(format!("{}: {e}", self.volume().display())))?;
        let said = |why: &str| {
            let last = self.last_said();
            (
                due_to(&last),
                format!(
                    "{}: {}",
                    runtime.name(),
                    if last.is_empty() { why } else { &last }
                ),
            )
        };
        let until = Instant::now() + START_MAX;
        let too_slow = || {
            let minutes = START_MAX.as_secs() / 60;
            let name = runtime.name();
            of_node(format!(
                "{name} was not ready after {minutes} min: {}",
                self.last_said()
            ))
        };
        for command in &commands.before {
            let mut child = self.spawn(command).map_err(|e| of_node(e.to_string()))?;
            let ended = tokio::time::timeout_at(until, child.process.wait()).await;
            match ended.map_err(|_| too_slow())? {
                Ok(status) if status.success() => {}
                Ok(status) => return Err(said(&status.to_string())),
                Err(e) => return Err(of_node(e.to_string())),
            }
        }
        let child = self.spawn(&commands.start);
        let mut child = child.map_err(|e| of_node(e.to_string()))?;
        let mut answers_until = until;
        loop {
            let volume = self.volume();
            if let Ok(look) = apart(move || pod::ask::<Look>(&volume, &Question::Look)).await {
                note.env = Some(look.env);
                self.write(&note).map_err(|e| of_node(e.to_string()))?;
                child.is_container = true;
                return Ok(self.container(note));
            }
            match child.process.try_wait() {
                Ok(Some(status)) if status.success() && commands.detaches => {
                    answers_until = answers_until.min(Instant::now() + ANSWER_MAX);
                }
                Ok(Some(status)) => return Err(said(&status.to_string())),
                Ok(None) => {}
                Err(e) => return Err(of_node(e.to_string())),
            }
            if Instant::now() >= until {
                return Err(too_slow());
            }
            if Instant::now() >= answers_until {
                let name = runtime.name();
                return Err(of_node(format!(
                    "{name} has started it, and it does not answer"
                )));
            }
            sleep(LOOK).await;
        }
    }

    /// The directory of all containers. Jobs do not see it.
    fn all(&self) -> io::Result<Folder> {
        Folder::trusted(&self.state_dir)?.make(CONTAINERS)
    }

    /// The name of a file of the agent about it.
    fn file(&self, end: &str) -> String {
        format!("{}{end}", self.job)
    }

    /// Makes its directory, with all that it needs in it.
    fn furnish(&self, note: &Note, commands: &Commands) -> io::Result<()> {
        self.write(note)?;
        let folder = self.all()?.make(self.job.as_str())?;
        // Nothing was started yet in which a run could be.
        Folder::trusted(self.runs.parent().unwrap_or(&self.state_dir))?.make(RUNS)?;
        folder.replace_program(PROGRAM, &read_named(&self.runner, RUNNER_MAX)?)?;
        for (name, text) in &commands.files {
            folder.replace_unsynced(name, text.as_bytes())?;
        }
        Ok(())
    }

    fn write(&self, note: &Note) -> io::Result<()> {
        let text = muster_sealed::seal(serde_json::to_vec(note)?);
        self.all()?.replace(self.file(NOTE), &text)
    }

    /// Removes its directory and the agent's files about it.
    fn remove(&self) -> io::Result<()> {
        Folder::remove_run(&self.volume())?;
        let all = self.all()?;
        all.remove(self.file(LOG))?;
        all.remove(self.file(NOTE))
    }

    /// Starts a command of the runtime, whose output goes to the log.
    fn spawn(&self, words: &[String]) -> io::Result<Running> {
        let log = self.all()?.append(self.file(LOG))?;
        let [program, args @ ..] = words else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(args).current_dir("/").stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        // Neither the agent's secrets nor the service manager's socket are for the runtime, which would use that.
        let own = |name: &str| name.starts_with("MUSTER_") || name == "NOTIFY_SOCKET";
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
            command.env_remove(name);
        }
        // Whoever interrupts the agent in a terminal does not mean the container.
        Ok(Running {
            process: command.process_group(0).spawn()?,
            is_container: false,
        })
    }

    /// The last line that its runtime has said.
    fn last_said(&self) -> String {
        let read = || {
            let mut log = self.all()?.open(self.file(LOG))?;
            let from = log.metadata()?.len().saturating_sub(LOG_READ);
            log.seek(SeekFrom::Start(from))?;
            let mut text = Vec::new();
            log.take(LOG_READ).read_to_end(&mut text)?;
            io::Result::Ok(text)
        };
        let text = read().unwrap_or_default();
        let last = last_line(&String::from_utf8_lossy(&text)).to_owned();
        last.chars().take(SAID_MAX).collect()
    }

    fn container(&self, note: Note) -> Container {
        Container {
            asked: note.asked,
            env: note.env.unwrap_or_default(),
            host: Arc::new(ImageHost::new(self.runner.clone(), self.volume())),
            preflight: Arc::default(),
        }
    }

    /// Ends the job's container, if there is one, and removes what is left of it. All of the job's runs are over by now,
    /// or are proven dead by the processes of this machine.
    pub(crate) async fn end(&self) {
        let Some(note) = self.note() else {
            // Nothing was started without a note.
            drop(self.remove());
            return;
        };
        if let Err(why) = self.stop().await {
            warn!(job = %self.job, "its container does not end: {why}");
        }
        let runtime = Runtime::of_report(&note.runtime);
        let commands = runtime.map(|one| self.commands(&note.asked, one, &note.program));
        let commands = commands.and_then(Result::ok).unwrap_or_default();
        for command in &commands.remove {
            let removed = async { self.spawn(command)?.process.wait().await };
            match timeout(REMOVE_MAX, removed).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(_)) => {
                    warn!(job = %self.job, "what is left of its container: {}", self.last_said())
                }
                Ok(Err(e)) => warn!(job = %self.job, "what is left of its container: {e}"),
                Err(_) => {
                    warn!(job = %self.job, "what is left of its container: {} takes too long", note.runtime)
                }
            }
        }
        if let Err(e) = self.remove() {
            warn!(job = %self.job, "the directory of its container: {e}");
        }
    }

    /// Ends its first process.
    async fn stop(&self) -> Result<(), String> {
        let volume = self.volume();
        let Ok(pid) = apart(move || pod::served_by(&volume)).await else {
            return Ok(());
        };
        // A process that has gone since has no number that is in use: it was there a moment ago.
        let Ok(first) = Stat::of(pid) else {
            return Ok(());
        };
        let why = "its job has left this node".to_owned();
        let (volume, end) = (self.volume(), Question::End { why });
        let asked: Result<(), _> = apart(move || pod::ask(&volume, &end)).await;
        if asked.is_ok() && is_gone(&first, END_MAX).await {
            return Ok(());
        }
        procfs::send(&first, Signal::KILL);
        match is_gone(&first, KILL_MAX).await {
            true => Ok(()),
            false => Err(format!("process {pid} cannot be killed")),
        }
    }

    fn note(&self) -> Option<Note> {
        let text = self
            .all()
            .and_then(|all| all.read(self.file(NOTE), NOTE_MAX));
        let text = text.ok()?;
        serde_json::from_slice(muster_sealed::open(&text).ok()?).ok()
    }
}

/// A command of the runtime, in a process group of its own. Whoever does not wait for it any more kills the group, unless
/// the command has become the container.
#[derive(Debug)]
struct Running {
    process: Child,
    is_container: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of one that was waited for there is no number.
        let group = self.process.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(group) = group.filter(|_| !self.is_container) {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// The containers that an earlier agent has left: those that still run, and the jobs of the others, which are to be ended.
pub(crate) async fn left(config: &Config) -> (Vec<(JobUid, Container)>, Vec<JobUid>) {
    let names = Folder::trusted(&config.state_dir)
        .and_then(|dir| dir.below(CONTAINERS)?.names(LEFT_MAX))
        .unwrap_or_default();
    let (mut running, mut ended) = (Vec::new(), Vec::new());
    let notes = names
        .iter()
        .filter_map(|name| name.to_str()?.strip_suffix(NOTE));
    for job in notes {
        let job = JobUid::from(job);
        let place = Place::new(config, job.clone());
        let volume = place.volume();
        let runs = apart(move || pod::served_by(&volume)).await.is_ok();
        // Without its environment it was not ready.
        match place.note().filter(|note| runs && note.env.is_some()) {
            Some(note) => {
                info!(%job, image = note.asked.image, "found the container of a job");
                running.push((job, place.container(note)));
            }
            None => ended.push(job),
        }
    }
    (running, ended)
}

/// Whether this process is gone within that time. One that only waits for its parent is.
async fn is_gone(process: &Stat, within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        let now = Stat::of(process.pid);
        if !now.is_ok_and(|now| now.start_time == process.start_time && !now.is_dead()) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        sleep(LOOK).await;
    }
}

/// Asks a container on a thread for calls that may block.
async fn apart<T: Send + 'static, E: Send + 'static>(
    ask: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Option<E>> {
    let answer = tokio::task::spawn_blocking(ask).await;
    answer.map_err(|_| None)?.map_err(Some)
}
