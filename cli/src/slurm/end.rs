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
    LABEL_JOB, LABEL_NODE,
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
/// The pause between two looks at the nodes.
const LOOK: Duration = Duration::from_secs(2);
/// How long a node that was lost may take to come back: its agent is started again within seconds.
const COMES_BACK: Duration = Duration::from_secs(30);

pub(super) async fn down(cx: &Context, grace: Duration) -> Result<(), Failure> {
    let allocation = Allocation::here()?;
    let dir = dir(&allocation.job);
    let Some(record) = Record::load(&dir)? else {
        cx.say(format!("no cluster is up in allocation {}", allocation.job));
        return Ok(());
    };
    if let Some(host) = &record.joined
        && !record.is_over()
    {
        return Err(Failure::request(format!(
            "these nodes are lent to the cluster of allocation {host}; end `muster slurm join` (Ctrl-C, SIGTERM) to take them back"
        )));
    }
    // The jobs of a cluster that these nodes were lent to are not this allocation's to end.
    let jobs = record.joined.is_none().then_some(grace);
    take_down(&super::own(cx, &allocation.job), &dir, jobs, false).await?;
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
pub(super) async fn to_exclude(cx: &Context, job: &str) -> Option<String> {
    failed(&nodes(cx).await?, job)
}

/// Whether Muster, or a person, has cordoned a node.
pub(super) async fn is_any_cordoned(cx: &Context) -> bool {
    let nodes = nodes(cx).await.unwrap_or_default();
    nodes.iter().any(|node| node.cordon.is_some())
}

async fn nodes(cx: &Context) -> Option<Vec<Node>> {
    let client = cx.connect().await.ok()?;
    get::all_nodes(&client).await.ok()
}

/// Those that are cordoned, and those of this allocation that were lost: another one ends as it likes.
fn failed(nodes: &[Node], job: &str) -> Option<String> {
    let is_lost =
        |node: &Node| node.state() == NodeState::Lost && label(node, LABEL_JOB) == Some(job);
    let failed = nodes
        .iter()
        .filter(|node| node.cordon.is_some() || is_lost(node));
    let names = failed.map(|node| label(node, LABEL_NODE).unwrap_or(&node.name));
    let names: BTreeSet<&str> = names.collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(","))
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.labels.get(key).map(String::as_str)
}

/// Waits until a job must have more nodes than are left, and for as long as a node may take to come back.
/// Returns that as a sentence. Nodes that fail are never replaced in an allocation.
pub(super) async fn too_few_nodes(cx: &Context, allocation: &str) -> String {
    let mut since = None;
    loop {
        sleep(LOOK).await;
        let Some(why) = lacks_nodes(cx, allocation).await else {
            since = None;
            continue;
        };
        if since.get_or_insert_with(Instant::now).elapsed() >= COMES_BACK {
            return why;
        }
    }
}

async fn lacks_nodes(cx: &Context, allocation: &str) -> Option<String> {
    let client = cx.connect().await.ok()?;
    let nodes = get::all_nodes(&client).await.ok()?;
    let jobs = get::all_jobs(&client, "").await.ok()?;
    lacking(&jobs, &nodes, allocation)
}

/// Why no job can go on here. While one can, the others wait: the allocation is of use. Nodes that another
/// allocation has lent may be lost, and lent again.
fn lacking(jobs: &[Job], nodes: &[Node], allocation: &str) -> Option<String> {
    let is_own = |node: &Node| label(node, LABEL_JOB) == Some(allocation);
    let is_good = |node: &&Node| node.state() == NodeState::Ready && node.cordon.is_none();
    let is_bad =
        |node: &Node| is_own(node) && (node.state() == NodeState::Lost || node.cordon.is_some());
    let good = nodes.iter().filter(is_good).count();
    if !nodes.iter().any(is_bad) {
        return None;
    }
    let open = jobs
        .iter()
        .filter(|job| !job.status.as_ref().is_some_and(follow::is_over));
    let lacks = |job: &Job| {
        let spec = job.spec.as_ref()?;
        // Several members of a packed job share a node.
        if spec.placement.as_deref() == Some("pack") {
            return None;
        }
        let least = usize::try_from(spec.min_replicas?).ok()?;
        let status = job.status.as_ref()?;
        let of_lost = |node: &Node| {
            let mut members = status.members.iter();
            is_own(node)
                && node.state() == NodeState::Lost
                && members.any(|member| member.node == node.name)
        };
        // One that trains on a cordoned node goes on there.
        let waits = status.waits_for_room.is_some() || nodes.iter().any(of_lost);
        let name = job.r#ref.as_ref().map_or("", |it| it.name.as_str());
        (waits && least > good).then(|| {
            format!(
                "job/{name} needs {}, and {good} of {} are left",
                words::count(least as u64, "node"),
                nodes.len()
            )
        })
    };
    let all: Option<Vec<String>> = open.map(lacks).collect();
    all?.into_iter().next()
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
    use muster_proto::v1::{Cordon, JobSpec, JobStatus, MemberStatus, WaitsForRoom};

    use super::*;

    #[test]
    fn lost_and_cordoned_nodes_are_left_out_next_time() {
        let good = node("n1", NodeState::Ready, None);
        assert_eq!(failed(std::slice::from_ref(&good), "4711"), None);
        let lost = node("n2", NodeState::Lost, None);
        let cordoned = node("n3", NodeState::Ready, Some(Cordon::default()));
        // Its allocation may just have ended.
        let mut another = node("n4-4712", NodeState::Lost, None);
        another.labels.insert(LABEL_JOB.into(), "4712".into());
        let mut broken = node("n5-4712", NodeState::Lost, Some(Cordon::default()));
        broken.labels.insert(LABEL_NODE.into(), "n5".into());
        let all = [good, lost, cordoned, another, broken];
        assert_eq!(failed(&all, "4711").as_deref(), Some("n2,n3,n5"));
    }

    #[test]
    fn a_job_lacks_nodes_if_fewer_are_left_than_it_must_have() {
        let on = |nodes: &[&str]| Job {
            spec: Some(JobSpec {
                min_replicas: Some(2),
                ..JobSpec::default()
            }),
            status: Some(JobStatus {
                waits_for_room: nodes.is_empty().then(WaitsForRoom::default),
                members: nodes
                    .iter()
                    .map(|node| MemberStatus {
                        node: (*node).into(),
                        ..MemberStatus::default()
                    })
                    .collect(),
                ..JobStatus::default()
            }),
            ..Job::default()
        };
        let good = node("n1", NodeState::Ready, None);
        let lost = node("n2", NodeState::Lost, None);
        let other = node("n3", NodeState::Ready, None);
        // One that has not come yet may come.
        assert_eq!(
            lacking(&[on(&[])], std::slice::from_ref(&good), "4711"),
            None
        );
        let two = [good.clone(), lost];
        for job in [on(&[]), on(&["n1", "n2"])] {
            assert!(lacking(std::slice::from_ref(&job), &two, "4711").is_some());
            // Another job still trains.
            let mut trains = on(&["n1"]);
            trains.spec.as_mut().unwrap().min_replicas = Some(1);
            assert_eq!(lacking(&[job.clone(), trains], &two, "4711"), None);
            // The lost node belongs to another allocation, which may lend it again.
            assert_eq!(lacking(std::slice::from_ref(&job), &two, "4712"), None);
            let mut packed = job;
            packed.spec.as_mut().unwrap().placement = Some("pack".into());
            assert_eq!(lacking(&[packed], &two, "4711"), None);
        }
        let three = [two.as_slice(), &[other]].concat();
        assert_eq!(lacking(&[on(&["n1", "n2"])], &three, "4711"), None);
        // One that trains on a cordoned node goes on there.
        let cordoned = node("n2", NodeState::Ready, Some(Cordon::default()));
        assert_eq!(
            lacking(&[on(&["n1", "n2"])], &[good, cordoned], "4711"),
            None
        );
    }

    fn node(name: &str, state: NodeState, cordon: Option<Cordon>) -> Node {
        let labels = [(LABEL_JOB, "4711"), (LABEL_NODE, name)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Node {
            name: name.into(),
            state: state.into(),
            cordon,
            labels: labels.into(),
            ..Node::default()
        }
    }
}
