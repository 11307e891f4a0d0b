//! What of this machine a container gets to see, if it is there. Nothing of it is opened.

use std::path::Path;

use muster_core::node::container::{Asked, is_mounted};

/// Devices that podman would hide: without them NCCL does not use InfiniBand.
const DEVICES: [&str; 1] = ["/dev/infiniband"];

/// The directories in which members start, of those that are mounted.
pub(super) fn work_dirs(asked: &Asked) -> Vec<String> {
    let is_there = |dir: &&String| is_mounted(dir) && Path::new(dir).is_dir();
    asked.work_dirs.iter().filter(is_there).cloned().collect()
}

pub(super) fn devices() -> Vec<String> {
    let there = DEVICES.iter().filter(|device| Path::new(device).exists());
    there.map(|device| (*device).to_owned()).collect()
}
