//! What runs within a step of an allocation: a daemon, which is started again if it ends by itself. When the
//! step is told to end, the node's workers are stopped, and nothing of Muster is left on the node.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs, io,
    net::{IpAddr, ToSocketAddrs, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use clap::Args;
use muster_rpc::peer;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{
    LABEL_JOB, LABEL_NODE,
    allocation::gpus,
    folder,
    record::{Joined, Joins, Serves},
};
use crate::{
    context::Context,
    fail::Failure,
    local::{
        Stops, daemon,
        down::stop_workers,
        nodes::runners,
        process::{self, Identity},
        secure::said,
    },
};

/// How long a daemon may take until it serves.
const START: Duration = Duration::from_secs(60);
/// The pause between two looks at the daemon, and before it is started again.
const LOOK: Duration = Duration::from_secs(1);
/// The longest pause between two starts that fail.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a daemon may take to end.
const DAEMON_GRACE: Duration = Duration::from_secs(2);
/// How long workers may take to save. Slurm kills what it has told to end after KillWait, which is 30 s
/// unless the site says otherwise.
const GRACE: Duration = Duration::from_secs(25);
/// How long the user may take to join.
const TOKEN_TTL: &str = "1h";
/// Other allocations may join for 30 days, the longest that a token may live, as often as they like.
const HOST_TOKEN: [&str; 7] = [
    "token", "create", "--host", "--uses", "100000", "--ttl", "30d",
];
/// How long jobs may take to leave a node that leaves the cluster. It is what batch scripts leave between
/// the signal and the end of their time.
const LEAVE: Duration = Duration::from_secs(90);
/// What an agent says if its name was given a certificate before.
const NAME_IS_USED: &str = "has had a certificate already";
/// How often a node may join the cluster of another allocation within its own.
const NAMES: u32 = 100;

#[derive(Debug, Args)]
pub(super) struct CoordinatorStep {
    #[arg(long)]
    id: String,
    #[arg(long)]
    nodes: u32,
    #[arg(long)]
    bin_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct AgentStep {
    #[arg(long)]
    bin_dir: Option<PathBuf>,
}

pub(super) async fn coordinator(cx: &Context, args: &CoordinatorStep) -> Result<(), Failure> {
    let stops = Stops::listen()?;
    let home = folder::make(&args.id, "coordinator")?;
    let part = Part {
        home: &home,
        name: "coordinator",
        program: daemon::binary(args.bin_dir.as_deref(), "muster-coordinator")?,
        current: RefCell::default(),
    };
    let outcome = part
        .until_stopped(stops, serve_coordinator(cx, args, &part))
        .await;
    part.end(cx, outcome).await
}

async fn serve_coordinator(
    cx: &Context,
    args: &CoordinatorStep,
    part: &Part<'_>,
) -> Result<(), Failure> {
    let state = part.home.join("state");
    let ask = |words: &[&str]| {
        let mut command = Command::new(&part.program);
        command.args(words).arg("--state-dir").arg(&state);
        said(command, "muster-coordinator")
    };
    let address = own_address(args.nodes);
    let any = match address {
        IpAddr::V4(_) => "0.0.0.0",
        IpAddr::V6(_) => "[::]",
    };
    let address = address.to_string();
    let mut init = vec!["init", "--name", &address];
    let node = env::var("SLURMD_NODENAME").unwrap_or_default();
    if !node.is_empty() {
        init.extend(["--name", &node]);
    }
    ask(&init)?;
    let mut listen = format!("{any}:0");
    let mut is_first = true;
    loop {
        let flags = [
            OsString::from("--listen"),
            listen.clone().into(),
            "--state-dir".into(),
            state.clone().into(),
            "--ready-file".into(),
            daemon::ready_file(part.home).into(),
        ];
        let endpoint = part.start(cx, &flags, is_first).await?;
        if is_first {
            let port = endpoint.rsplit(':').next().unwrap_or_default().to_owned();
            let user = [
                "token",
                "create",
                "--user",
                "slurm",
                "--role",
                "admin",
                "--all-namespaces",
                "--ttl",
                TOKEN_TTL,
            ];
            let serves = Serves {
                server: format!("https://{}:{port}", bracketed(&address)),
                pin: ask(&["pin"])?,
                host_token: ask(&HOST_TOKEN)?,
                user_token: ask(&user)?,
                step: own_step(),
            };
            print(cx, &serves)?;
            listen = format!("{any}:{port}");
        }
        is_first = false;
        part.ended().await;
        cx.warn("the coordinator has ended; it is started again");
    }
}

pub(super) async fn agent(cx: &Context, args: &AgentStep) -> Result<(), Failure> {
    let stops = Stops::listen()?;
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(|e| Failure::request(format!("standard input: {e}")))?;
    let joins: Joins = serde_json::from_str(&line).map_err(|e| {
        Failure::request(format!(
            "the standard input does not say which cluster to join: {e}"
        ))
    })?;
    let node = env::var("SLURMD_NODENAME")
        .map_err(|_| Failure::usage("SLURMD_NODENAME is not set: this is no step of Slurm"))?;
    let home = folder::make(&joins.id, &node)?;
    let part = Part {
        home: &home,
        name: &node,
        program: daemon::binary(args.bin_dir.as_deref(), "muster-agent")?,
        current: RefCell::default(),
    };
    let work = async {
        if !joins.is_guest {
            return serve_agent(cx, args, &part, &joins).await;
        }
        tokio::select! {
            outcome = serve_agent(cx, args, &part, &joins) => outcome,
            () = input_ended() => part.leave(cx, &joins.job).await,
        }
    };
    let outcome = part.until_stopped(stops, work).await;
    part.end(cx, outcome).await
}

/// Waits until nobody is left who could write to the standard input.
async fn input_ended() {
    let read = || io::copy(&mut io::stdin(), &mut io::sink());
    // What cannot be read has ended, too.
    let _ = tokio::task::spawn_blocking(read).await;
}

/// Gets the agent its certificate. Returns the node's name in the cluster. A guest's has its allocation in it:
/// two allocations may share a node, and a name that was used is not given again.
fn join(part: &Part<'_>, joins: &Joins, state: &Path) -> Result<String, Failure> {
    for number in 1..=NAMES {
        let name = match (joins.is_guest, number) {
            (false, _) => part.name.to_owned(),
            (true, 1) => format!("{}-{}", part.name, joins.job),
            (true, _) => format!("{}-{}-{number}", part.name, joins.job),
        };
        let mut join = Command::new(&part.program);
        join.args(["join", &joins.server, "--ca-pin", &joins.pin])
            .args(["--node-name", &name])
            .arg("--state-dir")
            .arg(state)
            .env("MUSTER_TOKEN", &joins.token);
        match said(join, "muster-agent join") {
            Err(failure) if joins.is_guest && failure.to_string().contains(NAME_IS_USED) => {}
            Err(failure) => return Err(failure),
            Ok(_) => return Ok(name),
        }
    }
    Err(Failure::request(format!(
        "{} has joined {NAMES} times from allocation {}; join from another one",
        part.name, joins.job
    )))
}

/// The labels of a node: its place in Slurm, and what the batch script says.
fn labels(part: &Part<'_>, joins: &Joins) -> String {
    let own = format!("{LABEL_JOB}={},{LABEL_NODE}={}", joins.job, part.name);
    match env::var("MUSTER_LABELS") {
        Ok(more) if !more.is_empty() => format!("{own},{more}"),
        _ => own,
    }
}

async fn serve_agent(
    cx: &Context,
    args: &AgentStep,
    part: &Part<'_>,
    joins: &Joins,
) -> Result<(), Failure> {
    let state = part.home.join("state");
    let name = join(part, joins, &state)?;
    let gpus = joins.gpus.clone();
    let gpus = gpus.unwrap_or_else(gpus_given);
    let runner = daemon::binary(args.bin_dir.as_deref(), "muster-runner")?;
    let mut flags: Vec<OsString> = vec![
        "--node-name".into(),
        name.into(),
        "--label".into(),
        labels(part, joins).into(),
        "--state-dir".into(),
        state.into(),
        "--slots".into(),
        joins.slots.to_string().into(),
        "--gpus".into(),
        gpus.into(),
        "--runner".into(),
        runner.into(),
        "--ready-file".into(),
        daemon::ready_file(part.home).into(),
    ];
    if peer::own_user() == 0 {
        flags.push("--allow-root-workers".into());
    }
    let mut is_first = true;
    loop {
        part.start(cx, &flags, is_first).await?;
        if is_first {
            let joined = Joined {
                node: part.name.to_owned(),
                step: own_step(),
            };
            print(cx, &joined)?;
        }
        is_first = false;
        part.ended().await;
        cx.warn(format!(
            "{}: the agent has ended; it is started again",
            part.name
        ));
    }
}

fn gpus_given() -> String {
    gpus(|name| env::var(name).ok())
}

fn print(cx: &Context, what: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(what).map_err(Failure::request)?;
    cx.print(&format!("{text}\n"))
}

fn own_step() -> String {
    env::var("SLURM_STEP_ID").unwrap_or_default()
}

/// The address from which this node reaches the one where srun was called. Other nodes of the cluster reach
/// it there, too, and no name need be known to them. On the node of srun itself this can be a loopback
/// address, as some systems write their own name into /etc/hosts: then it is what the name of the node means
/// to others.
fn own_address(nodes: u32) -> IpAddr {
    let towards = |other: &str| -> Option<IpAddr> {
        let other: IpAddr = other.parse().ok()?;
        let any = match other {
            IpAddr::V4(_) => "0.0.0.0:0",
            IpAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(any).ok()?;
        // This sends nothing.
        socket.connect((other, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let other = env::var("SLURM_LAUNCH_NODE_IPADDR").unwrap_or_default();
    let found = towards(&other).filter(|address| nodes == 1 || !address.is_loopback());
    let node = env::var("SLURMD_NODENAME").unwrap_or_default();
    let named = || {
        let all = (node.as_str(), 0_u16).to_socket_addrs().ok()?;
        let mut all = all.map(|address| address.ip());
        all.find(|address| !address.is_loopback())
    };
    let loopback = IpAddr::from([127, 0, 0, 1]);
    found.or_else(named).unwrap_or(loopback)
}

fn bracketed(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

/// A daemon and its directory on this node.
struct Part<'a> {
    home: &'a Path,
    name: &'a str,
    program: PathBuf,
    current: RefCell<Option<Identity>>,
}

impl Part<'_> {
    /// Starts the daemon, and waits until it serves. Returns its endpoint, if it has one. One that has served
    /// before is tried again until it does.
    async fn start(
        &self,
        cx: &Context,
        flags: &[OsString],
        is_first: bool,
    ) -> Result<String, Failure> {
        let mut pause = LOOK;
        loop {
            match self.try_start(flags).await {
                Err(failure) if !is_first => cx.warn(failure),
                started => return started,
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_start(&self, flags: &[OsString]) -> Result<String, Failure> {
        let starting = daemon::spawn(self.name, self.home, &self.program, flags)?;
        *self.current.borrow_mut() = Some(starting.identity.clone());
        let ready = starting.ready(Instant::now() + START).await?;
        Ok(ready.endpoint)
    }

    /// Waits until the daemon has ended.
    async fn ended(&self) {
        while self.is_alive() {
            sleep(LOOK).await;
        }
    }

    fn is_alive(&self) -> bool {
        self.current
            .borrow()
            .as_ref()
            .is_some_and(Identity::is_alive)
    }

    async fn until_stopped(
        &self,
        mut stops: Stops,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        tokio::select! {
            outcome = work => outcome,
            () = stops.next() => Ok(()),
        }
    }

    /// Tells the agent that its node will be taken away, and waits until the jobs have left, as planned.
    async fn leave(&self, cx: &Context, job: &str) -> Result<(), Failure> {
        let notice = self.home.join("state/termination-notice");
        fs::write(&notice, format!("allocation {job} ends\n"))
            .map_err(|e| Failure::request(format!("{}: {e}", notice.display())))?;
        let until = Instant::now() + LEAVE;
        loop {
            sleep(LOOK).await;
            let held = runners(self.home).into_iter().map(|(_, runner)| runner);
            let held: Vec<Identity> = held.collect();
            if process::descendants(&held).is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                cx.warn(format!("{}: some workers have not left", self.name));
                return Ok(());
            }
        }
    }

    /// Ends the daemon, then the workers, and removes the directory.
    async fn end(&self, cx: &Context, outcome: Result<(), Failure>) -> Result<(), Failure> {
        // Slurm may have told the daemon, too.
        let daemon: BTreeSet<Identity> = self.current.borrow().iter().cloned().collect();
        daemon.iter().for_each(|daemon| daemon.signal(Signal::TERM));
        process::wait_gone(daemon.clone(), DAEMON_GRACE).await;
        let mut held = runners(self.home);
        held.retain(|(_, runner)| runner.is_alive());
        stop_workers(cx, &held, GRACE).await;
        let known: Vec<Identity> = daemon
            .into_iter()
            .chain(held.into_iter().map(|(_, runner)| runner))
            .collect();
        let cut = process::cut(|| process::tree(self.home, &known)).await;
        cut.map_err(|left| {
            Failure::request(format!(
                "{}: could not kill {}",
                self.name,
                process::named(&left)
            ))
        })?;
        // The step's log has the last words of a daemon that did not start.
        folder::remove(self.home)
            .map_err(|e| Failure::request(format!("{}: {e}", self.home.display())))?;
        outcome
    }
}
