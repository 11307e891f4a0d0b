//! The environment that torchrun would give each rank. The lanes without torchrun need all of it,
//! and every lane needs the values that torchrun keeps over restarts.
//!
//! Names and values are those that `torch.distributed.elastic.agent.server.local_elastic_agent` of
//! torch 2.15 sets for a static world of equal nodes; an order says which of them an older one does not set. The compatibility suite
//! (`tests/drills/tests/lanes.rs`) compares each of them with torchrun's.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use muster_runner::Folder;
use muster_runner::wire::{Hold, Order, StartSpec};

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
pub(crate) const ERRORS: &str = "errors";

/// The numbers of one rank.
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) local: u32,
    /// The number of local ranks.
    pub(crate) of: u32,
    /// The number of its member.
    pub(crate) group: u32,
    /// Its number among all ranks of the node.
    pub(crate) on_node: u32,
}

impl Place {
    /// The place of a local rank of a node's only member.
    pub(crate) fn alone(spec: &StartSpec, hold: &Hold, local: u32) -> Self {
        Place {
            rank: spec.first_rank + local,
            local,
            of: spec.ranks,
            group: hold.node_rank,
            on_node: local,
        }
    }
}

/// The complete environment of a rank. `given` is what its launch has, and `dir` the runner's
/// directory.
pub(crate) fn of(
    given: &BTreeMap<String, String>,
    hold: &Hold,
    order: &Order,
    place: &Place,
    dir: &Path,
) -> BTreeMap<String, String> {
    let mut env = given.clone();
    for name in OURS {
        env.remove(name);
    }
    let numbers = [
        ("RANK", place.rank),
        ("LOCAL_RANK", place.local),
        ("GROUP_RANK", place.group),
        ("ROLE_RANK", place.rank),
        ("LOCAL_WORLD_SIZE", place.of),
        ("WORLD_SIZE", hold.world_size),
        ("GROUP_WORLD_SIZE", hold.nnodes),
        ("ROLE_WORLD_SIZE", hold.world_size),
        ("TORCHELASTIC_RESTART_COUNT", 0),
        ("TORCHELASTIC_MAX_RESTARTS", 0),
    ];
    env.extend(numbers.map(|(name, number)| (name.to_owned(), number.to_string())));
    let error_file = dir
        .join(ERRORS)
        .join(place.on_node.to_string())
        .join("error.json");
    let texts = [
        ("ROLE_NAME", "default".to_owned()),
        ("TORCHELASTIC_RUN_ID", order.run_id.clone()),
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
    let sets = |(name, _): &(&str, String)| !order.lacks.iter().any(|lacks| lacks == name);
    let texts = texts.into_iter().filter(sets);
    env.extend(texts.map(|(name, text)| (name.to_owned(), text)));
    for (name, source) in OVER_RESTARTS {
        if let Some(value) = env.get(source).cloned() {
            env.insert(name.to_owned(), value);
        }
    }
    complete(&mut env);
    env
}

/// Adds what torchrun gives every rank that does not have it already.
pub(crate) fn complete(env: &mut BTreeMap<String, String>) {
    env.entry("TORCH_NCCL_ASYNC_ERROR_HANDLING".to_owned())
        .or_insert_with(|| "1".to_owned());
}

/// Makes the folders of the error files, in the current directory.
pub(crate) fn make_error_folders(ranks: u32) -> io::Result<()> {
    let errors = Folder::trusted(Path::new("."))?.make(ERRORS)?;
    (0..ranks).try_for_each(|local| errors.make(local.to_string()).map(drop))
}
