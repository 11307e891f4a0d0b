//! `muster local up --tls`: the certificate authority, join tokens and certificates of a real
//! cluster, on one machine. The commands are those that a person would give.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use muster_rpc::{
    Address, enroll,
    tls::{Pin, Trust},
};

use super::{cluster, daemon};
use crate::fail::Failure;

/// The name by which everything here calls the coordinator.
const NAME: &str = "127.0.0.1";

/// Whether a coordinator at this endpoint speaks TLS.
pub(super) fn is_tls(server: &str) -> bool {
    server.starts_with("https://")
}

/// What the user of this cluster shows to its coordinator, if that speaks TLS.
pub(crate) fn credentials(dir: &Path, server: &str) -> Option<PathBuf> {
    is_tls(server).then(|| dir.join("credentials.json"))
}

/// Makes the certificate authority, if there is none.
pub(super) fn init(dir: &Path, bin_dir: Option<&Path>) -> Result<(), Failure> {
    coordinator(dir, bin_dir, &["init", "--name", NAME]).map(drop)
}

/// Gets the node's certificate, if it has none.
pub(super) fn join(
    dir: &Path,
    bin_dir: Option<&Path>,
    server: &str,
    node: &str,
) -> Result<(), Failure> {
    let state = cluster::node_dir(dir, node).join("state");
    if state.join("identity/credentials.json").exists() {
        return Ok(());
    }
    let pin = coordinator(dir, bin_dir, &["pin"])?;
    let token = coordinator(dir, bin_dir, &["token", "create", "--host", node])?;
    let mut command = Command::new(daemon::binary(bin_dir, "muster-agent")?);
    command
        .args([
            "join",
            server,
            "--ca-pin",
            &pin,
            "--node-name",
            node,
            "--state-dir",
        ])
        .arg(&state)
        .env("MUSTER_TOKEN", token);
    said(command, "muster-agent join").map(drop)
}

/// Gets the user's certificate, as admin, if there is none.
pub(super) async fn login(dir: &Path, bin_dir: Option<&Path>, server: &str) -> Result<(), Failure> {
    let path = dir.join("credentials.json");
    if path.exists() {
        return Ok(());
    }
    let pin = coordinator(dir, bin_dir, &["pin"])?;
    let create = [
        "token",
        "create",
        "--user",
        "local",
        "--role",
        "admin",
        "--all-namespaces",
    ];
    let token = coordinator(dir, bin_dir, &create)?;
    enroll(server, &pin, &token, &path).await
}

/// Gets a user's certificate for a join token, and writes it into a file.
pub(crate) async fn enroll(
    server: &str,
    pin: &str,
    token: &str,
    path: &Path,
) -> Result<(), Failure> {
    let address: Address = server.parse().map_err(Failure::request)?;
    let pin: Pin = pin.parse().map_err(Failure::request)?;
    let got = enroll::join(&address, &Trust::Pinned(pin), token, "").await;
    let got = got.map_err(Failure::request)?;
    got.write(path).map_err(Failure::request)
}

fn coordinator(dir: &Path, bin_dir: Option<&Path>, args: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(daemon::binary(bin_dir, "muster-coordinator")?);
    command
        .args(args)
        .arg("--state-dir")
        .arg(cluster::coordinator_dir(dir).join("state"));
    said(command, "muster-coordinator")
}

/// Runs a command, and returns what it prints.
pub(crate) fn said(mut command: Command, name: &str) -> Result<String, Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::request(format!("{name}: {e}")))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::request(format!("{name}: {}", why.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
