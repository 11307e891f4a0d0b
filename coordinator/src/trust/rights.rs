//! What an identity may do: its role, and for which jobs. Of users of Kubernetes the cluster's rules
//! say it, and are asked where a request's namespace is read.

use std::{collections::BTreeSet, sync::Arc};

use muster_core::{
    fleet::Actor,
    id::{JobName, NodeName},
};
use muster_operator::JOBS;
use muster_rpc::{
    Identity,
    identity::{Kind, KubernetesUser, Principal, Reviewed},
};
use tonic::Status;

use super::grants::{Grants, Role};
use crate::{
    audit::Note,
    kubernetes::{Access, Deed, Question},
};

/// The namespaces whose jobs a caller may touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Only(BTreeSet<String>),
}

impl Scope {
    pub(crate) fn has(&self, namespace: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Only(names) => names.contains(namespace),
        }
    }
}

/// What a caller may do, as found at the beginning of its call.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    pub(crate) identity: Identity,
    pub(crate) role: Option<Role>,
    pub(crate) scope: Scope,
    /// Of which nodes it may hold the session.
    pub(crate) host: Host,
    /// What the audit trail shall say of the call.
    pub(crate) note: Note,
    /// Of a user of Kubernetes: nothing is allowed before it was asked about.
    pub(crate) asking: Option<Asking>,
}

/// The rights of a user of Kubernetes, as far as its call has asked about them.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    access: Arc<Access>,
    /// What the call does.
    deed: Deed,
    /// What was allowed.
    allowed: Vec<Question>,
    sees_environment: bool,
}

/// Sees the values of jobs' environment variables.
const ENVIRONMENT: Deed = Deed {
    verb: "get",
    resource: JOBS,
    subresource: "environment",
};

/// Sees the names of jobs, for example of those that run on a node.
const LIST: Deed = Deed {
    verb: "list",
    resource: JOBS,
    subresource: "",
};

impl Asking {
    pub(crate) fn new(access: Arc<Access>, deed: Deed) -> Self {
        Self {
            access,
            deed,
            allowed: Vec::new(),
            sees_environment: false,
        }
    }

    async fn ask(
        &mut self,
        user: &KubernetesUser,
        namespace: &str,
        name: &str,
    ) -> Result<(), Status> {
        let of = |deed| Question {
            deed,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let question = of(self.deed);
        self.access.ask(user, &question).await?;
        self.allowed.push(question);
        self.sees_environment = match self.deed.resource {
            // Whoever submits a job knows what is in it.
            JOBS if self.deed.verb != "create" => {
                self.access.ask(user, &of(ENVIRONMENT)).await.is_ok()
            }
            _ => true,
        };
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    No,
    Only(NodeName),
    Any,
}

impl Rights {
    /// `grants`: `None` if the coordinator has no certificate authority, so that everybody is a user
    /// of this machine. Of those only the ones that the listener serves get here.
    pub(crate) fn of(identity: &Identity, grants: Option<&Grants>) -> Result<Self, Status> {
        let nothing = Self {
            identity: identity.clone(),
            role: None,
            scope: Scope::Only(BTreeSet::new()),
            host: Host::No,
            note: Note::default(),
            asking: None,
        };
        let principal = match identity {
            Identity::Local { .. } | Identity::Unknown if grants.is_some() => return Ok(nothing),
            Identity::Local { .. } | Identity::Unknown => {
                return Ok(Self {
                    role: Some(Role::Admin),
                    scope: Scope::All,
                    host: Host::Any,
                    ..nothing
                });
            }
            Identity::Anonymous => return Ok(nothing),
            Identity::Certified(_) | Identity::Reviewed(_) => identity.principal(),
        };
        let Some(grants) = grants else {
            return Err(Status::internal("a certificate without an authority"));
        };
        let Some(principal) = principal else {
            return Ok(nothing);
        };
        refuse_denied(principal, grants)?;
        Ok(match principal.kind {
            Kind::Host => Self {
                host: Host::Only(NodeName::from(principal.name())),
                ..nothing
            },
            Kind::User => match grants.of_user(principal.name()) {
                None => nothing,
                Some(grant) => Self {
                    role: Some(grant.role),
                    scope: if grant.all_namespaces {
                        Scope::All
                    } else {
                        Scope::Only(grant.namespaces)
                    },
                    ..nothing
                },
            },
        })
    }

    /// Refuses a job that the caller has no right to. The call is about this job.
    pub(crate) async fn may_touch_job(&mut self, job: &JobName) -> Result<(), Status> {
        self.note.set_object(format!("job/{job}"));
        self.reach(Some(&job.namespace), &job.name).await
    }

    /// Refuses a namespace that the caller has no right in. `None`: all that it has a right in.
    pub(crate) async fn may_touch(&mut self, namespace: Option<&str>) -> Result<(), Status> {
        self.reach(namespace, "").await
    }

    async fn reach(&mut self, namespace: Option<&str>, name: &str) -> Result<(), Status> {
        let user = self.user().cloned();
        if let (Some(user), Some(asking)) = (user, &mut self.asking) {
            asking
                .ask(&user, namespace.unwrap_or_default(), name)
                .await?;
            self.scope = match namespace {
                None => Scope::All,
                Some(namespace) => Scope::Only([namespace.to_owned()].into()),
            };
            return Ok(());
        }
        match namespace {
            Some(namespace) if !self.scope.has(namespace) => {
                Err(Status::permission_denied(format!(
                    "{} has no role in namespace {namespace:?}; ask whoever runs the coordinator (muster-coordinator user set)",
                    self.identity
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a user of Kubernetes what is in no namespace, such as nodes. Of the jobs there it sees
    /// the names if it may list all jobs.
    pub(crate) async fn may_do(&mut self) -> Result<(), Status> {
        let user = self.user().cloned();
        if let (Some(user), Some(asking)) = (user, &mut self.asking) {
            asking.ask(&user, "", "").await?;
            let jobs = Question {
                deed: LIST,
                namespace: String::new(),
                name: String::new(),
            };
            if asking.access.ask(&user, &jobs).await.is_ok() {
                asking.allowed.push(jobs);
                self.scope = Scope::All;
            }
        }
        Ok(())
    }

    /// The user of Kubernetes that this is.
    pub(crate) fn user(&self) -> Option<&KubernetesUser> {
        match &self.identity {
            Identity::Reviewed(reviewed) => match &**reviewed {
                Reviewed::User(user) => Some(user),
                Reviewed::Agent(_) => None,
            },
            _ => None,
        }
    }

    /// Refuses a session for another node than the certificate's.
    pub(crate) fn may_speak_for(&self, node: &NodeName) -> Result<(), Status> {
        match &self.host {
            Host::Any => Ok(()),
            Host::Only(own) if own == node => Ok(()),
            Host::Only(own) => {
                let (proof, other) = match &self.identity {
                    Identity::Reviewed(_) => (
                        "token is of a pod on",
                        "run an agent in a pod on that other node".to_owned(),
                    ),
                    _ => (
                        "certificate is for",
                        format!(
                            "get a certificate for the other (muster-coordinator token create --host {node}, muster-agent join)"
                        ),
                    ),
                };
                Err(Status::permission_denied(format!(
                    "the {proof} node {own}, and the agent says that it is {node}: start it with --node-name {own}, or {other}"
                )))
            }
            Host::No => Err(Status::permission_denied(format!(
                "{} is no host",
                self.identity
            ))),
        }
    }

    /// Waits until the caller may do less than these rights say, and says why. Never returns if the
    /// coordinator has no certificate authority.
    pub(crate) async fn end(self, grants: Option<&Grants>) -> Status {
        if let (Some(user), Some(asking)) = (self.user(), &self.asking) {
            return asking.access.end(user, &asking.allowed).await;
        }
        let Some(grants) = grants else {
            return std::future::pending().await;
        };
        let mut changes = grants.changes();
        loop {
            match Self::of(&self.identity, Some(grants)) {
                Err(denied) => return denied,
                Ok(now) if now.role < self.role || now.scope != self.scope => {
                    let who = &self.identity;
                    return Status::permission_denied(format!(
                        "the role of {who} has been changed; call again"
                    ));
                }
                Ok(_) => {}
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Whether the caller may see the values of the environment variables of a job that `owner`
    /// submitted. They may be secrets, so they are its owner's and the admins' alone. Of a job without
    /// an owner, which an earlier coordinator took, every submitter sees them, as then. For a user of
    /// Kubernetes the cluster's rules say it.
    pub(crate) fn sees_environment(&self, owner: Option<&Actor>) -> bool {
        match &self.asking {
            Some(asking) => asking.sees_environment,
            None if self.role >= Some(Role::Admin) => true,
            None if self.role < Some(Role::Submitter) => false,
            None => owner.is_none_or(|owner| *owner == self.actor("")),
        }
    }

    /// Who asks. `claimed` is the name that the message gives; it counts only where the connection
    /// says nothing.
    pub(crate) fn actor(&self, claimed: &str) -> Actor {
        match &self.identity {
            Identity::Local { uid } => Actor::Local { uid: *uid },
            Identity::Certified(_) | Identity::Reviewed(_) => match self.identity.principal() {
                Some(principal) if principal.kind == Kind::Host => Actor::Host {
                    name: principal.name().to_owned(),
                },
                Some(principal) => Actor::User {
                    name: principal.name().to_owned(),
                },
                None => Actor::User {
                    name: self.identity.to_string(),
                },
            },
            Identity::Unknown | Identity::Anonymous => Actor::Unknown {
                claimed: claimed.to_owned(),
            },
        }
    }
}

/// Refuses a name that an operator has denied.
pub(crate) fn refuse_denied(principal: &Principal, grants: &Grants) -> Result<(), Status> {
    if grants.is_denied(principal) {
        return Err(Status::permission_denied(format!(
            "{principal} was denied by an operator (muster-coordinator allow {principal} takes it back)"
        )));
    }
    Ok(())
}
