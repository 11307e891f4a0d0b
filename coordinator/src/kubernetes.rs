//! All that is said to a Kubernetes API server. Nothing else in Muster speaks with one, but the store
//! that keeps its records there, through `server`. Agents have no rights there, so the coordinator
//! asks for all of them.
//!
//! | file | owns |
//! |---|---|
//! | `follow` | listing and following all objects of one kind, of which each namespace has a share |
//! | `adopt` | objects of other systems' kinds: they become `MusterJob` objects, and get a status in their words |
//! | `jobs` | `MusterJob` objects: they become jobs, and jobs become their status |
//! | `crd` | the definition of `MusterJob` objects |
//! | `leader` | the label of the pod whose coordinator decides |
//! | `nodes` | the Node objects, listed and followed |
//! | `object` | what is kept of a Node object |
//! | `owner` | whose job an object is that was read |
//! | `marking` | what is written on Node objects: cordons, a condition |
//! | `pods` | worker pods: they are made for jobs, and become nodes; queues of Kueue |
//! | `desk` | what the loops about jobs, pods and queues tell each other |
//! | `pace`, `attempts`, `turns`, `stamp` | so many writes in a time; when to try again; whose turn it is; times as text |
//! | `server` | one question and its answer, within seconds or not at all |
//! | `access` | what a user of Kubernetes may do |
//! | `account` | the service account of the agents, and the audience of tokens |
//! | `verdict` | what the review of a token proves |
//! | `answers` | what is remembered of reviews, and for how long |
//! | `bundle` | the certificate authorities, in a ConfigMap for the agents |
//! | `reviews` | asking about tokens: so many at a time, each token once |

mod access;
mod account;
mod adopt;
mod answers;
mod attempts;
mod bundle;
mod crd;
mod desk;
mod follow;
mod gang;
mod jobs;
mod leader;
mod marking;
mod nodes;
mod object;
mod owner;
mod pace;
mod pods;
mod reviews;
mod server;
mod stamp;
mod turns;
mod verdict;
mod versions;

use std::time::Duration;

use kube::{Config, Error, config::InferConfigError};
use muster_core::fleet::CordonMode;
use muster_foreign::adopt::Adoptable;

pub(crate) use access::{Access, Deed, JOBS, Question};
pub use account::{Account, BadAccount};
pub(crate) use adopt::Adopt;
pub(crate) use bundle::Bundle;
pub use crd::yaml as definition_yaml;
pub(crate) use desk::Desk;
pub(crate) use jobs::Jobs;
pub use leader::Leader;
pub(crate) use marking::Marking;
pub(crate) use nodes::Nodes;
pub(crate) use pods::Pods;
pub(crate) use reviews::Reviews;
pub(crate) use server::{Server, Unanswered};

#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    #[error("--kubernetes-...: find the API server")]
    NotFound(#[source] Box<InferConfigError>),
    #[error("--kubernetes-...: make a client for the API server")]
    Client(#[source] Box<Error>),
    #[error(
        "--adopt: {0} and {1} are two versions of one definition; name the one that your objects have"
    )]
    TwoVersions(String, String),
    #[error("start the thread of the store")]
    Thread(#[source] std::io::Error),
    #[error(
        "--kubernetes-agents, --kubernetes-users, --kubernetes-cordon: tokens would go to the API server at {0} without TLS, where others can read them"
    )]
    Insecure(String),
    #[error(
        "--kubernetes-agents, --kubernetes-users: tokens are taken over TLS only, and there is no certificate authority; give \
         --server-names or --tls-cert-file, or run `muster-coordinator init` first"
    )]
    NoTls,
}

/// What is asked of one API server.
#[derive(Clone, Debug)]
pub struct Settings {
    pub configuration: Config,
    /// Read the Node objects.
    pub nodes: bool,
    /// Follow the `MusterJob` objects.
    pub jobs: bool,
    /// Make worker pods, with agents as in this DaemonSet.
    pub pods: Option<Account>,
    /// Keep a Workload for each job with pods of its own that names a queue of Kueue.
    pub kueue: bool,
    /// Keep a PodGroup for each job with pods of its own that asks for one.
    pub pod_groups: bool,
    /// Adopt objects of these kinds.
    pub adopt: Vec<Adoptable>,
    /// So many objects of each kind are kept at most, and ten times as many `MusterJob` objects.
    pub kept_max: usize,
    /// What is written on them. They are read then, too.
    pub cordon: CordonMode,
    /// Take tokens that it knows, as the identity of a caller.
    pub tokens: Option<Tokens>,
}

/// Whose tokens are taken.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// For whom a token must be.
    pub audience: String,
    /// The pods of this service account are the agents of their nodes.
    pub agents: Option<Account>,
    /// Worker pods are agents too, each of the node that it is.
    pub pods: bool,
    /// All other holders of a token are users, and the cluster's rules say what they may do.
    pub users: bool,
    /// How long the API server's yes counts before it is asked again.
    pub again_after: Duration,
}

/// See [`Settings::kept_max`].
pub const KEPT_MAX: usize = follow::KEPT_MAX;

/// So long may a token still be taken that was revoked, for example because its pod is gone.
pub const AGAIN_AFTER: Duration = Duration::from_secs(10 * 60);

/// The address of the API server and the credentials for it, found as kubectl finds them: in the
/// kubeconfig of $KUBECONFIG or ~/.kube/config, else in the pod's service account.
pub async fn configuration() -> Result<Config, KubernetesError> {
    Config::infer()
        .await
        .map_err(|source| KubernetesError::NotFound(Box::new(source)))
}
