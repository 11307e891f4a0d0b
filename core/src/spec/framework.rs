//! The framework of a job: what its processes need to be told to find each other.

use serde::{Deserialize, Serialize};

use super::RestartScope;

/// The name of the only role of a job without roles, and the usual one of MPI's nodes.
pub const WORKER: &str = "worker";

/// The role of MPI whose only member runs the job's command.
pub const LAUNCHER: &str = "launcher";

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
    /// What `paddle.distributed.launch` needs, which starts the processes of its node.
    Paddle,
    /// A hostfile and a program that starts others on its hosts. Only the launcher runs the job's
    /// command; the members of the other role lend their nodes to it ([`crate::node::mpi`]).
    Mpi,
    /// The hosts and ports of each role, in variables with the name of the role, as `TRAINER_HOSTS`.
    Trainingjob,
    /// Only Muster's own variables.
    Plain,
}

/// What a process of [`Framework::Paddle`] is told.
pub const PADDLE_VARIABLES: &[&str] =
    &["PADDLE_JOB_ID", "PADDLE_MASTER", "PADDLE_NNODES", "POD_IP"];

/// What a process of [`Framework::Trainingjob`] is told about itself.
pub const TRAINING_JOB_VARIABLES: &[&str] = &[
    "TRAININGJOB_NAME",
    "TRAININGJOB_NAMESPACE",
    "TRAININGJOB_REPLICA_NAME",
    "TRAININGJOB_REPLICA_INDEX",
    "TRAININGJOB_REPLICA_RESTARTCOUNT",
    "TRAININGJOB_SERVICE",
    "TRAININGJOB_PORTS",
];

/// The ends of the variables that [`Framework::Trainingjob`] has for each role.
const OF_A_ROLE: [&str; 6] = [
    "_INSTANCES",
    "_INSTANCES_NUM",
    "_PORTS",
    "_PORTS_NUM",
    "_HOSTS",
    "_HOSTS_NUM",
];

impl Framework {
    pub const ALL: [(&str, Framework); 8] = [
        ("torch", Framework::Torch),
        ("tensorflow", Framework::Tensorflow),
        ("jax", Framework::Jax),
        ("xgboost", Framework::Xgboost),
        ("paddle", Framework::Paddle),
        ("mpi", Framework::Mpi),
        ("trainingjob", Framework::Trainingjob),
        ("plain", Framework::Plain),
    ];

    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Framework::Torch => "torch",
            Framework::Tensorflow => "tensorflow",
            Framework::Jax => "jax",
            Framework::Xgboost => "xgboost",
            Framework::Paddle => "paddle",
            Framework::Mpi => "mpi",
            Framework::Trainingjob => "trainingjob",
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

    /// Whether its processes read the names of their roles, so that even a single role keeps its own.
    pub fn tells_role_names(self) -> bool {
        self == Framework::Trainingjob
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
            Framework::Paddle => PADDLE_VARIABLES,
            Framework::Trainingjob => TRAINING_JOB_VARIABLES,
            // Open MPI 4 and 5, MPICH, Intel MPI: who starts programs on other nodes, and which nodes.
            Framework::Mpi => &[
                "OMPI_MCA_plm_rsh_agent",
                "PRTE_MCA_plm_ssh_agent",
                "OMPI_MCA_orte_default_hostfile",
                "PRTE_MCA_prte_default_hostfile",
                "HYDRA_LAUNCHER",
                "HYDRA_LAUNCHER_EXEC",
                "HYDRA_HOST_FILE",
                "I_MPI_HYDRA_BOOTSTRAP",
                "I_MPI_HYDRA_BOOTSTRAP_EXEC",
                "I_MPI_HYDRA_HOST_FILE",
            ],
        };
        own.contains(&name)
    }

    /// Whether a variable has the name of this role, and every process of the job gets it.
    pub fn sets_of_role(self, role: &str, name: &str) -> bool {
        let rest = name.strip_prefix(&*role.to_ascii_uppercase());
        self.tells_role_names() && rest.is_some_and(|rest| OF_A_ROLE.contains(&rest))
    }

    /// Whether a role of this name serves the others, unless the document says otherwise. Parameter
    /// servers wait for ever, and an evaluator waits for the next checkpoint.
    pub(super) fn is_service(self, role: &str) -> bool {
        match self {
            Framework::Tensorflow => matches!(role, "ps" | "evaluator"),
            Framework::Mpi => self.lends(role),
            _ => false,
        }
    }

    /// Whether a process that was started again finds those that have run on, and they find it.
    pub(super) fn takes_members_back(self) -> bool {
        matches!(
            self,
            Framework::Tensorflow | Framework::Trainingjob | Framework::Plain
        )
    }

    /// What is started again after a failure in a role of this name, unless the document says
    /// otherwise. A worker beside parameter servers is used again when it is back at its address, and
    /// an evaluator only reads checkpoints. A worker without parameter servers belongs to a strategy
    /// that cannot take it back.
    pub(super) fn restart_scope(self, role: &str, has_ps: bool) -> RestartScope {
        match (self, role) {
            (Framework::Tensorflow, "worker") if has_ps => RestartScope::Member,
            (Framework::Tensorflow, "evaluator") => RestartScope::Member,
            _ => RestartScope::Job,
        }
    }

    /// Whether the members of this role run nothing of their own, and lend their nodes to the
    /// launcher.
    pub fn lends(self, role: &str) -> bool {
        self == Framework::Mpi && role != LAUNCHER
    }

    /// Why a role cannot have this name. `None`: it can.
    pub(super) fn refuses(self, role: &str) -> Option<&'static str> {
        let unknown = self == Framework::Tensorflow
            && !matches!(role, "chief" | "master" | "worker" | "ps" | "evaluator");
        unknown.then_some("TensorFlow knows chief, master, worker, ps and evaluator")
    }
}
