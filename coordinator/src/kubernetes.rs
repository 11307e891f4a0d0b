//! Who calls, and what callers may do, as a Kubernetes API server says it; and the label of the pod that
//! leads. Agents have no rights there, so the coordinator asks for all of them. Objects of the cluster are the
//! operator's (`muster-operator`), and the records are the store's.
//!
//! | file | owns |
//! |---|---|
//! | `leader` | the label of the pod whose coordinator decides |
//! | `access` | what a user of Kubernetes may do |
//! | `verdict` | what the review of a token proves |
//! | `answers` | what is remembered of reviews, and for how long |
//! | `reviews` | asking about tokens: so many at a time, each token once |

mod access;
mod answers;
mod leader;
mod reviews;
mod verdict;

use std::time::Duration;

use kube::{Config, config::InferConfigError};
use muster_core::fleet::CordonMode;
use muster_foreign::adopt::Adoptable;
use muster_operator::{Account, NoServer};

pub(crate) use access::{Access, Deed, Question};
pub use leader::Leader;
pub(crate) use reviews::Reviews;

#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    #[error("--kubernetes-...: find the API server")]
    NotFound(#[source] Box<InferConfigError>),
    #[error(transparent)]
    NoServer(#[from] NoServer),
    #[error(
        "--adopt: {0} and {1} are two versions of one definition; name the one that your objects have"
    )]
    TwoVersions(String, String),
    #[error("start the thread of the store")]
    Thread(#[source] std::io::Error),
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

/// So long may a token still be taken that was revoked, for example because its pod is gone.
pub const AGAIN_AFTER: Duration = Duration::from_secs(10 * 60);

/// The address of the API server and the credentials for it, found as kubectl finds them: in the
/// kubeconfig of $KUBECONFIG or ~/.kube/config, else in the pod's service account.
pub async fn configuration() -> Result<Config, KubernetesError> {
    Config::infer()
        .await
        .map_err(|source| KubernetesError::NotFound(Box::new(source)))
}
