//! What an identity may do: its role, and for which jobs.

use std::collections::BTreeSet;

use muster_core::{
    fleet::Actor,
    id::{JobName, NodeName},
};
use muster_rpc::{
    Identity,
    identity::{Kind, Principal},
};
use tonic::Status;

use super::grants::{Grants, Role};
use crate::audit::Note;

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

    /// Refuses a job of a namespace that the role is not for. The call is about this job.
    pub(crate) fn may_touch_job(&self, job: &JobName) -> Result<(), Status> {
        self.note.set_object(format!("job/{job}"));
        self.may_touch(&job.namespace)
    }

    /// Refuses a namespace that the role is not for.
    pub(crate) fn may_touch(&self, namespace: &str) -> Result<(), Status> {
        if self.scope.has(namespace) {
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "{} has no role in namespace {namespace:?}; ask whoever runs the coordinator (muster-coordinator user set)",
            self.identity
        )))
    }

    /// Refuses a session for another node than the certificate's.
    pub(crate) fn may_speak_for(&self, node: &NodeName) -> Result<(), Status> {
        match &self.host {
            Host::Any => Ok(()),
            Host::Only(own) if own == node => Ok(()),
            Host::Only(own) => {
                let proof = match &self.identity {
                    Identity::Reviewed(_) => "token is of a pod on",
                    _ => "certificate is for",
                };
                Err(Status::permission_denied(format!(
                    "the {proof} node {own}, and the agent says that it is {node}"
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

    /// Whether the caller may see the values of jobs' environment variables.
    pub(crate) fn sees_environment(&self) -> bool {
        self.role >= Some(Role::Submitter)
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
