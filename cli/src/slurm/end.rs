//! Ends the cluster of an allocation: its jobs as planned, then its steps.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use muster_proto::v1::{CancelRequest, Job, Node, NodeState};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{
    allocation::Allocation,
    dir,
    record::{Record, StepRecord},
};
use crate::{
    commands::{follow, get},
    context::Context,
    fail::Failure,
    local::process::{self, Identity},
    output::words,
};

/// How long a step may take to end once no job runs: it waits for what is left of workers.
const STEP: Duration = Duration::from_secs(60);

pub(super) async fn down(cx: &Context, grace: Duration) -> Result<(), Failure> {
    let allocation = Allocation::here()?;
    let dir = dir(&allocation.job);
    if Record::load(&dir)?.is_none() {
        cx.say(format!("no cluster is up in allocation {}", allocation.job));
        return Ok(());
    }
    take_down(&super::own(cx, &allocation.job), &dir, Some(grace), false).await?;
    cx.print(&format!("cluster of allocation {} down\n", allocation.job))
}

/// Ends the cluster, if there is one. `jobs`: how long its jobs may take to end before. `keep`: its logs stay.
pub(super) async fn take_down(
    cx: &Context,
    dir: &Path,
    jobs: Option<Duration>,
    keep: bool,
) -> Result<(), Failure> {
    let Some(record) = Record::load(dir)? else {
        return Ok(());
    };
    if let Some(grace) = jobs.filter(|_| !record.server.is_empty())
        && let Err(failure) = end_jobs(cx, grace).await
    {
        cx.warn(format!("the jobs are ended with the steps: {failure}"));
    }
    // The agents first: they tell the coordinator what they end.
    for step in record.steps.iter().rev() {
        end_step(&record.job, step).await?;
    }
    match keep {
        true => fs::remove_file(dir.join("cluster.json")),
        false => fs::remove_dir_all(dir),
    }
    .or_else(|e| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(Failure::request(format!("{}: {e}", dir.display()))),
    })
}

async fn end_step(job: &str, step: &StepRecord) -> Result<(), Failure> {
    let name = format!("{job}.{}", step.number);
    let mut living = BTreeSet::from([step.srun.clone()]);
    living.retain(Identity::is_alive);
    if !step.number.is_empty() {
        Command::new("scancel")
            .args(["--signal=TERM", &name])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Failure::request(format!("scancel: {e}")))?;
        if !step.srun.is_of_this_boot() {
            // srun runs on another machine, so Slurm is asked.
            return step_is_gone(&name).await;
        }
        // Whether it was heard is seen by its end: scancel of Slurm 22.05 reports an invalid number for a
        // step 0 that it has signalled.
        living = process::wait_gone(living, STEP).await;
    }
    // An srun that is told to end kills its step.
    living.iter().for_each(|srun| srun.signal(Signal::TERM));
    let left = process::wait_gone(living, STEP).await;
    match left.is_empty() {
        true => Ok(()),
        false => Err(Failure::request(format!(
            "srun does not end: {}",
            process::named(&left)
        ))),
    }
}

async fn step_is_gone(name: &str) -> Result<(), Failure> {
    let until = Instant::now() + STEP;
    loop {
        let listed = Command::new("squeue")
            .args(["--noheader", "--steps", name])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Failure::request(format!("squeue: {e}")))?;
        if listed.stdout.trim_ascii().is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Failure::Timeout(format!(
                "step {name} does not end; `scancel {name}` kills it"
            )));
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// The nodes that a next allocation had better not have, as --exclude takes them.
pub(super) async fn to_exclude(cx: &Context) -> Option<String> {
    let client = cx.connect().await.ok()?;
    let nodes = get::all_nodes(&client).await.ok()?;
    failed(&nodes)
}

/// Those that were lost, and those that are cordoned.
fn failed(nodes: &[Node]) -> Option<String> {
    let failed = nodes
        .iter()
        .filter(|node| node.cordon.is_some() || node.state() == NodeState::Lost);
    let names: Vec<&str> = failed.map(|node| node.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Cancels what runs, and waits until no worker of it is left.
pub(super) async fn end_jobs(cx: &Context, grace: Duration) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let jobs = get::all_jobs(&client, "").await?;
    let is_open = |job: &Job| !job.status.as_ref().is_some_and(follow::is_over);
    let open = jobs.into_iter().filter(is_open);
    let open: Vec<_> = open.filter_map(|job| job.r#ref).collect();
    if open.is_empty() {
        return Ok(());
    }
    cx.say(format!(
        "stopping {}: workers have their grace period to save",
        words::count(open.len() as u64, "job")
    ));
    for job in &open {
        let request = client.ask(CancelRequest {
            r#ref: Some(job.clone()),
        });
        let answer = client.jobs().cancel(request).await;
        answer.map_err(|status| client.failure(status))?;
    }
    let deadline = Some(Instant::now() + grace);
    for job in &open {
        let over = follow::until(cx, &client, job, deadline, follow::is_over).await?;
        if over.is_none() {
            return Err(Failure::Timeout(format!(
                "job/{} is still stopping after {grace:?}",
                job.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::Cordon;

    use super::*;

    #[test]
    fn lost_and_cordoned_nodes_are_left_out_next_time() {
        let node = |name: &str, state: NodeState, cordon: Option<Cordon>| Node {
            name: name.into(),
            state: state.into(),
            cordon,
            ..Node::default()
        };
        let good = node("n1", NodeState::Ready, None);
        assert_eq!(failed(std::slice::from_ref(&good)), None);
        let lost = node("n2", NodeState::Lost, None);
        let cordoned = node("n3", NodeState::Ready, Some(Cordon::default()));
        assert_eq!(failed(&[good, lost, cordoned]).as_deref(), Some("n2,n3"));
    }
}
