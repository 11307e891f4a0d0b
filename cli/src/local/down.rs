//! Ends a local cluster so that nothing of it is left.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    net::TcpStream,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Down,
    cluster::{self, Cluster, Lock},
    nodes,
    process::{self, Identity},
};
use crate::{context::Context, fail::Failure};

/// How long the daemons may take to end gracefully before they are killed. They have no unsaved
/// state, and a person waits.
const DAEMON_GRACE: Duration = Duration::from_secs(1);
/// The pause between two looks at workers that save their state.
const LOOK: Duration = Duration::from_millis(20);

pub(super) async fn down(cx: &Context, dir: &Path, args: &Down) -> Result<(), Failure> {
    if Cluster::load(dir)?.is_none() {
        cx.say(format!("no local cluster in {}", dir.display()));
        return Ok(());
    }
    take_down(cx, dir, args).await?;
    match args.keep {
        true => cx.print(&format!(
            "local cluster down; its logs and state are in {}\n",
            dir.display()
        )),
        false => cx.print("local cluster down\n"),
    }
}

/// Ends the cluster, if there is one, and tells only what takes long or goes wrong.
pub(super) async fn take_down(cx: &Context, dir: &Path, args: &Down) -> Result<(), Failure> {
    let Some(mut cluster) = Cluster::load(dir)? else {
        return Ok(());
    };
    let lock = Lock::take(dir).await?;
    let daemons: BTreeSet<Identity> = cluster
        .daemons()
        .filter(|daemon| daemon.is_alive())
        .cloned()
        .collect();
    let mut runners = Vec::new();
    for name in cluster.nodes.keys() {
        runners.extend(nodes::runners(&cluster::node_dir(dir, name)));
    }
    runners.retain(|(_, runner)| runner.is_alive());
    // End the coordinator and the agents first, so that they do not form a new world from the one
    // that is being stopped.
    for daemon in &daemons {
        daemon.signal(Signal::TERM);
    }
    process::wait_gone(daemons.clone(), DAEMON_GRACE).await;
    stop_workers(cx, &runners, args.grace).await;
    let known: Vec<Identity> = daemons
        .into_iter()
        .chain(runners.iter().map(|(_, runner)| runner.clone()))
        .collect();
    let find = || process::tree(dir, &known);
    process::cut(find)
        .await
        .map_err(|left| Failure::request(format!("could not kill {}", process::named(&left))))?;
    let left = leftovers(dir, &cluster.server, &find());
    if !left.is_empty() {
        return Err(Failure::request(format!(
            "still there: {}",
            left.join("; ")
        )));
    }
    if args.keep {
        remove_sockets(dir);
        cluster.coordinator = None;
        cluster
            .nodes
            .values_mut()
            .for_each(|node| node.agent = None);
        return cluster.save(dir);
    }
    drop(lock);
    Cluster::remove(dir).map_err(|error| Failure::request(format!("{}: {error}", dir.display())))
}

/// Tells every runner to stop its group. Waits until only the runners are left, or the grace period
/// is over.
pub(crate) async fn stop_workers(cx: &Context, runners: &[(PathBuf, Identity)], grace: Duration) {
    if runners.is_empty() {
        return;
    }
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    for (run, _) in runners {
        // A runner that cannot be asked is killed below.
        let _ = ask_to_stop(run, grace_ms);
    }
    let alone: BTreeSet<Identity> = runners.iter().map(|(_, runner)| runner.clone()).collect();
    let known: Vec<Identity> = alone.iter().cloned().collect();
    let begun = Instant::now();
    let mut said = false;
    while begun.elapsed() < grace {
        // Look only at descendants: processes that do not belong to runners carry the directory's
        // mark too.
        let workers = process::descendants(&known);
        if workers.is_empty() {
            return;
        }
        if !said && begun.elapsed() > Duration::from_secs(1) {
            cx.say(format!(
                "waiting for {} workers to save their state (at most {:?})",
                workers.len(),
                grace
            ));
            said = true;
        }
        sleep(LOOK).await;
    }
}

/// Speaks the runner's own protocol: one JSON object per line on its control socket. The path goes
/// through a descriptor of the directory, because a socket's address has room for only 108 bytes.
fn ask_to_stop(run: &Path, grace_ms: u64) -> io::Result<()> {
    let dir = File::open(run)?;
    let mut socket =
        UnixStream::connect(format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd()))?;
    socket.set_write_timeout(Some(Duration::from_secs(1)))?;
    let request = json!({"v": 1, "id": 1, "cmd": "stop", "grace_ms": grace_ms, "reason": "muster local down"});
    socket.write_all(format!("{request}\n").as_bytes())?;
    // Wait for the answer, which says that the request was heard: hanging up before that might lose
    // it.
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    io::Read::read(&mut socket, &mut [0; 1]).map(|_| ())
}

/// What is left although it should be gone.
fn leftovers(dir: &Path, server: &str, living: &BTreeSet<Identity>) -> Vec<String> {
    let mut left = Vec::new();
    if !living.is_empty() {
        left.push(format!("processes {}", process::named(living)));
    }
    if let Ok(address) = server.trim_start_matches("http://").parse()
        && TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
    {
        left.push(format!("something listens on {address}"));
    }
    let answering = sockets(dir).into_iter().filter(|socket| {
        let parent = socket.parent().and_then(|parent| File::open(parent).ok());
        let name = socket
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        parent.is_some_and(|parent| {
            UnixStream::connect(format!("/proc/self/fd/{}/{name}", parent.as_raw_fd())).is_ok()
        })
    });
    left.extend(answering.map(|socket| format!("something listens on {}", socket.display())));
    left
}

fn remove_sockets(dir: &Path) {
    for socket in sockets(dir) {
        // The file of a dead socket does no harm.
        let _ = fs::remove_file(socket);
    }
}

/// Socket files below a directory.
fn sockets(dir: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(sockets(&entry.path())),
            Ok(kind) if kind.is_socket() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}
