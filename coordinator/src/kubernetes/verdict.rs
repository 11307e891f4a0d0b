//! What the review of a token proves, decided from the API server's answer alone.
//!
//! Every pod can ask for a token of every audience, so the audience proves nothing about its holder.
//! The account says that a pod is an agent, and the claims about the node, which only the API server
//! can write, say on which node it is.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use muster_core::{fleet::worker_pod, id::node_name_error};
use muster_operator::cut;
use muster_rpc::identity::{BadIdentity, Kind, KubernetesUser, Principal, Reviewed};
use tonic::Status;

use super::Tokens;

/// What an API server knows of the pod and the node that a token is bound to (node claims are in
/// every token since Kubernetes 1.32).
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// Bytes of the longest name of a user. It stands in events and in the audit trail.
const USER_NAME_MAX: usize = 256;

/// Why a token is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "the token is no JSON Web Token with an audience and an end; `kubectl create token NAME --audience {audience}` makes one"
    )]
    Opaque { audience: String },
    #[error(
        "the token is for {}, and this coordinator takes tokens for {ours}: `kubectl create token NAME --audience {ours}`, or `audience: {ours}` \
         in the pod's projected volume",
        cut(.theirs)
    )]
    OtherAudience { ours: String, theirs: String },
    #[error("the token has expired; get a new one")]
    Expired,
    #[error("the Kubernetes API server does not accept the token{}", because(.0))]
    NotAuthentic(String),
    #[error(
        "the token is of {}, and only pods of the service account {agents} are agents of this coordinator",
        cut(.user)
    )]
    OtherAccount { user: String, agents: String },
    #[error("this coordinator takes no tokens of agents (--kubernetes-agents)")]
    NoAgents,
    #[error(
        "the token says nothing of {0}, or more than one thing: it must be of a pod's projected volume, not of `kubectl create token`"
    )]
    Claim(&'static str),
    #[error("the pod {0} of the token is gone, or another pod has its name now")]
    OtherPod(String),
    #[error(
        "the pod {pod} says that it is of the MusterJob {job}, and there is no such object in its namespace {namespace}: a worker pod and its \
         job are in one namespace, and only Muster makes worker pods"
    )]
    OtherJob {
        pod: String,
        namespace: String,
        job: String,
    },
    #[error("the pod {0} of the token is on no node yet")]
    Unscheduled(String),
    #[error("{0:?} cannot be a node's name: {1}")]
    NodeName(String, String),
    #[error(transparent)]
    Name(#[from] BadIdentity),
    #[error("the token's user has a name that cannot be written down")]
    UserName,
}

fn because(error: &str) -> String {
    match error {
        "" => String::new(),
        error => format!(": {}", cut(error)),
    }
}

impl Refused {
    /// Whether the token is good, and only not for this.
    fn is_known(&self) -> bool {
        matches!(
            self,
            Self::OtherAccount { .. } | Self::OtherJob { .. } | Self::NoAgents
        )
    }

    pub(crate) fn status(&self) -> Status {
        match self.is_known() {
            true => Status::permission_denied(self.to_string()),
            false => Status::unauthenticated(self.to_string()),
        }
    }
}

/// What a review has proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    Whole(Reviewed),
    /// An agent, by a server that says nothing of nodes. Its pod says on which node it is.
    Pod {
        name: String,
        uid: String,
    },
    /// A pod of some namespace, which may be a worker pod. If it is none, `other` is the answer.
    Worker {
        namespace: String,
        name: String,
        uid: String,
        other: Box<Result<Proof, Refused>>,
    },
}

impl Tokens {
    /// Checks the server's answer about a token that ends at `expires_us`.
    pub(super) fn check(
        &self,
        status: TokenReviewStatus,
        expires_us: u64,
    ) -> Result<Proof, Refused> {
        let error = status.error.unwrap_or_default();
        if status.authenticated != Some(true) || !error.is_empty() {
            return Err(Refused::NotAuthentic(error));
        }
        // An authenticator that knows no audiences leaves this empty, and takes every token.
        let audiences = status.audiences.unwrap_or_default();
        if !audiences.contains(&self.audience) {
            return Err(Refused::OtherAudience {
                ours: self.audience.clone(),
                theirs: audiences.join(", "),
            });
        }
        let user = status.user.unwrap_or_default();
        let name = user.username.clone().unwrap_or_default();
        match &self.agents {
            Some(account) if name == account.user_name() => agent(user),
            _ if self.pods && pod_of(&user).is_some() => {
                let (namespace, pod, uid) = pod_of(&user).expect("asked above");
                Ok(Proof::Worker {
                    namespace,
                    name: pod,
                    uid,
                    other: Box::new(self.other(name, user, expires_us)),
                })
            }
            _ => self.other(name, user, expires_us),
        }
    }

    /// The holder of a token is no agent.
    fn other(&self, name: String, user: UserInfo, expires_us: u64) -> Result<Proof, Refused> {
        match &self.agents {
            _ if self.users => user_of(name, user, expires_us),
            Some(agents) => Err(Refused::OtherAccount {
                user: name,
                agents: agents.to_string(),
            }),
            None => Err(Refused::NoAgents),
        }
    }
}

/// Namespace, name and UID of the pod that a service account's token is bound to.
fn pod_of(user: &UserInfo) -> Option<(String, String, String)> {
    let account = user
        .username
        .as_deref()?
        .strip_prefix("system:serviceaccount:")?;
    let (namespace, _) = account.split_once(':')?;
    let extra = user.extra.as_ref()?;
    let (pod, uid) = (one(extra, POD_NAME).ok()?, one(extra, POD_UID).ok()?);
    Some((namespace.to_owned(), pod.to_owned(), uid.to_owned()))
}

fn user_of(name: String, user: UserInfo, expires_us: u64) -> Result<Proof, Refused> {
    if name.is_empty() || name.len() > USER_NAME_MAX || name.chars().any(char::is_control) {
        return Err(Refused::UserName);
    }
    Ok(Proof::Whole(Reviewed::User(KubernetesUser {
        name,
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
        expires_us,
    })))
}

fn agent(user: UserInfo) -> Result<Proof, Refused> {
    let extra = user.extra.unwrap_or_default();
    let (name, uid) = (one(&extra, POD_NAME)?, one(&extra, POD_UID)?);
    if !extra.contains_key(NODE_NAME) && !extra.contains_key(NODE_UID) {
        return Ok(Proof::Pod {
            name: name.to_owned(),
            uid: uid.to_owned(),
        });
    }
    one(&extra, NODE_UID)?;
    let node = one(&extra, NODE_NAME)?;
    if worker_pod::is_pod(&node.into()) {
        let why = "names of worker pods end like this".to_owned();
        return Err(Refused::NodeName(cut(node), why));
    }
    of_node(node).map(Proof::Whole)
}

/// The agent of this node.
pub(super) fn of_node(node: &str) -> Result<Reviewed, Refused> {
    if let Some(why) = node_name_error(node) {
        return Err(Refused::NodeName(cut(node), why));
    }
    Ok(Reviewed::Agent(Principal::new(Kind::Host, node)?))
}

/// The one value of this claim.
fn one<'a>(
    extra: &'a BTreeMap<String, Vec<String>>,
    key: &'static str,
) -> Result<&'a str, Refused> {
    match extra.get(key).map(Vec::as_slice) {
        Some([value]) if !value.is_empty() => Ok(value),
        _ => Err(Refused::Claim(key)),
    }
}

#[cfg(test)]
mod tests;
