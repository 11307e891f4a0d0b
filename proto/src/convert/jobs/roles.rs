//! The roles of a job, the variables that jobs and roles have, and the names of members.

use muster_core::spec::{EnvVar, JobSpec, Origin, Role, RoleDocument, ValueFrom};

use crate::v1;

pub(super) fn variable(var: v1::EnvVar) -> EnvVar {
    EnvVar {
        name: var.name,
        value: var.value,
        value_from: Some(ValueFrom { file: var.file }).filter(|from| !from.file.is_empty()),
    }
}

pub(super) fn variable_to_wire(var: EnvVar) -> v1::EnvVar {
    v1::EnvVar {
        name: var.name,
        value: var.value,
        file: var.value_from.map(|from| from.file).unwrap_or_default(),
    }
}

pub(super) fn origin(origin: v1::Origin) -> Origin {
    Origin {
        api_version: origin.api_version,
        kind: origin.kind,
        groups: origin.groups,
    }
}

pub(super) fn origin_to_wire(origin: Origin) -> v1::Origin {
    v1::Origin {
        api_version: origin.api_version,
        kind: origin.kind,
        groups: origin.groups,
    }
}

pub(super) fn role_document(role: v1::Role) -> RoleDocument {
    RoleDocument {
        name: role.name,
        replicas: role.replicas,
        min_replicas: role.min_replicas,
        max_replicas: role.max_replicas,
        multiple_of: role.multiple_of,
        proc_per_node: role.proc_per_node,
        gpus_per_node: role.gpus_per_node,
        command: role.command,
        args: role.args,
        env: role.env.into_iter().map(variable).collect(),
        working_dir: role.working_dir,
        service: role.service,
        restart_scope: role.restart_scope,
    }
}

pub(super) fn role_to_wire(role: RoleDocument) -> v1::Role {
    v1::Role {
        name: role.name,
        replicas: role.replicas,
        min_replicas: role.min_replicas,
        max_replicas: role.max_replicas,
        multiple_of: role.multiple_of,
        proc_per_node: role.proc_per_node,
        gpus_per_node: role.gpus_per_node,
        command: role.command,
        args: role.args,
        env: role.env.into_iter().map(variable_to_wire).collect(),
        working_dir: role.working_dir,
        service: role.service,
        restart_scope: role.restart_scope,
    }
}

/// `of`: its job.
pub(super) fn checked_role(role: &Role, of: &JobSpec) -> RoleDocument {
    RoleDocument {
        name: role.name.clone(),
        replicas: Some(role.replicas.into()),
        min_replicas: Some(role.min_replicas.into()),
        max_replicas: Some(role.max_replicas.into()),
        multiple_of: (!role.multiple_of.is_any()).then(|| role.multiple_of.get().into()),
        proc_per_node: Some(role.proc_per_node.into()),
        gpus_per_node: of.says_gpus().then_some(role.gpus_per_node.into()),
        command: role.command.clone(),
        args: role.args.clone(),
        env: role.env.clone(),
        working_dir: role.working_dir.clone(),
        service: Some(role.service),
        restart_scope: Some(role.restart_scope.name().to_owned()),
    }
}
