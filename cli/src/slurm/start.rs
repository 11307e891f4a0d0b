//! Starts the cluster of an allocation: the coordinator's step, then those of the agents.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    time::Duration,
};

use muster_proto::v1::NodeState;
use muster_rpc::peer;
use rustix::fs::OFlags;
use tokio::time::{Instant, sleep};

use super::{
    LABEL_JOB, Up,
    allocation::{Allocation, srun_may_see},
    dir, end,
    record::{self, Joined, Joins, Record, Serves, StepRecord},
};
use crate::{
    commands::get,
    context::Context,
    fail::Failure,
    local::{DETACH, Stops, make_private, process::Identity, secure::enroll},
    output::words,
};

/// The pause between two looks at what a step has printed.
const LOOK: Duration = Duration::from_millis(50);
/// How many lines of a step's log are shown if it fails.
const LAST_WORDS: usize = 15;
/// The step has all of the allocation's processors and memory on its nodes beside other steps, and a node
/// or a task that fails ends nothing else.
const STEP: [&str; 11] = [
    "--no-kill",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--overlap",
    "--ntasks-per-node=1",
    "--cpu-bind=none",
    "--mem=0",
    "--mpi=none",
    "--export=ALL",
    "--unbuffered",
    "--quit-on-interrupt",
];

pub(super) async fn up(cx: &Context, args: &Up) -> Result<(), Failure> {
    let allocation = Allocation::here()?;
    let dir = dir(&allocation.job);
    let begun = Instant::now();
    let own = super::own(cx, &allocation.job);
    // From here on nothing ends this process before what it has begun is ended.
    let mut stops = Stops::listen()?;
    let record = claim(cx, &allocation)?;
    let started = tokio::select! {
        started = bring_up(&own, record, &allocation, args) => started,
        () = stops.next() => Err(Failure::Interrupted("interrupted: what was started is ended".into())),
    };
    match started {
        Ok(ready) => {
            cx.say(format!(
                "cluster of allocation {} up in {:.1}s; its logs are in {}",
                allocation.job,
                begun.elapsed().as_secs_f64(),
                dir.display()
            ));
            cx.print(&format!(
                "{} ready\n",
                words::count(u64::from(ready), "node")
            ))
        }
        Err(failure) => {
            if let Err(left) = end::take_down(&own, &dir, None, true).await {
                cx.warn(left);
            }
            Err(failure)
        }
    }
}

/// Makes the record of a new cluster, so that no other command starts one in this allocation. One that a
/// requeued job has left, or whose steps have ended, is no hindrance.
pub(super) fn claim(cx: &Context, allocation: &Allocation) -> Result<Record, Failure> {
    let dir = dir(&allocation.job);
    let failed = |e: io::Error| Failure::request(format!("{}: {e}", dir.display()));
    if !dir.is_absolute() {
        return Err(Failure::usage(format!(
            "MUSTER_SLURM_DIR: {} is not an absolute path",
            dir.display()
        )));
    }
    make_private(&dir).map_err(failed)?;
    refuse_another_users(&dir)?;
    if let Some(old) = Record::load(&dir)?
        && (!old.is_of_this_start() || old.is_over())
    {
        cx.say("an earlier cluster of this allocation has ended without `muster slurm down`; its record is removed");
        fs::remove_dir_all(&dir).map_err(failed)?;
        make_private(&dir).map_err(failed)?;
    }
    let record = Record::new(&allocation.job);
    record.claim(&dir).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => Failure::request(format!(
            "a cluster is up already in allocation {} ({}); {}",
            allocation.job,
            dir.display(),
            match Record::load(&dir) {
                Ok(Some(Record {
                    joined: Some(_), ..
                })) => "its nodes are lent: end `muster slurm join` (Ctrl-C, SIGTERM) first",
                _ => "`muster slurm down` stops it",
            }
        )),
        _ => failed(e),
    })?;
    Ok(record)
}

/// Refuses the directory of an allocation if others can write there: whoever can decides which programs run
/// as this user. One that is not there is no one's.
pub(super) fn refuse_another_users(dir: &Path) -> Result<(), Failure> {
    let about = match fs::symlink_metadata(dir) {
        Ok(about) => about,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Failure::request(format!("{}: {e}", dir.display()))),
    };
    if !about.is_dir() || about.uid() != peer::own_user() || about.mode() & 0o077 != 0 {
        return Err(Failure::request(format!(
            "{} is not a directory that only you can read and write; remove it, or name another place in MUSTER_SLURM_DIR",
            dir.display()
        )));
    }
    Ok(())
}

/// Starts the cluster of this record. Returns how many nodes are ready.
pub(super) async fn bring_up(
    cx: &Context,
    mut record: Record,
    allocation: &Allocation,
    args: &Up,
) -> Result<u32, Failure> {
    let dir = dir(&allocation.job);
    let until = Instant::now() + args.timeout;
    let id = format!("{}-{}", allocation.job, unique());
    let nodes = allocation.nodes.to_string();
    let coordinator = Step {
        dir: &dir,
        name: "coordinator",
        input: Input::None,
        flags: vec![
            "--nodes=1".into(),
            "--ntasks=1".into(),
            "--gres=none".into(),
        ],
        words: ["coordinator", "--id", &id, "--nodes", &nodes]
            .map(String::from)
            .into(),
    };
    let srun = coordinator.start(&mut record)?.0;
    let serves: Serves = loop {
        if let Some(serves) = record::printed(&coordinator.output()).pop() {
            break serves;
        }
        coordinator.still(&srun, until)?;
        sleep(LOOK).await;
    };
    record.server.clone_from(&serves.server);
    record.steps[0].number.clone_from(&serves.step);
    let path = record::credentials(&dir);
    enroll(&serves.server, &serves.pin, &serves.user_token, &path).await?;
    record.save(&dir)?;
    cx.say(format!("coordinator serves at {}", serves.server));

    let joins = Joins {
        server: serves.server,
        pin: serves.pin,
        token: serves.host_token,
        id,
        slots: args.node.slots,
        gpus: args.node.gpus.clone(),
        job: allocation.job.clone(),
        is_guest: false,
    };
    let input = record::joins(&dir);
    record::write(&input, &joins)?;
    let agents = Step::of_agents(&dir, allocation, Input::File(&input));
    let srun = agents.start(&mut record)?.0;
    let ready = nodes_ready(cx, allocation, &agents, &srun, &mut record, until).await?;
    Ok(ready)
}

/// Waits until every node is ready. When the time is over, those that are ready will do: a node may have
/// failed since Slurm gave it.
pub(super) async fn nodes_ready(
    cx: &Context,
    allocation: &Allocation,
    agents: &Step<'_>,
    srun: &Identity,
    record: &mut Record,
    until: Instant,
) -> Result<u32, Failure> {
    let client = cx.connect().await?;
    let mut told = BTreeSet::new();
    let step = record.steps.len() - 1;
    loop {
        if record.steps[step].number.is_empty()
            && let Some(joined) = record::printed::<Joined>(&agents.output()).pop()
        {
            record.steps[step].number = joined.step;
            record.save(agents.dir)?;
        }
        let nodes = get::all_nodes(&client).await?;
        let ready = nodes.into_iter().filter(|node| {
            node.state() == NodeState::Ready && node.labels.get(LABEL_JOB) == Some(&allocation.job)
        });
        for node in ready {
            if told.insert(node.name.clone()) {
                cx.say(format!("{} is ready", node.name));
            }
        }
        let count = told.len() as u32;
        if count >= allocation.nodes && !record.steps[step].number.is_empty() {
            return Ok(count);
        }
        match agents.still(srun, until) {
            Err(Failure::Timeout(why)) if count > 0 => {
                cx.warn(format!(
                    "{count} of {} nodes are ready; the others take part if they come: {why}",
                    allocation.nodes
                ));
                return Ok(count);
            }
            still => still?,
        }
        sleep(LOOK).await;
    }
}

/// What makes a cluster another one: the end of a version 7 UUID is random.
pub(super) fn unique() -> String {
    let unique = uuid::Uuid::now_v7().simple().to_string();
    unique[unique.len() - 8..].to_owned()
}

/// What every task of a step gets as its standard input.
pub(super) enum Input<'a> {
    None,
    File(&'a Path),
    /// It comes from this process, and ends with it.
    Here,
}

/// A step of this program.
pub(super) struct Step<'a> {
    /// The allocation's directory.
    dir: &'a Path,
    name: &'a str,
    input: Input<'a>,
    /// More flags of srun.
    flags: Vec<String>,
    /// The hidden command of `muster slurm` that runs there, and its arguments.
    words: Vec<String>,
}

impl<'a> Step<'a> {
    /// An agent on each node of the allocation.
    pub(super) fn of_agents(dir: &'a Path, allocation: &Allocation, input: Input<'a>) -> Self {
        let nodes = allocation.nodes;
        Step {
            dir,
            name: "agents",
            input,
            flags: vec![format!("--nodes={nodes}"), format!("--ntasks={nodes}")],
            words: vec!["agent".into()],
        }
    }

    fn output(&self) -> PathBuf {
        self.dir.join(format!("{}.out", self.name))
    }

    fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Starts srun so that it outlives this command and its terminal, and records it. Also returns its
    /// standard input, if that comes from here.
    pub(super) fn start(
        &self,
        record: &mut Record,
    ) -> Result<(Identity, Option<ChildStdin>), Failure> {
        let failed = |what: &str, e: std::io::Error| Failure::request(format!("{what}: {e}"));
        let open = |path: PathBuf| {
            File::options()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path)
                .map_err(|e| failed(&path.display().to_string(), e))
        };
        let own = env::current_exe().map_err(|e| failed("own path", e))?;
        let (input, taken) = match self.input {
            Input::None => (Stdio::null(), "--input=none"),
            Input::File(path) => {
                let file = File::open(path);
                let file = file.map_err(|e| failed(&path.display().to_string(), e))?;
                (file.into(), "--input=all")
            }
            Input::Here => (Stdio::piped(), "--input=all"),
        };
        let mut words: Vec<OsString> = vec![own.clone().into(), "slurm".into()];
        words.extend(self.words.iter().map(OsString::from));
        if let Some(programs) = env::var_os("MUSTER_BIN_DIR") {
            words.extend(["--bin-dir".into(), programs]);
        }
        let mut command = Command::new(own);
        for (name, _) in env::vars_os() {
            if !name.to_str().is_none_or(srun_may_see) {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args([DETACH, "srun"])
            .args(STEP)
            .arg(taken)
            .arg(format!("--job-name=muster-{}", self.name))
            .args(&self.flags)
            .args(words)
            .stdin(input)
            .stdout(open(self.output())?)
            .stderr(open(self.log())?)
            .spawn()
            .map_err(|e| failed("start srun", e))?;
        // Our own child stays in /proc until we have waited for it.
        let srun = Identity::of(child.id().cast_signed()).map_err(|e| failed("srun", e))?;
        record.steps.push(StepRecord {
            number: String::new(),
            srun: srun.clone(),
        });
        record.save(self.dir)?;
        Ok((srun, child.stdin.take()))
    }

    /// An error if the step has ended, or the time is over.
    pub(super) fn still(&self, srun: &Identity, until: Instant) -> Result<(), Failure> {
        let log = self.log();
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last: String = lines[lines.len().saturating_sub(LAST_WORDS)..]
            .iter()
            .map(|line| format!("\n  {line}"))
            .collect();
        let said = match last.is_empty() {
            true => format!("its log {} is empty", log.display()),
            false => format!("the end of {}:{last}", log.display()),
        };
        if !srun.is_alive() {
            return Err(Failure::request(format!(
                "the step of the {} has ended; {said}",
                self.name
            )));
        }
        if Instant::now() >= until {
            return Err(Failure::Timeout(format!(
                "the step of the {} is not ready; {said}",
                self.name
            )));
        }
        Ok(())
    }
}
