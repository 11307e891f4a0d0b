//! The environment that torchrun would give each rank. The lanes without torchrun need all of it,
//! and every lane needs the values that torchrun keeps over restarts.
//!
//! Names and values are those that `torch.distributed.elastic.agent.server.local_elastic_agent` of
//! torch 2.15 sets for a static world of equal nodes. The compatibility suite
//! (`tests/drills/tests/lanes.rs`) compares each of them with torchrun's.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use muster_runner::wire::{Hold, StartSpec};

/// The variables of a launch that only torchrun and its shims use.
pub(crate) const OURS: [&str; 4] = [
    "PYTHON_EXEC",
    "MUSTER_SHIM_DIR",
    "MUSTER_SHIM_PROGRAM",
    "MUSTER_SHIM_ARGS",
];

/// The variables that torchrun keeps or counts over restarts, each with the variable of a launch
/// that holds its value. torchrun itself cannot: each generation has its own torchrun, which names
/// its rendezvous after the generation and counts no restarts.
pub(crate) const OVER_RESTARTS: [(&str, &str); 2] = [
    ("TORCHELASTIC_RUN_ID", "MUSTER_JOB_UID"),
    ("TORCHELASTIC_RESTART_COUNT", "MUSTER_RESTART_COUNT"),
];

/// The folder, in the runner's directory, in which `@record` notes each rank's exception. torchrun
/// makes such files too.
const ERRORS: &str = "errors";

/// The complete environment of the rank with this local rank. `dir` is the runner's directory.
pub(crate) fn of(
    spec: &StartSpec,
    hold: &Hold,
    run_id: &str,
    local: u32,
    dir: &Path,
) -> BTreeMap<String, String> {
    let mut env = spec.env.clone();
    for name in OURS {
        env.remove(name);
    }
    let rank = spec.first_rank + local;
    let numbers = [
        ("RANK", rank),
        ("LOCAL_RANK", local),
        ("GROUP_RANK", hold.node_rank),
        ("ROLE_RANK", rank),
        ("LOCAL_WORLD_SIZE", spec.ranks),
        ("WORLD_SIZE", hold.world_size),
        ("GROUP_WORLD_SIZE", hold.nnodes),
        ("ROLE_WORLD_SIZE", hold.world_size),
        ("TORCHELASTIC_RESTART_COUNT", 0),
        ("TORCHELASTIC_MAX_RESTARTS", 0),
    ];
    env.extend(numbers.map(|(name, number)| (name.to_owned(), number.to_string())));
    let error_file = dir.join(ERRORS).join(local.to_string()).join("error.json");
    let texts = [
        ("ROLE_NAME", "default".to_owned()),
        ("TORCHELASTIC_RUN_ID", run_id.to_owned()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        (
            "TORCHELASTIC_SIGNALS_TO_HANDLE",
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT".to_owned(),
        ),
        (
            "TORCHELASTIC_ERROR_FILE",
            error_file.to_string_lossy().into_owned(),
        ),
    ];
    env.extend(texts.map(|(name, text)| (name.to_owned(), text)));
    for (name, source) in OVER_RESTARTS {
        if let Some(value) = env.get(source).cloned() {
            env.insert(name.to_owned(), value);
        }
    }
    env.entry("TORCH_NCCL_ASYNC_ERROR_HANDLING".to_owned())
        .or_insert_with(|| "1".to_owned());
    env
}

/// Makes the folders of the error files, in the current directory.
pub(crate) fn make_error_folders(ranks: u32) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    (0..ranks).try_for_each(|local| builder.create(Path::new(ERRORS).join(local.to_string())))
}
