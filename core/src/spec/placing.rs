//! Whether a job's members may share nodes: what its spec says, and what its framework allows.

use super::{Framework, JobSpec, Launch, Placing, SpecDocument, errors::Errors};

impl JobSpec {
    /// Whether placement may put several members on one node.
    ///
    /// Members of roles share nodes unless the job says `spread`. A job without roles has one member
    /// on each node, as torchrun counts processes by node, unless it says `pack`. So has one of XGBoost:
    /// its workers are told one port for all of them.
    pub fn packs(&self) -> bool {
        // The cluster places worker pods, and several may share a host.
        self.template.is_none()
            && why_never(self.framework, self.launch).is_none()
            && match self.placement {
                Some(placing) => placing == Placing::Pack,
                None => !self.roles.is_empty() && self.framework != Framework::Xgboost,
            }
    }

    /// The word for what its sizes count.
    pub fn counts(&self) -> &'static str {
        match self.packs() {
            true => "members",
            false => "nodes",
        }
    }
}

/// Why members of such a job never share a node. `None`: they can.
fn why_never(framework: Framework, launch: Launch) -> Option<String> {
    match (framework, launch) {
        // MPI takes all ranks with one host name for ranks of one machine.
        (Framework::Mpi, _) => Some(
            "framework mpi has one member on each node; give the worker a larger procPerNode"
                .into(),
        ),
        (Framework::Torch, Launch::Cold | Launch::Parked | Launch::Fork) => Some(format!(
            "launch {} starts one torchrun on each node, for one member; leave launch out",
            launch.name()
        )),
        _ => None,
    }
}

/// Reads the document, or takes the default. `top` is the spec without its roles.
pub(super) fn check(document: &SpecDocument, top: &JobSpec, errors: &mut Errors) -> Placing {
    let why_never = why_never(top.framework, top.launch);
    let alone = document.roles.is_empty() || top.framework == Framework::Xgboost;
    let default = match alone || why_never.is_some() {
        true => Placing::Spread,
        false => Placing::Pack,
    };
    let Some(word) = document.placement.as_deref() else {
        return default;
    };
    let found = Placing::ALL.iter().find(|(name, _)| *name == word);
    match (found, why_never) {
        (None, _) => errors.add(
            "spec.placement",
            format!("is {word:?}, must be pack or spread"),
        ),
        (Some((_, Placing::Pack)), Some(why)) => {
            errors.add("spec.placement", format!("is pack, but {why}"));
        }
        _ => {}
    }
    found.map_or(default, |(_, placing)| *placing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FieldError, RoleDocument, tests::document};

    fn checked(change: &dyn Fn(&mut SpecDocument)) -> Result<JobSpec, Vec<FieldError>> {
        let mut document = document();
        change(&mut document.spec);
        document.check().map(|(_, spec)| spec)
    }

    fn role(name: &str) -> RoleDocument {
        RoleDocument {
            name: name.into(),
            replicas: Some(1),
            ..RoleDocument::default()
        }
    }

    #[test]
    fn roles_share_nodes_and_jobs_of_nodes_do_not() {
        let packs = |change: &dyn Fn(&mut SpecDocument)| checked(change).unwrap().packs();
        let roles = |spec: &mut SpecDocument| spec.roles = vec![role("a"), role("b")];
        assert!(!packs(&|_| {}));
        assert!(packs(&|spec| spec.placement = Some("pack".into())));
        assert!(packs(&roles));
        assert!(!packs(&|spec| {
            roles(spec);
            spec.placement = Some("spread".into());
        }));
        assert!(!packs(&|spec| {
            roles(spec);
            spec.framework = Some("xgboost".into());
        }));
        // torchrun of its own on each node, as asked.
        assert!(!packs(&|spec| {
            roles(spec);
            spec.launch = Some("fork".into());
        }));
        let mut of_pods = checked(&roles).unwrap();
        of_pods.template = Some("{}".into());
        assert!(!of_pods.packs());
    }

    #[test]
    fn what_cannot_share_a_node_is_refused() {
        let refused = |change: &dyn Fn(&mut SpecDocument)| {
            let errors = checked(change).unwrap_err();
            let of_it = errors.into_iter().find(|e| e.path == "spec.placement");
            of_it.unwrap().message
        };
        assert_eq!(
            refused(&|spec| spec.placement = Some("packed".into())),
            "is \"packed\", must be pack or spread"
        );
        let message = refused(&|spec| {
            spec.placement = Some("pack".into());
            spec.launch = Some("cold".into());
        });
        assert!(
            message.starts_with("is pack, but launch cold starts one torchrun"),
            "{message}"
        );
        let message = refused(&|spec| {
            spec.placement = Some("pack".into());
            spec.framework = Some("mpi".into());
            spec.roles = vec![role("launcher"), role("worker")];
        });
        assert!(
            message.starts_with("is pack, but framework mpi has one member"),
            "{message}"
        );
    }
}
