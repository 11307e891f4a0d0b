//! The living parts of a local cluster.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde::Serialize;

use super::{
    cluster::{self, Cluster},
    process::{self, Identity},
    secure,
};
use crate::{
    args::Format,
    commands::get,
    connect::Client,
    context::Context,
    fail::Failure,
    output::{self, table::Table, words},
    shown::Shown,
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LocalCluster {
    api_version: &'static str,
    kind: &'static str,
    dir: String,
    server: String,
    parts: Vec<Part>,
}

/// One daemon.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    name: String,
    process: &'static str,
    pid: Option<i32>,
    /// Living processes of this part: the daemon, its runners and their workers.
    processes: usize,
    /// The node's state according to the coordinator. For the coordinator itself: whether it
    /// answers.
    state: String,
    log: String,
}

pub(super) async fn status(cx: &Context, dir: &Path) -> Result<(), Failure> {
    let cluster = Cluster::existing(dir)?;
    print(cx, dir, &cluster).await?;
    if cluster.daemons().any(Identity::is_alive) {
        Ok(())
    } else {
        Err(Failure::request(format!(
            "the cluster in {} is down; `muster local up` starts it again",
            dir.display()
        )))
    }
}

pub(super) async fn print(cx: &Context, dir: &Path, cluster: &Cluster) -> Result<(), Failure> {
    let states = node_states(dir, &cluster.server).await;
    let mut parts = vec![part(
        "coordinator",
        &cluster::coordinator_dir(dir),
        cluster.coordinator.as_ref(),
        match &states {
            Ok(_) => "Serving".into(),
            Err(_) => "Unreachable".into(),
        },
    )];
    for (name, node) in &cluster.nodes {
        let state = states
            .as_ref()
            .ok()
            .and_then(|states| states.get(name))
            .map_or("Unknown", |state| *state);
        parts.push(part(
            name,
            &cluster::node_dir(dir, name),
            node.agent.as_ref(),
            state.into(),
        ));
    }
    let shown = LocalCluster {
        api_version: muster_core::spec::API_VERSION,
        kind: "LocalCluster",
        dir: dir.display().to_string(),
        server: cluster.server.clone(),
        parts,
    };
    match cx.format() {
        Format::Json => cx.print(&output::json(&shown)),
        Format::Yaml => cx.print(&output::yaml(&shown)),
        Format::Name => cx.print(
            &shown
                .parts
                .iter()
                .map(|part| format!("{}\n", part.name))
                .collect::<String>(),
        ),
        Format::Table | Format::Wide => {
            cx.say(format!("{} in {}", shown.server, shown.dir));
            cx.print(&table(
                &shown,
                cx.format() == Format::Wide,
                !cx.globals.no_headers,
            ))
        }
    }
}

fn table(shown: &LocalCluster, wide: bool, heads: bool) -> String {
    let mut names = vec!["NAME", "PROCESS", "PID", "PROCESSES", "STATE"];
    if wide {
        names.push("LOG");
    }
    let row = |part: &Part| {
        let pid = part.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let mut row = vec![
            part.name.clone(),
            part.process.into(),
            pid,
            part.processes.to_string(),
            part.state.clone(),
        ];
        if wide {
            row.push(part.log.clone());
        }
        row
    };
    Table::new(names).render(&shown.parts.iter().map(row).collect::<Vec<_>>(), heads)
}

fn part(name: &str, home: &Path, daemon: Option<&Identity>, state: String) -> Part {
    let alive = daemon.filter(|daemon| daemon.is_alive());
    Part {
        name: name.to_owned(),
        process: if alive.is_some() { "Running" } else { "Dead" },
        pid: alive.map(|daemon| daemon.pid),
        processes: process::tree(home, &[]).len(),
        state,
        log: home.join("log").display().to_string(),
    }
}

async fn node_states(dir: &Path, server: &str) -> Result<BTreeMap<String, &'static str>, Failure> {
    let shown = secure::credentials(dir, server).map(Shown::Credentials);
    let patience = Some(Duration::from_secs(2));
    let client = Client::connect(server, shown.as_ref(), patience).await?;
    let nodes = get::all_nodes(&client).await?;
    Ok(nodes
        .into_iter()
        .map(|node| (node.name, words::node_state(node.state)))
        .collect())
}
