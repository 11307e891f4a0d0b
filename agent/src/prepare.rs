//! Takes a run from "accepted" to a runner that holds its place.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use muster_core::{
    id::Term,
    node::{
        lane::{self, Lane},
        torchrun::{self, Meeting, Site, launch},
    },
    run::{Assignment, Endpoint},
    spec,
};
use muster_runner::{record, wire};
use tokio::process::Command;

use tracing::{info, warn};

use crate::{
    launchers::Found,
    preflight::{Answer, Preflight},
    run_dir::{Accepted, Runs},
};

/// How long a runner may take to become ready. It needs milliseconds; a disk that takes this long
/// to sync two small files is broken.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Size of one rank's log before it is rotated.
const LOG_BYTES: u64 = 64 << 20;
/// A runner that was not started, and that no agent is connected to, ends after this long. Its
/// agent was killed between holding and starting, and none came back.
const IDLE_TIMEOUT_MS: u64 = 300_000;
/// The runner's exit status when its directory is taken.
const TAKEN: i32 = 3;

/// Checks that the run can be started here, and starts its runner. The runner is forked from the
/// job's launcher if the lane has one. The error is for the user.
pub(crate) async fn prepare(
    assignment: &Assignment,
    term: Term,
    runs: &Runs,
    runner: &Path,
    site: &Site,
    preflight: &Preflight,
    launcher: Option<Found>,
) -> Result<(), String> {
    // The store's port is not known yet. No check depends on it.
    let anywhere = Endpoint {
        host: site.report.address.clone(),
        port: 1,
    };
    let launch = launch(assignment, Meeting::Served(&anywhere), site)?;
    let Answer {
        interpreter,
        stack,
        ctype,
        ..
    } = preflight.check(assignment, &launch, site).await?;
    let alone = torchrun::alone(assignment, interpreter.torch);
    let (mut lane, mut why) = match alone {
        true => (
            Lane::Cold,
            "torchrun before 2.7 brings its own store to a world of one node".to_owned(),
        ),
        false => lane::choose(
            assignment.launch,
            torchrun::ranks(assignment).is_some(),
            &interpreter,
        ),
    };
    if assignment.launch != spec::Launch::Cold {
        info!(run = %assignment.run.job, generation = %assignment.run.generation, ?lane, "lane: {why}");
    }
    let trouble = |what: &str, e: &dyn std::fmt::Display| {
        format!("the agent of {} cannot {what}: {e}", site.node)
    };
    let address: IpAddr = site
        .report
        .address
        .parse()
        .map_err(|e| trouble("read its own address", &e))?;
    let hold = hold(assignment, site, address);
    hold.check()
        .map_err(|e| trouble("describe the run to its runner", &e))?;
    let (gpus, fenced) = (assignment.gpus.clone(), assignment.fence_after.is_some());
    let job = assignment.name.to_string();
    // Lane direct does not wait for a launcher, but uses one that is ready.
    let launcher = launcher.filter(|found| {
        lane != Lane::Cold && (lane != Lane::Direct || matches!(found, Found::Ready(_)))
    });
    let was_ready = matches!(launcher, Some(Found::Ready(_)));
    let launcher = match launcher {
        Some(found) => match found.ready().await {
            Ok(launcher) => {
                why += match (was_ready, launcher.pooled) {
                    (true, _) => "; its launcher was ready",
                    (false, true) => "; its launcher came from the warm pool",
                    (false, false) => "; its launcher imported torch first",
                };
                Some(launcher)
            }
            Err(e) => {
                warn!(job = %assignment.run.job, "no launcher, so torchrun is executed: {e}");
                (lane, why) = (Lane::Cold, format!("its launcher on this node failed: {e}"));
                None
            }
        },
        None => None,
    };
    let work_dir = Some(launch.dir.clone());
    let mut accepted = Accepted {
        term,
        gpus,
        job,
        lane,
        why,
        alone,
        stack,
        ctype,
        fenced,
        work_dir,
        was: None,
    };
    let dir = runs
        .make(&assignment.run, &accepted)
        .map_err(|e| trouble("make the run's directory", &e))?;
    record::write_atomic(&dir, record::HOLD, &hold)
        .map_err(|e| trouble("write the run down", &e))?;
    if let Some(launcher) = launcher {
        match launcher.fork(&dir).await {
            Ok(()) => return Ok(()),
            Err(e) => {
                warn!(job = %assignment.run.job, "nothing can be forked from the launcher, so torchrun is executed: {e}");
                (accepted.lane, accepted.why) =
                    (Lane::Cold, format!("its launcher on this node failed: {e}"));
                runs.note_lane(&assignment.run, &accepted)
                    .map_err(|e| trouble("note the run", &e))?;
            }
        }
    }
    start_runner(runner, &dir)
        .await
        .map_err(|e| trouble("start the runner", &e))
}

pub(crate) fn hold(assignment: &Assignment, site: &Site, address: IpAddr) -> wire::Hold {
    wire::Hold {
        v: wire::VERSION,
        job: assignment.run.job.to_string(),
        name: assignment.name.name.clone(),
        namespace: assignment.name.namespace.clone(),
        generation: assignment.run.generation.0,
        node: site.node.to_string(),
        node_rank: assignment.node_rank,
        nnodes: assignment.node_count,
        world_size: assignment.world_size,
        store: assignment.hosts_store.then(|| wire::StoreSpec {
            // Port 0 makes the kernel choose a free port, a new one for every generation.
            bind: SocketAddr::new(address, 0).to_string(),
            run_id: assignment.rendezvous.clone(),
        }),
        log_bytes: LOG_BYTES,
        step_pattern: assignment.step_pattern.clone(),
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        term_grace_ms: millis(assignment.stop_grace),
        fence_after_ms: assignment.fence_after.map(millis),
        launcher: false,
    }
}

fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}

/// Starts a runner and returns once it can be talked to. The runner leaves this process's session
/// and outlives it.
pub(crate) async fn start_runner(runner: &Path, dir: &PathBuf) -> Result<(), String> {
    let mut command = Command::new(runner);
    command
        .args(["hold", "--dir"])
        .arg(dir)
        .env_clear()
        .current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|e| format!("{}: {e}", runner.display()))?;
    let output = match tokio::time::timeout(READY_TIMEOUT, child.wait_with_output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(e)) => return Err(format!("{}: {e}", runner.display())),
        Err(_) => {
            return Err(format!(
                "{} was not ready within {} s",
                runner.display(),
                READY_TIMEOUT.as_secs()
            ));
        }
    };
    // "Taken" is as good: an earlier agent started this runner just before it was killed.
    if output.status.success() || output.status.code() == Some(TAKEN) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said
        .trim()
        .strip_prefix("muster-runner: ")
        .unwrap_or(said.trim())
        .to_owned();
    Err(if said.is_empty() {
        output.status.to_string()
    } else {
        said
    })
}
