//! Lends the nodes of this allocation to the cluster of another one, and takes them back. The cluster's
//! coordinator is in the other allocation and ends with it; nothing of it is here.

use std::{
    fs, io,
    io::Write,
    path::Path,
    process::{ChildStdin, Command, Stdio},
    time::Duration,
};

use muster_proto::v1::DeleteNodeRequest;
use tokio::time::{Instant, sleep};

use super::{
    Join, LABEL_JOB,
    allocation::{Allocation, is_number},
    dir, end,
    record::{self, Joins, Record},
    start::{self, Input, Step},
};
use crate::{
    commands::get,
    context::Context,
    fail::Failure,
    local::{
        Stops,
        process::{self, Identity},
    },
    output::words,
};

/// The pause between two looks at what the other allocation's directory says.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between two attempts to reach the coordinator: a dead allocation leaves its directory as it is.
const REACH: Duration = Duration::from_secs(15);
/// How long the agents may take to leave: their jobs' time, and the end of the step.
const LEAVE: Duration = Duration::from_secs(100);

pub(super) async fn join(cx: &Context, args: &Join) -> Result<(), Failure> {
    let allocation = Allocation::here()?;
    let (host, joins) = cluster_of(&args.job, &allocation)?;
    // From here on nothing ends this process before what it has begun is ended.
    let mut stops = Stops::listen()?;
    let own = super::own(cx, &allocation.job);
    let own_dir = dir(&allocation.job);
    let mut record = start::claim(cx, &allocation)?;
    record.joined = Some(args.job.clone());
    record.server.clone_from(&host.server);
    record.save(&own_dir)?;
    let joins = Joins {
        id: format!("{}-{}", allocation.job, start::unique()),
        slots: args.node.slots,
        gpus: args.node.gpus.clone(),
        job: allocation.job.clone(),
        is_guest: true,
        ..joins
    };
    let agents = Step::of_agents(&own_dir, &allocation, Input::Here);
    let mut is_up = false;
    let mut input = None;
    let stay = async {
        let (srun, mut line) = agents.start(&mut record)?;
        tell(line.as_mut(), &joins)?;
        input = line;
        let until = Instant::now() + args.timeout;
        let ready =
            start::nodes_ready(&own, &allocation, &agents, &srun, &mut record, until).await?;
        is_up = true;
        let ready = words::count(u64::from(ready), "node");
        cx.print(&format!("{ready} lent to allocation {}\n", args.job))?;
        cx.say(format!(
            "its coordinator is in allocation {0}: when {0} ends, its jobs end, also here; `muster get jobs` shows them",
            args.job
        ));
        tokio::select! {
            () = host_ended(&own, &host) => Ok(format!("the cluster of allocation {} has ended", args.job)),
            why = step_ended(&agents, &srun) => Err(why),
        }
    };
    let (outcome, is_asked) = tokio::select! {
        outcome = stay => (outcome, false),
        () = stops.next() => (Ok("asked to end".to_owned()), true),
    };
    // Whatever ended this, the jobs leave these nodes as planned, unless their coordinator is gone.
    let host_is_gone = !is_asked && outcome.is_ok();
    if !host_is_gone {
        if is_up {
            cx.say(format!(
                "the nodes leave the cluster of allocation {}: its jobs have time to save, and go on without them",
                args.job
            ));
        }
        drop(input);
        let steps = record.steps.iter().map(|step| step.srun.clone());
        let left = process::wait_gone(steps.collect(), LEAVE);
        tokio::select! {
            _ = left => {}
            () = stops.next() => {}
        }
    }
    // The logs of agents that did not start say why.
    let ended = end::take_down(&own, &own_dir, None, !is_up).await;
    // A node that is forgotten counts as dead, so its step must have ended.
    if !host_is_gone && ended.is_ok() {
        forget_nodes(&host, cx, &allocation.job).await;
    }
    ended?;
    cx.say(outcome?);
    cx.print(&format!(
        "nodes of allocation {} are back\n",
        allocation.job
    ))
}

/// The cluster of the other allocation, and what an agent must know to join it.
fn cluster_of(job: &str, allocation: &Allocation) -> Result<(Record, Joins), Failure> {
    if !is_number(job) {
        return Err(Failure::usage(format!(
            "{job:?} is not the number of an allocation; squeue shows it"
        )));
    }
    if job == allocation.job {
        return Err(Failure::usage(format!(
            "{job} is this allocation; give the one with the coordinator"
        )));
    }
    let host = dir(job);
    start::refuse_another_users(&host)?;
    let up = Record::load(&host)?.filter(|record| !record.server.is_empty());
    let up = up.ok_or_else(|| {
        Failure::request(format!(
            "no cluster is up in allocation {job}; `muster run --slurm` or `muster slurm up` there starts one ({})",
            host.display()
        ))
    })?;
    if let Some(third) = &up.joined {
        return Err(Failure::request(format!(
            "allocation {job} has lent its nodes to allocation {third}; join that one"
        )));
    }
    let path = record::joins(&host);
    let failed = |e: io::Error| Failure::request(format!("{}: {e}", path.display()));
    let text = fs::read(&path).map_err(failed)?;
    let joins = serde_json::from_slice(&text).map_err(|e| failed(e.into()))?;
    Ok((up, joins))
}

fn tell(input: Option<&mut ChildStdin>, joins: &Joins) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(joins).map_err(Failure::request)?;
    line.push(b'\n');
    let attempt = || -> io::Result<()> {
        let input = input.ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(&line)?;
        input.flush()
    };
    attempt().map_err(|e| Failure::request(format!("tell srun which cluster to join: {e}")))
}

async fn step_ended(agents: &Step<'_>, srun: &Identity) -> Failure {
    loop {
        // The time is no limit here.
        if let Err(failure) = agents.still(srun, Instant::now() + LEAVE) {
            return failure;
        }
        sleep(LOOK).await;
    }
}

/// Waits until the other allocation's cluster has ended: in order, by what its directory says; otherwise, by
/// what Slurm says of the allocation once nobody answers there.
async fn host_ended(own: &Context, host: &Record) {
    let place = dir(&host.job);
    let mut reached = Instant::now();
    while is_up(&place, host) {
        sleep(LOOK).await;
        if reached.elapsed() >= REACH {
            reached = Instant::now();
            if own.connect().await.is_err() && is_gone(&host.job) {
                return;
            }
        }
    }
}

fn is_up(place: &Path, host: &Record) -> bool {
    match Record::load(place) {
        Ok(now) => now.is_some_and(|now| now.server == host.server),
        // A file system that does not answer says nothing.
        Err(_) => true,
    }
}

/// Whether Slurm knows that the allocation has ended.
fn is_gone(job: &str) -> bool {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--states=all", "--format=%T", "--jobs", job]);
    let Ok(said) = squeue.stdin(Stdio::null()).output() else {
        return false;
    };
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        return why.contains("Invalid job id");
    }
    let states = String::from_utf8_lossy(&said.stdout);
    let lives = [
        "RUNNING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "RESIZING",
        "STAGE_OUT",
    ];
    !states.lines().any(|state| lives.contains(&state.trim()))
}

/// Tells the coordinator that the nodes of this allocation will not come back, so that they count as left and
/// not as lost. Their step has ended, so nothing runs there.
async fn forget_nodes(host: &Record, cx: &Context, job: &str) {
    let there = super::own(cx, &host.job);
    let Ok(client) = there.connect().await else {
        return;
    };
    let nodes = get::all_nodes(&client).await.unwrap_or_default();
    let of_here = nodes
        .iter()
        .filter(|node| node.labels.get(LABEL_JOB).is_some_and(|it| it == job));
    for node in of_here {
        let request = client.ask(DeleteNodeRequest {
            name: node.name.clone(),
        });
        if let Err(status) = client.nodes().delete(request).await {
            cx.warn(format!(
                "{} stays in the list of nodes: {}",
                node.name,
                status.message()
            ));
        }
    }
}
