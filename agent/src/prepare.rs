//! Takes a run from "accepted" to a runner that holds its place.

use std::net::IpAddr;

use muster_core::{
    id::Term,
    node::{
        launch::{self, Plan, Serving},
        torchrun::{Launch, Site},
    },
    run::{Assignment, DueTo, Key, Refusal, RunId},
    spec,
};
use muster_runner::{record, wire};
use tracing::{info, warn};

use crate::{
    hold::{Here, hold},
    host::RunnerHost,
    launchers::{Found, Launcher},
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
    let (launch, answer) = ask_interpreters(assignment, host, preflight, site).await?;
    let Answer {
        interpreter,
        stack,
        ctype,
        ..
    } = answer;
    let mut plan = Plan::of(assignment, &launch, &interpreter);
    if assignment.launch != spec::Launch::Cold {
        info!(run = %assignment.run.job, generation = %assignment.run.generation, lane = ?plan.lane, "lane: {}", plan.why);
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
    let launcher = match launcher {
        Some(found) => await_launcher(found, &mut plan, &assignment.run).await,
        None => None,
    };
    let ports = (0..plan.needs.ports).map(|_| reserve(address, here.ports, &assignment.run));
    let reserved: Vec<Reserved> = ports.collect::<Result<_, _>>()?;
    let key = match plan.needs.key {
        true => Some(key().map_err(|e| trouble("make a key", &e))?),
        false => None,
    };
    let mut accepted = Accepted {
        term,
        gpus,
        job,
        lane: plan.lane,
        why: plan.why.clone(),
        alone: plan.alone,
        stack,
        ctype,
        fenced,
        work_dir: Some(plan.dir.clone()),
        checkpoint_pattern: assignment.checkpoint_pattern.clone(),
        account: site.account.clone(),
        port: reserved.first().map(|reserved| reserved.port),
        ports: match assignment.is_shared() {
            true => reserved.iter().map(|reserved| reserved.port).collect(),
            false => Vec::new(),
        },
        key,
        was: None,
    };
    let made = runs.make(&assignment.run, &accepted);
    let dir = made.map_err(|e| trouble("make the run's directory", &e))?;
    if plan.caches
        && let Err(e) = runs
            .make_cache(&assignment.run.job)
            .and_then(|()| host.give(&runs.cache_dir(&assignment.run.job)))
    {
        // torch makes the folder itself, where it can.
        warn!(run = %assignment.run, "no folder for compile caches: {e}");
    }
    record::write_atomic(&dir, record::HOLD, &hold)
        .map_err(|e| trouble("write the run down", &e))?;
    if let Some(launcher) = launcher {
        match launcher.fork(&dir).await {
            Ok(()) => return Ok(reserved),
            Err(e) => {
                plan.fall_back(&e);
                (accepted.lane, accepted.why) = (plan.lane, plan.why);
                warn!(job = %assignment.run.job, "nothing can be forked from the launcher, so the lane is {}: {e}", accepted.lane.name());
                runs.note_lane(&assignment.run, &accepted)
                    .map_err(|e| trouble("note the run", &e))?;
            }
        }
    }
    let started = host.start(&dir).await;
    started.map_err(|e| trouble("start the runner", &e))?;
    Ok(reserved)
}

/// What the interpreters say with which the members are to be started. The first member stands for all.
async fn ask_interpreters(
    assignment: &Assignment,
    host: &dyn RunnerHost,
    preflight: &Preflight,
    site: &Site,
) -> Result<(Launch, Answer), Refusal> {
    let mut first = None;
    for member in &assignment.each() {
        let launch = launch::ahead(member, site)?;
        let shared = assignment.is_shared();
        let answer = preflight.check(host, member, shared, &launch, site).await?;
        first.get_or_insert((launch, answer));
    }
    Ok(first.ok_or("the coordinator did not tell what its members run")?)
}

/// The launcher from which the run is forked, as the plan has it. Without one the plan falls back.
async fn await_launcher(found: Found, plan: &mut Plan, run: &RunId) -> Option<Launcher> {
    let was_ready = matches!(found, Found::Ready(_));
    if !plan.takes_launcher(was_ready) {
        return None;
    }
    match found.ready().await {
        Ok(launcher) => {
            plan.served(match (was_ready, launcher.pooled) {
                (true, _) => Serving::Ready,
                (false, true) => Serving::Pooled,
                (false, false) => Serving::Awaited,
            });
            Some(launcher)
        }
        Err(e) => {
            plan.fall_back(&e);
            warn!(job = %run.job, "no launcher, so the lane is {}: {e}", plan.lane.name());
            None
        }
    }
}
