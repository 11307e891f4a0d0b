//! `muster-fake-gpus`: offers the GPUs of a fake machine to a real kubelet, for `tests/e2e`.

use std::path::PathBuf;

use clap::Parser;
use muster_senses::plugin;
use tokio::signal::unix::{SignalKind, signal};

/// A device plugin: offers the GPUs of a machine that `muster-hardware make` has made to the kubelet
/// of this node, as nvidia.com/gpu. Runs until it gets SIGTERM.
#[derive(Debug, Parser)]
struct Flags {
    /// The directory of the machine
    machine: PathBuf,
    /// The kubelet's directory for device plugins
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    plugins: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    // The kernel ignores the signal for the first process of a container that does not ask for it.
    let mut told_to_end = signal(SignalKind::terminate())?;
    tokio::select! {
        failed = plugin::offer(plugin::gpus_of(&flags.machine)?, &flags.plugins) => failed,
        _ = told_to_end.recv() => Ok(()),
    }
}
