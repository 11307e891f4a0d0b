//! The one table of what each method asks of its caller. A method without a row is refused to
//! everybody, and a test fails: it walks all methods of the .proto files.
//!
//! The table decides by role alone, and says which calls the audit trail is told of in any case. Which jobs a role is for is decided where a request's namespace
//! is read: [`Rights`] travel with the request.

use std::sync::Arc;

use muster_rpc::{
    Identity,
    gate::{Admitted, Asked, Gate, Refused},
    listen::Caller,
};
use tonic::{Code, Request, Status};

use crate::{
    audit::{Call, Trail},
    kubernetes::Reviews,
    trust::{self, Rights, Role, Trust},
};

/// What a method asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

use Rule::{Anyone, Certified, Host, Role as Least};

/// The rule of each method, and what calling it means in the words of the command line.
#[rustfmt::skip]
const METHODS: [(&str, Rule, &str); 30] = [
    ("grpc.health.v1.Health/Check", Anyone, "health check"),
    ("grpc.health.v1.Health/List", Anyone, "health check"),
    ("grpc.health.v1.Health/Watch", Anyone, "health check"),
    ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Least(Role::Viewer), "reflection"),
    ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Least(Role::Viewer), "reflection"),
    ("muster.v1.AccessService/CanI", Anyone, "auth can-i"),
    ("muster.v1.AccessService/Join", Anyone, "join"),
    ("muster.v1.AccessService/Renew", Certified, "renew"),
    ("muster.v1.AccessService/WhoAmI", Anyone, "whoami"),
    ("muster.v1.AgentService/Session", Host, "session"),
    ("muster.v1.AuditService/List", Least(Role::Operator), "events --audit"),
    ("muster.v1.EventService/List", Least(Role::Viewer), "events"),
    ("muster.v1.EventService/Watch", Least(Role::Viewer), "events -w"),
    ("muster.v1.JobService/Cancel", Least(Role::Submitter), "cancel"),
    ("muster.v1.JobService/Delete", Least(Role::Submitter), "delete job"),
    ("muster.v1.JobService/Environment", Least(Role::Submitter), "explain --env"),
    ("muster.v1.JobService/Explain", Least(Role::Viewer), "explain"),
    ("muster.v1.JobService/Get", Least(Role::Viewer), "get job"),
    ("muster.v1.JobService/List", Least(Role::Viewer), "get jobs"),
    ("muster.v1.JobService/Logs", Least(Role::Submitter), "logs"),
    ("muster.v1.JobService/Scale", Least(Role::Submitter), "scale"),
    ("muster.v1.JobService/Submit", Least(Role::Submitter), "submit"),
    ("muster.v1.JobService/Wait", Least(Role::Viewer), "wait"),
    ("muster.v1.JobService/Watch", Least(Role::Viewer), "get jobs -w"),
    ("muster.v1.NodeService/Cordon", Least(Role::Operator), "cordon"),
    ("muster.v1.NodeService/Delete", Least(Role::Operator), "delete node"),
    ("muster.v1.NodeService/Get", Least(Role::Viewer), "get node"),
    ("muster.v1.NodeService/List", Least(Role::Viewer), "get nodes"),
    ("muster.v1.NodeService/Uncordon", Least(Role::Operator), "uncordon"),
    ("muster.v1.NodeService/Watch", Least(Role::Viewer), "get nodes -w"),
];

const JOIN: &str = "muster.v1.AccessService/Join";

/// A method's rule, and what a caller calls it.
fn row(method: &str) -> Option<(Rule, &'static str)> {
    let mut rows = METHODS.iter();
    rows.find(|(name, ..)| *name == method)
        .map(|(_, rule, what)| (*rule, *what))
}

/// Whether every call gets an entry in the audit trail. Of the other methods those do that are
/// refused.
fn is_audited(method: &str, rule: Rule) -> bool {
    match rule {
        Anyone => method == JOIN,
        Certified => true,
        // What agents do is told by events.
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

    fn begin(&self, caller: &Caller, method: &str) -> Result<(Call, Rights), Status> {
        let rights = self.rights(caller.identity())?;
        let (rule, what) = allow(&rights, method)?;
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
        match self.begin(&caller, method.trim_start_matches('/')) {
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

    fn refused(&self, caller: &Caller, method: &str, code: Code) {
        // A stranger must not choose what stands in the trail.
        let row = row(method.trim_start_matches('/'));
        let what = row.map_or("unknown method", |(_, what)| what);
        self.trail.refused(caller, what, String::new(), code);
    }
}

/// Whether these rights are enough for a method, `SERVICE/METHOD` with the package.
/// Returns its row.
pub(crate) fn allow(rights: &Rights, method: &str) -> Result<(Rule, &'static str), Status> {
    let Some((rule, what)) = row(method) else {
        return Err(Status::permission_denied(
            "that is not a method of this coordinator",
        ));
    };
    keeps(rights, rule)?;
    Ok((rule, what))
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
    fn the_comment_of_every_method_names_the_role_that_it_asks_for() {
        for (method, comment) in methods() {
            let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
            let said = comment.rsplit_once("Role: ");
            let said = said.map(|(_, role)| role.trim_end_matches('.'));
            let asked = match row(&method) {
                Some((Least(role), _)) => Some(role.word()),
                _ => None,
            };
            assert_eq!(said, asked, "{method}: {comment}");
        }
    }
}
