//! The framework of a job: what its processes need to be told to find each other.

use serde::{Deserialize, Serialize};

/// Members of a job whose processes are told about each other one by one. 1,024 addresses fit an
/// environment variable, of which Linux allows 128 KiB.
pub const PEERS_MAX: i64 = 1_024;

/// How the processes of a job find each other. Only torch has a process group that Muster forms; the
/// others are told each other's addresses ([`crate::node::peers`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Framework {
    /// torchrun's environment.
    #[default]
    Torch,
    /// `TF_CONFIG`.
    Tensorflow,
    /// The address of process 0, and the number of processes.
    Jax,
    /// The address of the master, and those of all workers. LightGBM reads the same.
    Xgboost,
    /// Only Muster's own variables.
    Plain,
}

impl Framework {
    pub const ALL: [(&str, Framework); 5] = [
        ("torch", Framework::Torch),
        ("tensorflow", Framework::Tensorflow),
        ("jax", Framework::Jax),
        ("xgboost", Framework::Xgboost),
        ("plain", Framework::Plain),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Framework::Torch => "torch",
            Framework::Tensorflow => "tensorflow",
            Framework::Jax => "jax",
            Framework::Xgboost => "xgboost",
            Framework::Plain => "plain",
        }
    }

    pub fn is_torch(&self) -> bool {
        *self == Framework::Torch
    }

    /// Whether each member chooses a port, and all members are told the ports and addresses.
    pub fn tells_peers(self) -> bool {
        self != Framework::Torch
    }

    /// Whether its processes are forked from an interpreter that has imported the framework.
    pub fn has_launchers(self) -> bool {
        self == Framework::Torch
    }

    /// Whether every process gets this variable from Muster, so that no job may set it.
    pub fn sets(self, name: &str) -> bool {
        let own: &[&str] = match self {
            Framework::Torch | Framework::Plain => &[],
            Framework::Tensorflow => &["TF_CONFIG"],
            Framework::Jax => &[
                "COORDINATOR_ADDRESS",
                "COORDINATOR_PORT",
                "NUM_PROCESSES",
                "PROCESS_ID",
                "JAX_COORDINATOR_ADDRESS",
                "OMPI_MCA_orte_hnp_uri",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_LOCAL_RANK",
            ],
            Framework::Xgboost => &["WORKER_ADDRS", "WORKER_PORT"],
        };
        own.contains(&name)
    }

    /// Whether a role of this name serves the others, unless the document says otherwise. Parameter
    /// servers wait for ever, and an evaluator waits for the next checkpoint.
    pub(super) fn is_service(self, role: &str) -> bool {
        self == Framework::Tensorflow && matches!(role, "ps" | "evaluator")
    }

    /// Why a role cannot have this name. `None`: it can.
    pub(super) fn refuses(self, role: &str) -> Option<&'static str> {
        let known = matches!(role, "chief" | "master" | "worker" | "ps" | "evaluator");
        (self == Framework::Tensorflow && !known)
            .then_some("TensorFlow knows chief, master, worker, ps and evaluator")
    }
}
