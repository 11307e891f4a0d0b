//! The environment variables that a job may set.

use serde::{Deserialize, Serialize};

use super::errors::Errors;
use crate::nccl::affinity;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    pub name: String,
    #[serde(default)]
    pub value: String,
    /// Where the value is, in place of `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// Where the value of a variable is. The store and the coordinator never have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueFrom {
    /// An absolute path on each node, read by the user that they run as when the ranks start.
    pub file: String,
}

/// Beginnings of names that may not come from a file: a launcher has read them before, or the node's
/// profile counts on them.
const READ_EARLIER: [&str; 12] = [
    "NCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "LD_",
    "PYTHON",
    "TORCH",
    "CUDA_",
    "PATH",
    "MALLOC_",
];

pub(super) fn check_value_from(at: &str, i: usize, var: &EnvVar, file: &str, errors: &mut Errors) {
    let path = format!("{at}.env[{i}].valueFrom.file");
    if !var.value.is_empty() {
        let message = "is given beside a value; give one of them";
        errors.add(format!("{at}.env[{i}].valueFrom"), message);
    }
    if let Some(prefix) = READ_EARLIER.iter().find(|p| var.name.starts_with(**p)) {
        let message = format!(
            "{prefix} variables take effect before the file is read, or Muster chooses them; give a value"
        );
        errors.add(format!("{at}.env[{i}].valueFrom"), message);
    }
    if !file.starts_with('/') {
        errors.add(path, format!("{file:?} is not an absolute path"));
    } else if file.contains('\0') {
        errors.add(path, "has a NUL byte");
    }
}

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

/// Whether Muster or torchrun sets this variable for every rank. No job may set it, and no rank gets
/// it from an image.
pub fn is_of_a_launch(name: &str) -> bool {
    OURS.contains(&name) || OUR_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Why a job may not set this variable to this value: the name is not well-formed, or Muster or
/// torchrun sets the variable. `None`: it may.
pub(super) fn env_error(name: &str, value: &str) -> Option<String> {
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
    } else if is_of_a_launch(name) {
        Some(format!(
            "{name} is set by Muster for every rank and cannot be set by a job"
        ))
    } else {
        None
    }
}
