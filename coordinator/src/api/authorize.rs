//! The one table of what each method asks of its caller. A method without a row is refused to
//! everybody, and a test fails: it walks all methods of the .proto files.
//!
//! The table decides by role alone. Which jobs a role is for is decided where a request's namespace
//! is read: [`Rights`] travel with the request.

use std::sync::Arc;

use muster_rpc::{Identity, gate::Gate, listen::Caller};
use tonic::{Request, Status};
use tracing::info;

use crate::trust::{self, Rights, Role, Trust};

/// What a method asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
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

const METHODS: [(&str, Rule); 27] = [
    ("grpc.health.v1.Health/Check", Anyone),
    ("grpc.health.v1.Health/List", Anyone),
    ("grpc.health.v1.Health/Watch", Anyone),
    ("muster.v1.AccessService/CanI", Anyone),
    ("muster.v1.AccessService/Join", Anyone),
    ("muster.v1.AccessService/Renew", Certified),
    ("muster.v1.AccessService/WhoAmI", Anyone),
    ("muster.v1.AgentService/Session", Host),
    ("muster.v1.EventService/List", Least(Role::Viewer)),
    ("muster.v1.EventService/Watch", Least(Role::Viewer)),
    ("muster.v1.JobService/Cancel", Least(Role::Submitter)),
    ("muster.v1.JobService/Delete", Least(Role::Submitter)),
    ("muster.v1.JobService/Environment", Least(Role::Submitter)),
    ("muster.v1.JobService/Explain", Least(Role::Viewer)),
    ("muster.v1.JobService/Get", Least(Role::Viewer)),
    ("muster.v1.JobService/List", Least(Role::Viewer)),
    ("muster.v1.JobService/Logs", Least(Role::Submitter)),
    ("muster.v1.JobService/Scale", Least(Role::Submitter)),
    ("muster.v1.JobService/Submit", Least(Role::Submitter)),
    ("muster.v1.JobService/Wait", Least(Role::Viewer)),
    ("muster.v1.JobService/Watch", Least(Role::Viewer)),
    ("muster.v1.NodeService/Cordon", Least(Role::Operator)),
    ("muster.v1.NodeService/Delete", Least(Role::Operator)),
    ("muster.v1.NodeService/Get", Least(Role::Viewer)),
    ("muster.v1.NodeService/List", Least(Role::Viewer)),
    ("muster.v1.NodeService/Uncordon", Least(Role::Operator)),
    ("muster.v1.NodeService/Watch", Least(Role::Viewer)),
];

fn rule(method: &str) -> Option<Rule> {
    let mut rows = METHODS.iter();
    rows.find(|(name, _)| *name == method)
        .map(|(_, rule)| *rule)
}

/// Asks the table about every call.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) trust: Option<Arc<Trust>>,
}

impl Guard {
    pub(crate) fn rights(&self, identity: &Identity) -> Result<Rights, Status> {
        Rights::of(identity, self.trust.as_deref().map(Trust::grants))
    }
}

impl Gate for Guard {
    fn admit(
        &self,
        caller: &Caller,
        method: &str,
        extensions: &mut http::Extensions,
    ) -> Result<(), Status> {
        let rights = self.rights(caller.identity())?;
        let method = method.trim_start_matches('/');
        let answer = allow(&rights, method);
        // Who changes something, from where, and whether it may: the audit trail.
        let changes = matches!(rule(method), Some(Least(role)) if role > Role::Viewer);
        if changes || answer.is_err() {
            let allowed = answer.is_ok();
            // A stranger must not choose what stands in the log.
            let method = rule(method).map_or("unknown", |_| method);
            info!(target: "audit", who = %rights.identity, from = %caller.address(), method, allowed);
        }
        answer?;
        extensions.insert(rights);
        Ok(())
    }
}

/// Whether these rights are enough for a method, `SERVICE/METHOD` with the package.
pub(crate) fn allow(rights: &Rights, method: &str) -> Result<(), Status> {
    let refuse = |what: String| Err(Status::permission_denied(what));
    let who = &rights.identity;
    match rule(method) {
        None => refuse("that is not a method of this coordinator".into()),
        Some(Anyone) => Ok(()),
        Some(_) if *who == Identity::Anonymous => Err(Status::unauthenticated(
            "you have shown no certificate; get one with `muster login` (a node: `muster-agent join`) and a token of whoever runs the \
             coordinator",
        )),
        Some(Certified) if matches!(who, Identity::Certified(_)) => Ok(()),
        Some(Certified) => {
            refuse("there is no certificate to renew: this connection has no TLS".into())
        }
        Some(Host) if rights.host != trust::Host::No => Ok(()),
        Some(Host) => refuse(format!(
            "{who} is no host, and only a host's agent may do this"
        )),
        Some(Least(least)) if rights.role >= Some(least) => Ok(()),
        Some(Least(least)) => {
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
    use std::collections::BTreeSet;

    use prost::Message;

    use super::*;

    #[test]
    fn every_method_has_one_rule() {
        let set = prost_types::FileDescriptorSet::decode(muster_proto::DESCRIPTORS).unwrap();
        let mut methods = BTreeSet::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    methods.insert(format!(
                        "{}.{}/{}",
                        file.package(),
                        service.name(),
                        method.name()
                    ));
                }
            }
        }
        assert!(methods.len() > 20, "{methods:?}");
        let ruled: Vec<String> = METHODS
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .filter(|name| name.starts_with("muster."))
            .collect();
        assert_eq!(ruled.len(), methods.len(), "one rule each");
        assert_eq!(ruled.into_iter().collect::<BTreeSet<_>>(), methods);
    }
}
