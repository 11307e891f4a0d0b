//! Starts a local cluster, and starts parts of it again.

use std::{ffi::OsString, path::Path, time::Duration};

use muster_core::id::label_error;
use muster_proto::v1::NodeState;
use muster_rpc::peer;
use tokio::time::{Instant, sleep};

use super::{
    AddNode, NodeFlags, StartFlags, Up,
    cluster::{self, Cluster, Lock, Node},
    daemon::{self, Starting},
    hardware, process, secure, status,
};
use crate::{
    args::Format, commands::get, connect::Client, context::Context, fail::Failure, output::words,
    shown::Shown,
};

pub(super) async fn up(cx: &Context, dir: &Path, args: Up) -> Result<(), Failure> {
    cluster::prepare(dir)?;
    let _lock = Lock::take(dir).await?;
    if let Some(old) = Cluster::load(dir)? {
        let known: Vec<_> = old.daemons().cloned().collect();
        let living = process::tree(dir, &known);
        if !living.is_empty() {
            let server = if old.server.is_empty() {
                String::new()
            } else {
                format!(" at {}", old.server)
            };
            return Err(Failure::request(format!(
                "a local cluster is up already in {}{server} ({}); `muster local status` shows it, `muster local down` stops it",
                dir.display(),
                words::count(living.len() as u64, "process"),
            )));
        }
        cx.say(format!(
            "the cluster in {} is not running any more; starting it again with its state",
            dir.display()
        ));
    }
    let begun = Instant::now();
    let cluster = start_or_cut(cx, dir, &args).await?;
    if peer::own_user() == 0 {
        cx.say(
            "you are root, so the workers of this cluster run as root and may do anything on this machine; if that is not meant, start it \
             as another user",
        );
    }
    cx.say(format!(
        "local cluster up in {:.1}s; its files are in {}",
        begun.elapsed().as_secs_f64(),
        dir.display()
    ));
    match cx.format() {
        Format::Table | Format::Wide => cx.print(&format!(
            "{} ready at {}\n",
            words::count(cluster.nodes.len() as u64, "node"),
            cluster.server
        )),
        _ => status::print(cx, dir, &cluster).await,
    }
}

/// Starts a cluster in a new directory, and tells no more than that.
pub(super) async fn bring_up(cx: &Context, dir: &Path, args: &Up) -> Result<(), Failure> {
    cluster::prepare(dir)?;
    let _lock = Lock::take(dir).await?;
    start_or_cut(cx, dir, args).await.map(|_| ())
}

async fn start_or_cut(cx: &Context, dir: &Path, args: &Up) -> Result<Cluster, Failure> {
    let started = start_all(cx, dir, args).await;
    if started.is_err() {
        // Stop everything that was half started. Logs and state stay, to show why the start failed.
        if let Err(left) = process::cut(|| process::tree(dir, &[])).await {
            cx.warn(format!("could not stop {}", process::named(&left)));
        }
    }
    started
}

async fn start_all(cx: &Context, dir: &Path, args: &Up) -> Result<Cluster, Failure> {
    let until = Instant::now() + args.start.timeout;
    let mut cluster = Cluster::new();
    cluster.save(dir)?;
    let bin_dir = args.start.bin_dir.as_deref();
    if args.tls {
        secure::init(dir, bin_dir)?;
    }
    coordinator(dir, &mut cluster, &args.start, "127.0.0.1:0", until).await?;
    if secure::is_tls(&cluster.server) {
        secure::login(dir, bin_dir, &cluster.server).await?;
    }
    cx.say(format!("coordinator serves at {}", cluster.server));
    let mut agents = Vec::new();
    for number in 1..=args.nodes {
        let name = format!("node-{number}");
        // Several agents on one machine would all report the same GPUs. So each gets its share, in
        // the order of their index.
        let gpus = args
            .node
            .hardware
            .is_none()
            .then(|| format!("{number}/{}", args.nodes));
        let NodeFlags {
            slots,
            label,
            hardware,
            warm_pool,
        } = args.node.clone();
        cluster.nodes.insert(
            name.clone(),
            Node {
                agent: None,
                slots,
                labels: label,
                hardware,
                gpus,
                warm_pool,
            },
        );
        agents.push(agent(dir, &mut cluster, &name, &args.start)?);
    }
    for starting in agents {
        starting.ready(until).await?;
    }
    let names: Vec<String> = cluster.nodes.keys().cloned().collect();
    nodes_ready(cx, dir, &cluster.server, names, until).await?;
    Ok(cluster)
}

pub(super) async fn add_node(cx: &Context, dir: &Path, args: AddNode) -> Result<(), Failure> {
    let (_lock, mut cluster) = cluster::open(dir).await?;
    let AddNode {
        name,
        node:
            NodeFlags {
                slots,
                label,
                hardware,
                warm_pool,
            },
        start,
    } = args;
    let name = name.unwrap_or_else(|| free_name(&cluster));
    if let Some(message) = label_error(&name) {
        return Err(Failure::usage(format!("the name of a node {message}")));
    }
    if cluster.nodes.contains_key(&name) {
        return Err(Failure::request(format!(
            "{name} exists already; `muster local start-node {name}` starts it again"
        )));
    }
    // The GPUs belong to the nodes that were started with the cluster.
    let gpus = hardware.is_none().then(|| "none".to_owned());
    cluster.nodes.insert(
        name.clone(),
        Node {
            agent: None,
            slots,
            labels: label,
            hardware,
            gpus,
            warm_pool,
        },
    );
    run_agent(cx, dir, &mut cluster, &name, &start).await
}

fn free_name(cluster: &Cluster) -> String {
    let highest = cluster
        .nodes
        .keys()
        .filter_map(|name| name.strip_prefix("node-")?.parse::<u32>().ok())
        .max()
        .unwrap_or(0);
    format!("node-{}", highest.saturating_add(1))
}

pub(super) async fn start_agent(
    cx: &Context,
    dir: &Path,
    name: &str,
    flags: &StartFlags,
) -> Result<(), Failure> {
    let (_lock, mut cluster) = cluster::open(dir).await?;
    if cluster
        .node(name)?
        .agent
        .as_ref()
        .is_some_and(|agent| agent.is_alive())
    {
        return Err(Failure::request(format!(
            "the agent of {name} is running already"
        )));
    }
    run_agent(cx, dir, &mut cluster, name, flags).await
}

async fn run_agent(
    cx: &Context,
    dir: &Path,
    cluster: &mut Cluster,
    name: &str,
    flags: &StartFlags,
) -> Result<(), Failure> {
    let until = Instant::now() + flags.timeout;
    agent(dir, cluster, name, flags)?.ready(until).await?;
    if cluster
        .coordinator
        .as_ref()
        .is_some_and(|coordinator| coordinator.is_alive())
    {
        nodes_ready(cx, dir, &cluster.server, vec![name.to_owned()], until).await?;
        return cx.print(&format!("{name} ready\n"));
    }
    cx.print(&format!(
        "{name} started; the coordinator is not running, so nobody knows of it yet\n"
    ))
}

pub(super) async fn start_coordinator(
    cx: &Context,
    dir: &Path,
    flags: &StartFlags,
) -> Result<(), Failure> {
    let (_lock, mut cluster) = cluster::open(dir).await?;
    if cluster
        .coordinator
        .as_ref()
        .is_some_and(|coordinator| coordinator.is_alive())
    {
        return Err(Failure::request("the coordinator is running already"));
    }
    let until = Instant::now() + flags.timeout;
    let address = cluster
        .server
        .trim_start_matches("http://")
        .trim_start_matches("https://")
        .to_owned();
    coordinator(dir, &mut cluster, flags, &address, until).await?;
    cx.print(&format!("coordinator serves at {}\n", cluster.server))
}

/// Starts the coordinator at `listen`, waits until it serves, and records its process and its
/// address.
async fn coordinator(
    dir: &Path,
    cluster: &mut Cluster,
    flags: &StartFlags,
    listen: &str,
    until: Instant,
) -> Result<(), Failure> {
    let program = daemon::binary(flags.bin_dir.as_deref(), "muster-coordinator")?;
    let home = cluster::coordinator_dir(dir);
    let args: [(&str, OsString); 3] = [
        ("--listen", listen.into()),
        ("--state-dir", home.join("state").into()),
        ("--ready-file", daemon::ready_file(&home).into()),
    ];
    let starting = daemon::spawn("coordinator", &home, &program, &flat(args))?;
    cluster.coordinator = Some(starting.identity.clone());
    cluster.save(dir)?;
    cluster.server = starting.ready(until).await?.endpoint;
    cluster.save(dir)
}

/// Starts a node's agent and records it.
fn agent(
    dir: &Path,
    cluster: &mut Cluster,
    name: &str,
    flags: &StartFlags,
) -> Result<Starting, Failure> {
    let program = daemon::binary(flags.bin_dir.as_deref(), "muster-agent")?;
    let runner = daemon::binary(flags.bin_dir.as_deref(), "muster-runner")?;
    let home = cluster::node_dir(dir, name);
    let node = cluster.node(name)?.clone();
    if secure::is_tls(&cluster.server) {
        secure::join(dir, flags.bin_dir.as_deref(), &cluster.server, name)?;
    }
    let mut args = flat([
        ("--coordinator", OsString::from(&cluster.server)),
        ("--node-name", name.into()),
        ("--state-dir", home.join("state").into()),
        ("--address", "127.0.0.1".into()),
        ("--slots", node.slots.to_string().into()),
        ("--runner", runner.into()),
        ("--ready-file", daemon::ready_file(&home).into()),
    ]);
    // Several agents share this machine, and none knows whether the others are idle. One that has all of it does.
    if node.gpus.as_deref() != Some("1/1") {
        args.push("--no-prove".into());
    }
    if node.warm_pool > 0 {
        args.extend(flat([("--warm-pool", node.warm_pool.to_string().into())]));
    }
    if peer::own_user() == 0 {
        args.push("--allow-root-workers".into());
    }
    args.extend(
        node.labels
            .iter()
            .flat_map(|label| ["--label".into(), OsString::from(label)]),
    );
    args.extend(
        node.gpus
            .iter()
            .flat_map(|gpus| ["--gpus".into(), OsString::from(gpus)]),
    );
    if let Some(scenario) = &node.hardware {
        args.extend(hardware::flags(
            flags.bin_dir.as_deref(),
            &home,
            name,
            scenario,
        )?);
    }
    let starting = daemon::spawn(name, &home, &program, &args)?;
    cluster.nodes.insert(
        name.to_owned(),
        Node {
            agent: Some(starting.identity.clone()),
            ..node
        },
    );
    cluster.save(dir)?;
    Ok(starting)
}

fn flat<const N: usize>(flags: [(&str, OsString); N]) -> Vec<OsString> {
    flags
        .into_iter()
        .flat_map(|(flag, value)| [flag.into(), value])
        .collect()
}

/// The pause between two questions to the coordinator. Agents connect in tens of milliseconds.
const ASK: Duration = Duration::from_millis(50);

/// Waits until the coordinator says that all these nodes are Ready.
async fn nodes_ready(
    cx: &Context,
    dir: &Path,
    server: &str,
    mut names: Vec<String>,
    until: Instant,
) -> Result<(), Failure> {
    let shown = secure::credentials(dir, server).map(Shown::Credentials);
    let patience = Some(Duration::from_secs(5));
    let client = Client::connect(server, shown.as_ref(), patience).await?;
    loop {
        let nodes = get::all_nodes(&client).await?;
        let is_ready = |name: &String| {
            nodes
                .iter()
                .any(|node| &node.name == name && node.state() == NodeState::Ready)
        };
        for name in names.extract_if(.., |name| is_ready(name)) {
            cx.say(format!("{name} is ready"));
        }
        if names.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Failure::Timeout(format!(
                "the coordinator does not see {} ready",
                names.join(", ")
            )));
        }
        sleep(ASK).await;
    }
}
