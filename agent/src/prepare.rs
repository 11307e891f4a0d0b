//! Takes a run from "accepted" to a runner that holds its place.

use std::net::IpAddr;

use muster_core::{
    id::Term,
    node::{
        lane::{self, Lane},
        torchrun::{Meeting, launch},
    },
    run::{Assignment, DueTo, Endpoint, Key, Refusal},
    spec,
};
use muster_runner::{record, wire};
use tracing::{info, warn};

use crate::{
    hold::{Here, hold},
    host::RunnerHost,
    launchers::Found,
    preflight::{Answer, Preflight},
    reserve::{Reserved, reserve},
    run_dir::{Accepted, Runs},
};

/// A new secret, from the kernel.
fn key() -> std::io::Result<Key> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Ok(Key(digits.collect()))
}

/// Checks that the run can be started here, and starts its runner. The runner is forked from the
/// job's launcher if the lane has one. Returns the ports that its members get, by number, if they need
/// some. The error is for the user.
pub(crate) async fn prepare(
    assignment: &Assignment,
    term: Term,
    runs: &Runs,
    host: &dyn RunnerHost,
    here: &Here,
    preflight: &Preflight,
    launcher: Option<Found>,
) -> Result<Vec<Reserved>, Refusal> {
    let site = &here.site;
    // The TCPStore's port is not known yet. No check depends on it.
    let anywhere = Endpoint {
        host: site.report.address.clone(),
        port: 1,
    };
    let each = assignment.each();
    let mut checked = None;
    for member in &each {
        let launch = launch(member, Meeting::Served(&anywhere), site)?;
        let shared = assignment.is_shared();
        let answer = preflight.check(host, member, shared, &launch, site).await?;
        // The first member stands for all.
        checked.get_or_insert((launch, answer));
    }
    let (launch, answer) = checked.ok_or("the coordinator did not tell what its members run")?;
    let Answer {
        interpreter,
        stack,
        ctype,
        ..
    } = answer;
    let (mut lane, mut why) = lane::of(assignment, assignment.is_shared(), &interpreter);
    if assignment.launch != spec::Launch::Cold {
        info!(run = %assignment.run.job, generation = %assignment.run.generation, ?lane, "lane: {why}");
    }
    let trouble = |what: &str, e: &dyn std::fmt::Display| {
        DueTo::Node.because(format!("the agent of {} cannot {what}: {e}", site.node))
    };
    let address: IpAddr = site
        .report
        .address
        .parse()
        .map_err(|e| trouble("read its own address", &e))?;
    let mut hold = wire::Hold {
        step_formats: here.step_formats.clone(),
        echo: here.echo.clone(),
        ..hold(assignment, site, address)
    };
    if let Some(store) = &mut hold.store {
        store.ports = here.ports;
    }
    hold.check()
        .map_err(|e| trouble("describe the run to its runner", &e))?;
    let (gpus, fenced) = (assignment.gpus.clone(), assignment.fence_after.is_some());
    let job = assignment.name.to_string();
    // Lane direct does not wait for a launcher, but uses one that is ready.
    let launcher = launcher.filter(|found| {
        lane.has_launcher() && (lane != Lane::Direct || matches!(found, Found::Ready(_)))
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
                lane = lane.without_launcher();
                warn!(job = %assignment.run.job, "no launcher, so the lane is {}: {e}", lane.name());
                why = format!("its launcher on this node failed: {e}");
                None
            }
        },
        None => None,
    };
    let reserved: Vec<Reserved> = match assignment.framework.tells_peers() {
        true => {
            let port = |_| reserve(address, here.ports, &assignment.run);
            each.iter().map(port).collect::<Result<_, _>>()?
        }
        false => Vec::new(),
    };
    let key = match assignment.lends() {
        true => Some(key().map_err(|e| trouble("make a key", &e))?),
        false => None,
    };
    let work_dir = Some(launch.dir.clone());
    let alone = lane::brings_store(assignment, lane, &interpreter);
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
        checkpoint_pattern: assignment.checkpoint_pattern.clone(),
        port: reserved.first().map(|reserved| reserved.port),
        ports: match assignment.is_shared() {
            true => reserved.iter().map(|reserved| reserved.port).collect(),
            false => Vec::new(),
        },
        key,
        was: None,
    };
    let dir = runs
        .make(&assignment.run, &accepted)
        .map_err(|e| trouble("make the run's directory", &e))?;
    record::write_atomic(&dir, record::HOLD, &hold)
        .map_err(|e| trouble("write the run down", &e))?;
    if let Some(launcher) = launcher {
        match launcher.fork(&dir).await {
            Ok(()) => return Ok(reserved),
            Err(e) => {
                accepted.lane = lane.without_launcher();
                accepted.alone = lane::brings_store(assignment, accepted.lane, &interpreter);
                warn!(job = %assignment.run.job, "nothing can be forked from the launcher, so the lane is {}: {e}", accepted.lane.name());
                accepted.why = format!("its launcher on this node failed: {e}");
                runs.note_lane(&assignment.run, &accepted)
                    .map_err(|e| trouble("note the run", &e))?;
            }
        }
    }
    host.start(&dir)
        .await
        .map_err(|e| trouble("start the runner", &e))?;
    Ok(reserved)
}
