//! The one table of what each method asks of its caller. A method without a row is refused to
//! everybody, and a test fails: it walks all methods of the .proto files.
//!
//! The table decides by role alone, and says which calls the audit trail is told of in any case. Which jobs a role is for is decided where a request's namespace
//! is read: [`Rights`] travel with the request.

use std::sync::Arc;

use muster_operator::JOBS;
use muster_rpc::{
    Identity,
    gate::{Admitted, Asked, Gate, Refused},
    listen::Caller,
};
use tonic::{Request, Status};

use crate::{
    audit::{Call, Trail},
    kubernetes::{Access, Deed, Reviews},
    trust::{self, Asking, Rights, Role, Trust},
};

/// What a method asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Rule {
    /// Nothing: it tells and changes nothing, or has a proof of its own.
    Anyone,
    /// A certificate.
    Certified,
    /// To be a node's agent. For which node is seen in its first message.
    Host,
    /// At least this role.
    Role(Role),
}

/// What a method asks of a user of Kubernetes, in the words of that cluster's rules (RBAC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kubernetes {
    /// Nothing.
    Unasked,
    /// It is not for users of Kubernetes.
    Never,
    /// In the namespace of the request's job, or in all of them. The handler asks, because only it
    /// knows the namespace.
    InNamespace(Deed),
    /// In no namespace. It is asked before the handler is called.
    Once(Deed),
}

use Kubernetes::{Never, Unasked};
use Rule::{Anyone, Certified, Host, Role as Least};

const fn jobs(verb: &'static str, subresource: &'static str) -> Kubernetes {
    Kubernetes::InNamespace(Deed {
        verb,
        resource: JOBS,
        subresource,
    })
}

const fn nodes(verb: &'static str, subresource: &'static str) -> Kubernetes {
    once(verb, "musternodes", subresource)
}

const fn once(verb: &'static str, resource: &'static str, subresource: &'static str) -> Kubernetes {
    Kubernetes::Once(Deed {
        verb,
        resource,
        subresource,
    })
}

/// The rule of each method, what it asks of a user of Kubernetes, and what calling it means in the
/// words of the command line.
#[rustfmt::skip]
const METHODS: [Row; 39] = [
    ("grpc.health.v1.Health/Check", Anyone, Unasked, "health check"),
    ("grpc.health.v1.Health/List", Anyone, Unasked, "health check"),
    ("grpc.health.v1.Health/Watch", Anyone, Unasked, "health check"),
    ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Least(Role::Viewer), once("get", "musterapis", ""), "reflection"),
    ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Least(Role::Viewer), once("get", "musterapis", ""), "reflection"),
    ("muster.v1.AccessService/CanI", Anyone, Unasked, "auth can-i"),
    ("muster.v1.AccessService/Join", Anyone, Unasked, "join"),
    ("muster.v1.AccessService/Renew", Certified, Never, "renew"),
    ("muster.v1.AccessService/WhoAmI", Anyone, Unasked, "whoami"),
    ("muster.v1.AgentService/Session", Host, Never, "session"),
    ("muster.v1.AuditService/List", Least(Role::Operator), once("list", "musteraudits", ""), "events --audit"),
    ("muster.v1.EventService/List", Least(Role::Viewer), jobs("list", "events"), "events"),
    ("muster.v1.EventService/Watch", Least(Role::Viewer), jobs("watch", "events"), "events -w"),
    ("muster.v1.HistoryService/List", Least(Role::Viewer), jobs("list", ""), "history"),
    ("muster.v1.JobService/Cancel", Least(Role::Submitter), jobs("update", "cancel"), "cancel"),
    ("muster.v1.JobService/Delete", Least(Role::Submitter), jobs("delete", ""), "delete job"),
    ("muster.v1.JobService/Environment", Least(Role::Submitter), jobs("get", "environment"), "explain --env"),
    ("muster.v1.JobService/Explain", Least(Role::Viewer), jobs("get", "explain"), "explain"),
    ("muster.v1.JobService/Get", Least(Role::Viewer), jobs("get", ""), "get job"),
    ("muster.v1.JobService/List", Least(Role::Viewer), jobs("list", ""), "get jobs"),
    ("muster.v1.JobService/Logs", Least(Role::Submitter), jobs("get", "log"), "logs"),
    ("muster.v1.JobService/Resume", Least(Role::Submitter), jobs("update", "suspend"), "resume"),
    ("muster.v1.JobService/Scale", Least(Role::Submitter), jobs("update", "scale"), "scale"),
    ("muster.v1.JobService/Signal", Least(Role::Submitter), jobs("update", "signal"), "signal"),
    ("muster.v1.JobService/Stacks", Least(Role::Submitter), jobs("get", "stacks"), "stacks"),
    ("muster.v1.JobService/Submit", Least(Role::Submitter), jobs("create", ""), "submit"),
    ("muster.v1.JobService/Suspend", Least(Role::Submitter), jobs("update", "suspend"), "suspend"),
    ("muster.v1.JobService/Wait", Least(Role::Viewer), jobs("get", ""), "wait"),
    ("muster.v1.JobService/Watch", Least(Role::Viewer), jobs("watch", ""), "get jobs -w"),
    ("muster.v1.NodeService/Cordon", Least(Role::Operator), nodes("update", "cordon"), "cordon"),
    ("muster.v1.NodeService/Delete", Least(Role::Operator), nodes("delete", ""), "delete node"),
    ("muster.v1.NodeService/Get", Least(Role::Viewer), nodes("get", ""), "get node"),
    ("muster.v1.NodeService/List", Least(Role::Viewer), nodes("list", ""), "get nodes"),
    ("muster.v1.NodeService/Uncordon", Least(Role::Operator), nodes("update", "cordon"), "uncordon"),
    ("muster.v1.NodeService/Watch", Least(Role::Viewer), nodes("watch", ""), "get nodes -w"),
    ("muster.v1.NotificationService/ListOpen", Least(Role::Submitter), jobs("create", ""), "notify list"),
    ("muster.v1.NotificationService/ListReceivers", Least(Role::Operator), once("list", "musternotifications", ""), "notify list"),
    ("muster.v1.NotificationService/TestReceiver", Least(Role::Operator), once("get", "musternotifications", "test"), "notify test"),
    ("muster.v1.QueueService/List", Least(Role::Viewer), once("list", "musterqueues", ""), "get queues"),
];

type Row = (&'static str, Rule, Kubernetes, &'static str);

const JOIN: &str = "muster.v1.AccessService/Join";

fn row(method: &str) -> Option<Row> {
    METHODS.iter().find(|(name, ..)| *name == method).copied()
}

/// Whether every call gets an entry in the audit trail. Of the other methods those do that are
/// refused.
fn is_audited(method: &str, rule: Rule) -> bool {
    match rule {
        Anyone => method == JOIN,
        Certified => true,
        // Events tell what agents do.
        Host => false,
        // Viewers only look, and see no secrets.
        Least(role) => role > Role::Viewer,
    }
}

/// Finds out who calls, asks the table about every call, and tells the audit trail.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) trust: Option<Arc<Trust>>,
    pub(crate) reviews: Option<Arc<Reviews>>,
    pub(crate) access: Option<Arc<Access>>,
    pub(crate) trail: Trail,
}

impl Guard {
    pub(crate) fn rights(&self, identity: &Identity) -> Result<Rights, Status> {
        Rights::of(identity, self.trust.as_deref().map(Trust::grants))
    }

    /// Who calls. A token counts only where the connection proves nothing.
    async fn caller(&self, asked: Asked) -> Result<Caller, Refused> {
        let Asked { caller, bearer, .. } = asked;
        let Some(bearer) = bearer else {
            return Ok(caller);
        };
        let identity = match (caller.identity(), &self.reviews) {
            (Identity::Certified(_) | Identity::Reviewed(_), _) => return Ok(caller),
            (Identity::Local { .. } | Identity::Unknown, _) => Err(Status::unauthenticated(
                "a token is taken over TLS only, and others may have seen this one: call with https://",
            )),
            (Identity::Anonymous, None) => Err(Status::unauthenticated(
                "this coordinator takes no tokens of Kubernetes (--kubernetes-agents); show a certificate of `muster login` or `muster-agent \
                 join`",
            )),
            (Identity::Anonymous, Some(reviews)) => reviews.identity(&bearer).await,
        };
        identity
            .and_then(|identity| caller.clone().proven(identity))
            .map_err(|status| Refused { caller, status })
    }

    async fn begin(&self, caller: &Caller, method: &str) -> Result<(Call, Rights), Status> {
        if let (Identity::Certified(_), Some(trust)) = (caller.identity(), &self.trust) {
            trust.refuse_replaced(caller.shown())?;
        }
        let mut rights = self.rights(caller.identity())?;
        let (_, rule, _, what) = allow(&mut rights, method, self.access.as_ref()).await?;
        if let (Identity::Certified(principal), Some(shown), Some(trust)) =
            (caller.identity(), caller.shown(), &self.trust)
        {
            trust.hear(principal, shown);
        }
        let always = is_audited(method, rule);
        let call = self.trail.begin(caller, what, always, &rights.note);
        Ok((call, rights))
    }
}

impl Gate for Guard {
    type Call = Call;

    async fn admit(&self, asked: Asked) -> Result<Admitted<Call>, Refused> {
        let method = asked.method.clone();
        let caller = self.caller(asked).await?;
        match self.begin(&caller, method.trim_start_matches('/')).await {
            Ok((call, rights)) => {
                let mut extensions = http::Extensions::new();
                extensions.insert(rights);
                Ok(Admitted {
                    call,
                    caller,
                    extensions,
                })
            }
            Err(status) => Err(Refused { caller, status }),
        }
    }

    fn refused(&self, caller: &Caller, method: &str, status: &Status) {
        // A stranger must not choose what stands in the trail.
        let row = row(method.trim_start_matches('/'));
        let what = row.map_or("unknown method", |(.., what)| what);
        self.trail.refused(caller, what, String::new(), status);
    }
}

/// Whether these rights are enough for a method, `SERVICE/METHOD` with the package. Those of a user
/// of Kubernetes are asked about, or say what is to be asked once a namespace is known.
/// Returns the method's row.
pub(crate) async fn allow(
    rights: &mut Rights,
    method: &str,
    access: Option<&Arc<Access>>,
) -> Result<Row, Status> {
    let row = row(method)
        .ok_or_else(|| Status::permission_denied("that is not a method of this coordinator"))?;
    let (_, rule, kubernetes, what) = row;
    if rights.user().is_none() {
        keeps(rights, rule)?;
        return Ok(row);
    }
    let asking = |deed| {
        let access = access.cloned();
        let access = access.ok_or_else(|| Status::internal("a user without an API server"))?;
        Ok::<_, Status>(Some(Asking::new(access, deed)))
    };
    match kubernetes {
        Unasked => {}
        Never => {
            return Err(Status::permission_denied(format!(
                "{} is a user of Kubernetes, and `{what}` is for holders of a certificate only",
                rights.identity
            )));
        }
        Kubernetes::InNamespace(deed) => rights.asking = asking(deed)?,
        Kubernetes::Once(deed) => {
            rights.asking = asking(deed)?;
            rights.may_do().await?;
        }
    }
    Ok(row)
}

fn keeps(rights: &Rights, rule: Rule) -> Result<(), Status> {
    let refuse = |what: String| Err(Status::permission_denied(what));
    let who = &rights.identity;
    match rule {
        Anyone => Ok(()),
        _ if *who == Identity::Anonymous => Err(Status::unauthenticated(
            "you have shown no certificate; get one with `muster login` (a node: `muster-agent join`) and a token of whoever runs the \
             coordinator",
        )),
        Certified if matches!(who, Identity::Certified(_)) => Ok(()),
        Certified => refuse("there is no certificate to renew: this connection has no TLS".into()),
        Host if rights.host != trust::Host::No => Ok(()),
        Host => refuse(format!(
            "{who} is no host, and only a host's agent may do this"
        )),
        Least(least) if rights.role >= Some(least) => Ok(()),
        Least(least) => {
            let has = rights.role.map_or("no role".to_owned(), |role| {
                format!("the role {}", role.word())
            });
            refuse(format!(
                "{who} has {has}, and this needs {}; whoever runs the coordinator can give it (muster-coordinator user set)",
                least.word()
            ))
        }
    }
}

/// What the caller of this request may do.
pub(crate) fn rights<T>(request: &Request<T>) -> Result<Rights, Status> {
    let rights = request.extensions().get::<Rights>().cloned();
    rights.ok_or_else(|| Status::internal("a request that passed no gate"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prost::Message;

    use super::*;

    /// Every method of the .proto files, and its comment.
    fn methods() -> BTreeMap<String, String> {
        let set = prost_types::FileDescriptorSet::decode(muster_proto::DESCRIPTORS).unwrap();
        let mut methods = BTreeMap::new();
        for file in &set.file {
            let locations = &file.source_code_info.as_ref().unwrap().location;
            for (s, service) in (0..).zip(&file.service) {
                for (m, method) in (0..).zip(&service.method) {
                    let (package, service) = (file.package(), service.name());
                    // Fields 6 and 2 of descriptor.proto: service, method.
                    let place = locations.iter().find(|place| place.path == [6, s, 2, m]);
                    methods.insert(
                        format!("{package}.{service}/{}", method.name()),
                        place.unwrap().leading_comments().to_owned(),
                    );
                }
            }
        }
        methods
    }

    #[test]
    fn every_method_has_one_rule() {
        let methods: BTreeSet<String> = methods().into_keys().collect();
        assert!(methods.len() > 20, "{methods:?}");
        let ruled: Vec<String> = METHODS
            .iter()
            .map(|(name, ..)| (*name).to_owned())
            .filter(|name| name.starts_with("muster."))
            .collect();
        assert_eq!(ruled.len(), methods.len(), "one rule each");
        assert_eq!(ruled.into_iter().collect::<BTreeSet<_>>(), methods);
    }

    #[test]
    fn every_method_says_what_a_user_of_kubernetes_needs() {
        let verbs = ["get", "list", "watch", "create", "update", "delete"];
        for (method, rule, kubernetes, _) in METHODS {
            let deed = match kubernetes {
                Unasked => {
                    assert_eq!(rule, Anyone, "{method} asks others for more");
                    continue;
                }
                Never => {
                    assert!([Host, Certified].contains(&rule), "{method} is for users");
                    continue;
                }
                Kubernetes::InNamespace(deed) => {
                    assert_eq!(deed.resource, JOBS, "{method}");
                    deed
                }
                Kubernetes::Once(deed) => {
                    assert!(
                        !method.contains("JobService"),
                        "{method} is about a namespace"
                    );
                    deed
                }
            };
            assert!(matches!(rule, Least(_)), "{method}: {deed}");
            assert!(verbs.contains(&deed.verb), "{method}: {deed}");
            // Viewers only look, and who only looks is a viewer or reads what is secret.
            let looks = ["get", "list", "watch"].contains(&deed.verb);
            assert!(looks || rule > Least(Role::Viewer), "{method}: {deed}");
        }
    }

    #[test]
    fn the_comment_of_every_method_names_the_role_that_it_asks_for() {
        for (method, comment) in methods() {
            let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
            let said = comment.rsplit_once("Role: ");
            let said = said.map(|(_, role)| role.trim_end_matches('.'));
            let asked = match row(&method) {
                Some((_, Least(role), ..)) => Some(role.word()),
                _ => None,
            };
            assert_eq!(said, asked, "{method}: {comment}");
        }
    }
}
