//! The environment variables that a job may set.

use crate::nccl::affinity;

/// Why a job may not set this variable to this value: the name is not well-formed, or Muster or
/// torchrun sets the variable. `None`: it may.
pub(super) fn env_error(name: &str, value: &str) -> Option<String> {
    const OURS: [&str; 12] = [
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PYTHON_EXEC",
        "CUDA_VISIBLE_DEVICES",
    ];
    const OUR_PREFIXES: [&str; 4] = ["MUSTER_", "TORCHELASTIC_", "TORCH_ELASTIC_", "PET_"];
    let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 256;
    if !well_formed {
        Some(format!(
            "{name:?} is not the name of an environment variable (letters, digits and '_', not starting with a digit)"
        ))
    } else if name == affinity::RANK_CPUS {
        (value != affinity::OFF).then(|| {
            format!(
                "{name} may only be {}: which CPUs are near which GPU is the node's to know",
                affinity::OFF
            )
        })
    } else if OURS.contains(&name) || OUR_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        Some(format!(
            "{name} is set by Muster for every rank and cannot be set by a job"
        ))
    } else {
        None
    }
}
