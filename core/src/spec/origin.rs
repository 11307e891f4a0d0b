//! What a job was before it became a MusterJob: the kind of another system's file. Nothing here
//! changes how the job runs. It gives the job's members the names that its users know, and lets the
//! job be shown in that system's words.

use serde::{Deserialize, Serialize};

use super::{JobSpec, errors::Errors};
use crate::{
    id::{LABEL_MAX, label_error},
    layout::Layout,
};

/// The longest apiVersion: a DNS name, a slash and a version.
pub const ORIGIN_VERSION_MAX: usize = 253 + 1 + LABEL_MAX;

/// Groups of members that are named: the first member's, and that of all others.
pub const GROUPS_MAX: usize = 2;

/// The kind of file that a job is from. A document and a checked spec have it alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Origin {
    /// As `kubeflow.org/v1`.
    #[serde(default)]
    pub api_version: String,
    /// As `PyTorchJob`.
    #[serde(default)]
    pub kind: String,
    /// For a job without roles, whose members had names in the file: the group of the first member,
    /// and that of all others if it is another one. `[master, worker]`: the members are `master-0`,
    /// `worker-0`, `worker-1` and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl Origin {
    /// The group of a member without a role, and its number there.
    fn place(&self, node_rank: u32) -> Option<(&str, u32)> {
        let first = self.groups.first()?;
        let last = self.groups.last()?;
        match (node_rank, first == last) {
            (0, _) | (_, true) => Some((first, node_rank)),
            (_, false) => Some((last, node_rank - 1)),
        }
    }

    pub(super) fn check(&self, has_roles: bool, errors: &mut Errors) {
        let plain = |text: &str, also: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || also.contains(c);
            !text.is_empty() && text.chars().all(fits)
        };
        if !plain(&self.api_version, "./-") || self.api_version.len() > ORIGIN_VERSION_MAX {
            errors.add(
                "spec.origin.apiVersion",
                format!(
                    "is {:?}, must be a group and a version, as kubeflow.org/v1",
                    self.api_version
                ),
            );
        }
        if !plain(&self.kind, "") || self.kind.len() > LABEL_MAX {
            errors.add(
                "spec.origin.kind",
                format!(
                    "is {:?}, must be the name of a kind, as PyTorchJob",
                    self.kind
                ),
            );
        }
        if self.groups.len() > GROUPS_MAX {
            errors.add(
                "spec.origin.groups",
                format!(
                    "has {} names, at most {GROUPS_MAX} are allowed",
                    self.groups.len()
                ),
            );
        }
        if has_roles && !self.groups.is_empty() {
            errors.add("spec.origin.groups", "must be empty: the job has roles");
        }
        for (i, group) in self.groups.iter().enumerate() {
            if let Some(message) = label_error(group) {
                errors.add(format!("spec.origin.groups[{i}]"), message);
            }
        }
    }
}

impl JobSpec {
    /// The name of a member: its role, or its group in the file that the job is from, and its number
    /// there, as `worker-1`. `None`: the members have no names.
    pub fn member(&self, layout: &Layout, node_rank: u32) -> Option<String> {
        // A job without roles may still have a layout, of one role with a name that is not the file's.
        let origin = self.origin.as_ref().filter(|_| self.roles.is_empty());
        let of_origin = origin.and_then(|origin| origin.place(node_rank));
        let of_role =
            || Some(layout.place(node_rank)?).map(|place| (&*place.share.name, place.index));
        let (name, index) = of_origin.or_else(of_role)?;
        Some(format!("{name}-{index}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layout::RoleShare,
        spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    };

    fn document(origin: Origin) -> JobDocument {
        JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: "a".into(),
                namespace: None,
            },
            spec: SpecDocument {
                replicas: Some(3),
                args: vec!["train.py".into()],
                origin: Some(origin),
                ..SpecDocument::default()
            },
        }
    }

    fn origin(groups: &[&str]) -> Origin {
        Origin {
            api_version: "kubeflow.org/v1".into(),
            kind: "PyTorchJob".into(),
            groups: groups.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn members_have_the_names_of_their_file() {
        let names = |groups: &[&str]| {
            let (_, spec) = document(origin(groups)).check().unwrap();
            [0, 1, 2].map(|rank| spec.member(&Layout::default(), rank).unwrap_or_default())
        };
        assert_eq!(
            names(&["master", "worker"]),
            ["master-0", "worker-0", "worker-1"]
        );
        assert_eq!(names(&["worker"]), ["worker-0", "worker-1", "worker-2"]);
        assert_eq!(names(&[]), [""; 3]);
    }

    #[test]
    fn the_only_role_of_a_framework_has_its_name_in_the_file() {
        let share = RoleShare {
            name: "worker".into(),
            members: 1,
            procs: 1,
            slots: 0,
            service: false,
            restarts_alone: false,
        };
        let layout = Layout(vec![share]);
        let name = |groups: &[&str]| {
            let (_, spec) = document(origin(groups)).check().unwrap();
            spec.member(&layout, 0)
        };
        assert_eq!(name(&["chief"]).as_deref(), Some("chief-0"));
        assert_eq!(name(&[]).as_deref(), Some("worker-0"));
    }

    #[test]
    fn only_names_are_taken() {
        let wrong = |change: fn(&mut Origin)| {
            let mut origin = origin(&["worker"]);
            change(&mut origin);
            let errors = document(origin).check().unwrap_err();
            errors
                .into_iter()
                .map(|error| error.path)
                .collect::<Vec<_>>()
        };
        assert_eq!(wrong(|o| o.kind = "a b".into()), ["spec.origin.kind"]);
        assert_eq!(wrong(|o| o.api_version.clear()), ["spec.origin.apiVersion"]);
        assert_eq!(
            wrong(|o| o.groups = vec!["Worker".into()]),
            ["spec.origin.groups[0]"]
        );
        assert_eq!(
            wrong(|o| o.groups = vec!["a".into(); 3]),
            ["spec.origin.groups"]
        );
    }
}
