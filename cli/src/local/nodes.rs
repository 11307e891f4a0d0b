//! Does to parts of a local cluster what happens to real machines.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use super::{
    cluster,
    process::{self, Identity},
};
use crate::{context::Context, fail::Failure, output::words};

pub(crate) async fn kill_node(cx: &Context, dir: &Path, name: &str) -> Result<(), Failure> {
    let (_lock, cluster) = cluster::open(dir).await?;
    let agent = cluster.node(name)?.agent.clone();
    let home = cluster::node_dir(dir, name);
    let known: Vec<Identity> = agent
        .into_iter()
        .chain(runners(&home).into_iter().map(|(_, runner)| runner))
        .collect();
    match process::cut(|| process::tree(&home, &known)).await {
        Ok(0) => Err(Failure::request(format!(
            "{name} is dead already: no process of it lives"
        ))),
        Ok(count) => cx.print(&format!(
            "{name} killed ({})\n",
            words::count(count as u64, "process")
        )),
        Err(left) => Err(Failure::request(format!(
            "{name}: could not kill {}",
            process::named(&left)
        ))),
    }
}

/// The runners of a node that may still live, each with its directory.
pub(crate) fn runners(home: &Path) -> Vec<(PathBuf, Identity)> {
    let Ok(runs) = fs::read_dir(home.join("state/runs")) else {
        return Vec::new();
    };
    let read = |run: PathBuf| {
        let text = fs::read(run.join("runner.json")).ok()?;
        // A damaged record is skipped. The runner's processes are then found by the directory that
        // they name.
        Some((
            run,
            serde_json::from_slice(muster_sealed::open(&text).ok()?).ok()?,
        ))
    };
    runs.flatten()
        .filter_map(|entry| read(entry.path()))
        .collect()
}

pub(crate) async fn kill_agent(cx: &Context, dir: &Path, name: &str) -> Result<(), Failure> {
    let (_lock, cluster) = cluster::open(dir).await?;
    let agent = cluster.node(name)?.agent.clone();
    kill_one(cx, &format!("agent of {name}"), agent).await
}

pub(crate) async fn kill_coordinator(cx: &Context, dir: &Path) -> Result<(), Failure> {
    let (_lock, cluster) = cluster::open(dir).await?;
    kill_one(cx, "coordinator", cluster.coordinator).await
}

async fn kill_one(cx: &Context, what: &str, process: Option<Identity>) -> Result<(), Failure> {
    let Some(process) = process.filter(Identity::is_alive) else {
        return Err(Failure::request(format!("{what}: is not running")));
    };
    process.signal(Signal::KILL);
    let left = process::wait_gone(BTreeSet::from([process]), process::KILL_TIMEOUT).await;
    if left.is_empty() {
        cx.print(&format!("{what} killed\n"))
    } else {
        Err(Failure::request(format!(
            "{what}: could not kill {}",
            process::named(&left)
        )))
    }
}
