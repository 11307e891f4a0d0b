//! The agent put together: what it reads at the start, which tasks run, and in which order they
//! end.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use muster_core::node_report::NodeReport;
use muster_runner::{Folder, pod::RUNS};
use muster_runtime::{
    service,
    shutdown::Signals,
    tasks::{Essential, Ordinary, Tasks},
    version::version,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    atomic_file,
    boot::Boot,
    config::Config,
    host::{LocalHost, NoHost, OwnedHost, PodHost, RunnerHost},
    in_session, ledger_file, lock,
    logs::Logs,
    probe::Facts,
    proof::Proof,
    renewal,
    run_dir::Runs,
    session::{Asks, Session},
    signals::RankSignals,
    stacks::Stacks,
    state_disk::StateDisk,
    supervisor::{Handle, Order, Supervisor},
};

/// The folder of the agent's notes about runs, below its state directory, where jobs run as their owners.
const NOTES: &str = "notes";
/// How long tasks may take to end. Workers do not depend on them.
const DRAIN: Duration = Duration::from_secs(3);

/// Runs the agent until a signal. A person must act on an error.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let signals = Signals::catch().context("catch signals")?;
    let _lock = lock::take(&config.state_dir, config.node.as_str())?;
    let runs = Runs::new(config.holds_runs())
        .noting(&notes(&config).context("the directory of all runs")?)
        .keeping(config.logs_max);
    let open = runs.open().context("list the runs on disk")?;
    if config.senses_only && !open.is_empty() {
        bail!(
            "this state directory has runs ({}), and --senses-only takes no work: end them first, or use another directory",
            open.len()
        );
    }
    let ledger = ledger_file::read(&config.state_dir, &config.node, !open.is_empty())?;
    info!(node = %config.node, state = %config.state_dir.display(), coordinator = %config.coordinator, "muster-agent {}", version());

    let shutdown = CancellationToken::new();
    let mut tasks = Tasks::new(shutdown.clone());
    let config = Arc::new(config);
    let facts = facts(&config);
    let disk = StateDisk::start(&config.state_dir, runs.clone(), facts.clone())
        .context("start a thread for the state directory")?;
    let (host, boot): (Arc<dyn RunnerHost>, Boot) = match &config.pod {
        None if config.senses_only => (Arc::new(NoHost), Boot::of_machine()?),
        None if config.users.are_owners() => {
            let host = OwnedHost::new(config.runner.clone());
            (Arc::new(host), Boot::of_machine()?)
        }
        None => (
            Arc::new(LocalHost::new(config.runner.clone())),
            Boot::of_machine()?,
        ),
        Some(volume) => (
            Arc::new(PodHost::new(volume.clone())),
            Boot::of_pod(volume, &config.state_dir).context("which boot this pod is")?,
        ),
    };
    let (supervisor, handle) = Supervisor::new(
        config.clone(),
        host.clone(),
        facts.clone(),
        ledger,
        runs.clone(),
        disk,
        shutdown.clone(),
    );
    let asks = Asks {
        logs: Logs::new(runs.clone(), handle.reports.clone(), shutdown.clone()),
        signals: RankSignals::new(host.clone(), runs.clone(), shutdown.clone()),
        stacks: Stacks::new(host, runs, shutdown.clone()),
    };
    let authorities = watch::Sender::new(None);
    let heard = authorities.subscribe();
    let session = Session::new(
        config.clone(),
        handle.clone(),
        facts,
        asks,
        boot,
        authorities,
        shutdown.clone(),
    );
    tasks.spawn(Essential, "supervisor", supervisor.run());
    let noted = in_session::follow(config.state_dir.clone(), session.in_session());
    tasks.spawn(Ordinary, "in-session", noted);
    tasks.spawn(Essential, "session", session.run());
    if let Some(Proof::Certificate(path)) = &config.identity {
        let (path, coordinator) = (path.clone(), config.coordinator.clone());
        let renewal = renewal::run(path, coordinator, heard, shutdown.clone());
        tasks.spawn(Ordinary, "certificate", renewal);
    }
    let orders = handle.orders.clone();
    let answers = move || ask(orders.clone());
    tasks.spawn(
        Ordinary,
        "watchdog",
        service::watch(answers, shutdown.clone()),
    );
    let (file, node) = (config.ready_file.clone(), config.node.to_string());
    tasks.spawn(Ordinary, "ready", say_ready(file, node, handle));
    // Signals are not a task, because waiting for the second signal must not delay the end.
    tokio::select! {
        ended = tasks.run(DRAIN) => ended?,
        () = signals.obey(shutdown) => {}
    }
    info!("ended; runners and workers go on");
    Ok(())
}

/// Starts to look at the node as the flags say.
pub fn facts(config: &Config) -> Facts {
    let fixed = NodeReport {
        address: config.address.to_string(),
        agent_version: version().to_owned(),
        labels: config.labels.clone(),
        taints: config.taints.clone(),
        slots: config.slots,
        senses_only: config.senses_only,
        run_as_owner: config.users.are_owners(),
        container_runtime: { config.containers.as_ref() }
            .map(ToString::to_string)
            .unwrap_or_default(),
        ..NodeReport::default()
    };
    Facts::gather(fixed, &config.probes, &config.state_dir)
}

/// Where the agent's notes about runs lie: in a place that no job can write. Where jobs run as their owners,
/// these must also be able to pass through the agent's folder to their own, whose names they know, and to
/// nothing else.
fn notes(config: &Config) -> std::io::Result<PathBuf> {
    let notes = config.state_dir.join(NOTES);
    if config.users.are_owners() {
        Folder::trusted(&config.state_dir)?.make(RUNS)?;
        for dir in [config.state_dir.clone(), config.state_dir.join(RUNS)] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
        }
        Folder::trusted(&config.state_dir)?.make(NOTES)?;
        return Ok(notes);
    }
    // Jobs ran as their owners here before, and some runs may still go on.
    Ok(match notes.is_dir() {
        true => notes,
        false => config.state_dir.clone(),
    })
}

/// Returns when the supervisor has answered.
async fn ask(orders: mpsc::Sender<Order>) {
    let (answer, answered) = oneshot::channel();
    // An error: the supervisor has ended, and the process is about to.
    let _ = orders.send(Order::Ask(answer)).await;
    let _ = answered.await;
}

async fn say_ready(file: Option<PathBuf>, node: String, mut handle: Handle) {
    if handle.reports.wait_for(Option::is_some).await.is_err() {
        return;
    }
    service::ready();
    if let Some(file) = file
        && let Err(e) = write_ready(&file, &node)
    {
        tracing::error!("ready file {}: {e}", file.display());
    }
}

fn write_ready(file: &Path, node: &str) -> std::io::Result<()> {
    let text = serde_json::json!({ "node": node, "pid": std::process::id() });
    atomic_file::write_atomic(file, format!("{text}\n"))
}
