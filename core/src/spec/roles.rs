//! The roles of a job: groups of nodes that run different things, such as a chief, workers and
//! parameter servers.
//!
//! A role takes from the top of the spec what it does not say itself. A job without roles has one, of
//! which all fields are at the top.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    EnvVar, Framework, JobSpec, LAUNCHER, Multiple, NODES_MAX, PEERS_MAX, PROCS_MAX, RestartScope,
    SpecDocument, WORKER, errors::Errors,
};
use crate::{
    id::label_error,
    layout::{Layout, RoleShare},
};

/// Roles of one job. Public job files have at most five.
pub const ROLES_MAX: usize = 16;

/// A role as a document has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoleDocument {
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiple_of: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc_per_node: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_scope: Option<String>,
}

/// A role as the rules use it: complete, with what it takes from the top of the spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    pub name: String,
    /// Nodes wanted for this role; `min_replicas <= replicas <= max_replicas`.
    pub replicas: u32,
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// The role always has a multiple of so many members.
    #[serde(default, skip_serializing_if = "Multiple::is_any")]
    pub multiple_of: Multiple,
    /// Processes of each node. With MPI: the ranks that the launcher may start on it.
    pub proc_per_node: u32,
    pub gpus_per_node: u32,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<EnvVar>,
    pub working_dir: Option<String>,
    /// The role serves the others and does not end by itself. The job is over when the other roles
    /// are.
    pub service: bool,
    /// What is started again after a process of this role has failed by itself.
    #[serde(default, skip_serializing_if = "RestartScope::is_job")]
    pub restart_scope: RestartScope,
}

/// The program of a member.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    pub command: &'a [String],
    pub args: &'a [String],
    pub env: &'a [EnvVar],
    pub working_dir: Option<&'a str>,
}

impl Runs<'_> {
    /// The variables that have their values in the spec.
    pub fn values(&self) -> BTreeMap<String, String> {
        let own = self.env.iter().filter(|var| var.value_from.is_none());
        own.map(|var| (var.name.clone(), var.value.clone()))
            .collect()
    }

    /// The variables whose values are in files of the nodes, and the paths.
    pub fn files(&self) -> BTreeMap<String, String> {
        let file = |var: &EnvVar| Some((var.name.clone(), var.value_from.as_ref()?.file.clone()));
        self.env.iter().filter_map(file).collect()
    }
}

impl JobSpec {
    /// How this many members divide into roles. Empty for torch without roles.
    ///
    /// Roles of a fixed size have it. The elastic role has the rest.
    pub fn layout(&self, members: u32) -> Layout {
        if self.roles.is_empty() {
            return match self.framework.tells_peers() {
                false => Layout::default(),
                true => Layout(vec![RoleShare {
                    name: WORKER.into(),
                    members,
                    procs: self.proc_per_node,
                    slots: 0,
                    service: false,
                    restarts_alone: false,
                }]),
            };
        }
        let least: u32 = self.roles.iter().map(|role| role.min_replicas).sum();
        let mut more = members.saturating_sub(least);
        let share = |role: &Role| {
            let extra = more.min(role.max_replicas - role.min_replicas);
            more -= extra;
            // MPI's launcher starts the ranks. What Muster starts is one process on each node.
            let (procs, slots) = match self.framework {
                Framework::Mpi => (1, role.proc_per_node),
                _ => (role.proc_per_node, 0),
            };
            RoleShare {
                name: role.name.clone(),
                members: role.min_replicas + extra,
                procs,
                slots,
                service: role.service,
                restarts_alone: role.restart_scope == RestartScope::Member,
            }
        };
        Layout(self.roles.iter().map(share).collect())
    }

    /// What the members of the role at this position run. A job without roles has one, of which the
    /// top of the spec says all.
    pub fn runs(&self, role: Option<usize>) -> Runs<'_> {
        match role.and_then(|role| self.roles.get(role)) {
            Some(role) => Runs {
                command: &role.command,
                args: &role.args,
                env: &role.env,
                working_dir: role.working_dir.as_deref(),
            },
            None => Runs {
                command: &self.command,
                args: &self.args,
                env: &self.env,
                working_dir: self.working_dir.as_deref(),
            },
        }
    }

    /// The most GPUs that any of its members needs.
    pub fn gpus_max(&self) -> u32 {
        let of_roles = self.roles.iter().map(|role| role.gpus_per_node).max();
        of_roles.unwrap_or(self.gpus_per_node)
    }
}

/// Checks `framework` against the rest, and all roles. Returns the roles, complete. `top` is the spec
/// with the fields of its top checked.
pub(super) fn check(document: &SpecDocument, top: &JobSpec, errors: &mut Errors) -> Vec<Role> {
    let framework = top.framework;
    if framework.tells_peers() && i64::from(top.max_replicas) > PEERS_MAX {
        errors.add(
            "spec.maxReplicas",
            format!(
                "is {}, and with framework {} a job has at most {PEERS_MAX} nodes: each is told the addresses of all",
                top.max_replicas,
                framework.name()
            ),
        );
    }
    if framework.tells_peers() && !matches!(document.launch.as_deref(), None | Some("auto")) {
        errors.add(
            "spec.launch",
            format!(
                "must be auto with framework {}: the lanes are torch's",
                framework.name()
            ),
        );
    }
    if document.roles.len() > ROLES_MAX {
        errors.add(
            "spec.roles",
            format!(
                "has {} roles, at most {ROLES_MAX} are allowed",
                document.roles.len()
            ),
        );
        return Vec::new();
    }
    let refuse_set = |env: &[EnvVar], at: &str, errors: &mut Errors| {
        refuse_set(framework, &document.roles, env, at, errors);
    };
    refuse_set(&document.env, "spec", errors);
    let mut roles: Vec<Role> = Vec::new();
    let has_ps = document.roles.iter().any(|role| role.name == "ps");
    for (i, document) in document.roles.iter().enumerate() {
        let at = format!("spec.roles[{i}]");
        refuse_set(&document.env, &at, errors);
        let mut role = complete(document, top, &at, errors);
        role.restart_scope = restart_scope(document, &role, framework, has_ps, &at, errors);
        if let Some(message) = label_error(&role.name) {
            errors.add(format!("{at}.name"), message);
        } else if let Some(message) = framework.refuses(&role.name) {
            errors.add(
                format!("{at}.name"),
                format!("is {:?}: {message}", role.name),
            );
        } else if let Some(first) = roles.iter().position(|other| other.name == role.name) {
            errors.add(
                format!("{at}.name"),
                format!("spec.roles[{first}] is called {} already", role.name),
            );
        }
        let elastic = |role: &Role| role.min_replicas < role.max_replicas;
        if elastic(&role)
            && let Some(first) = roles.iter().find(|other| elastic(other))
        {
            errors.add(
                format!("{at}.minReplicas"),
                format!(
                    "only one role can change its size, and {} does already",
                    first.name
                ),
            );
        }
        if framework == Framework::Torch
            && let Some(first) = roles.first()
            && first.proc_per_node != role.proc_per_node
        {
            errors.add(
                format!("{at}.procPerNode"),
                format!(
                    "is {}, and {} of the role {}: torchrun starts equally many processes on each node",
                    role.proc_per_node, first.proc_per_node, first.name
                ),
            );
        }
        roles.push(role);
    }
    if framework != Framework::Mpi && !roles.is_empty() && roles.iter().all(|role| role.service) {
        errors.add(
            "spec.roles",
            "all of them are services, so the job would never end",
        );
    }
    if framework == Framework::Mpi {
        check_mpi(document, &roles, errors);
    } else if framework.tells_peers() && framework != Framework::Plain {
        check_one_process(top, &roles, errors);
    }
    roles
}

/// Checks that each member has one process: the framework starts the others itself.
fn check_one_process(top: &JobSpec, roles: &[Role], errors: &mut Errors) {
    let mut many = |procs: u32, path: &str| {
        if procs > 1 {
            let name = top.framework.name();
            errors.add(
                format!("{path}.procPerNode"),
                format!("is {procs}, must be 1 with framework {name}"),
            );
        }
    };
    if roles.is_empty() {
        many(top.proc_per_node, "spec");
    }
    for (i, role) in roles.iter().enumerate() {
        many(role.proc_per_node, &format!("spec.roles[{i}]"));
    }
}

/// Checks that there is one launcher, and that it finds nodes to start ranks on. Their role has any name.
fn check_mpi(document: &SpecDocument, roles: &[Role], errors: &mut Errors) {
    let Some(launcher) = roles.iter().position(|role| role.name == LAUNCHER) else {
        errors.add(
            "spec.roles",
            "framework mpi needs a role launcher, which runs mpirun, and another role, such as worker, for the nodes that mpirun starts ranks on",
        );
        return;
    };
    let role = &roles[launcher];
    if (role.min_replicas, role.max_replicas) != (1, 1) {
        errors.add(
            format!("spec.roles[{launcher}].replicas"),
            format!(
                "is {} to {}, must be 1: there is one launcher",
                role.min_replicas, role.max_replicas
            ),
        );
    }
    let slots = |role: &Role| u64::from(role.max_replicas) * u64::from(role.proc_per_node);
    if roles.iter().map(slots).sum::<u64>() == 0 {
        errors.add(
            "spec.roles",
            "have no slots for ranks: give another role, such as worker, or the launcher a procPerNode",
        );
    }
    let mut lending = roles.iter().filter(|role| role.name != LAUNCHER);
    if let (Some(first), Some(second)) = (lending.next(), lending.next()) {
        errors.add(
            "spec.roles",
            format!(
                "has {} and {} beside the launcher: framework mpi has one role for the nodes that mpirun starts ranks on",
                first.name, second.name
            ),
        );
    }
    for (i, role) in roles.iter().enumerate() {
        let at = format!("spec.roles[{i}]");
        if role.name == LAUNCHER {
            if role.service {
                errors.add(
                    format!("{at}.service"),
                    "the job is over when the launcher is",
                );
            }
            continue;
        }
        if !document.roles[i].command.is_empty() || !document.roles[i].args.is_empty() {
            errors.add(
                format!("{at}.command"),
                "a worker of framework mpi runs nothing of its own: the launcher starts ranks on its node",
            );
        }
        if role.proc_per_node == 0 {
            errors.add(format!("{at}.procPerNode"), "must be at least 1");
        }
        if !role.service {
            errors.add(
                format!("{at}.service"),
                "a worker of framework mpi serves the launcher and never ends by itself",
            );
        }
    }
}

/// Refuses variables that the framework's processes get from Muster.
fn refuse_set(
    framework: Framework,
    roles: &[RoleDocument],
    env: &[EnvVar],
    at: &str,
    errors: &mut Errors,
) {
    let only = roles.is_empty().then_some(WORKER);
    let own_roles = || roles.iter().map(|role| role.name.as_str()).chain(only);
    for (i, var) in env.iter().enumerate() {
        let sets = |role: &str| framework.sets_of_role(role, &var.name);
        if framework.sets(&var.name) || own_roles().any(sets) {
            errors.add(
                format!("{at}.env[{i}].name"),
                format!(
                    "{} is set by Muster for every process of framework {}",
                    var.name,
                    framework.name()
                ),
            );
        }
    }
}

/// One role with what it takes from the top.
fn complete(document: &RoleDocument, top: &JobSpec, at: &str, errors: &mut Errors) -> Role {
    let ((replicas, min_replicas, max_replicas), multiple_of) = errors.sizes(
        at,
        [
            document.replicas,
            document.min_replicas,
            document.max_replicas,
        ],
        document.multiple_of,
        0,
    );
    // A launcher that starts no rank on its own node needs no GPU there.
    let only_starts = top.framework == Framework::Mpi
        && document.name == LAUNCHER
        && document.proc_per_node.unwrap_or(0) == 0;
    let gpus = match only_starts {
        true => 0,
        false => top.gpus_per_node.into(),
    };
    let gpus_per_node = errors.number(
        &format!("{at}.gpusPerNode"),
        document.gpus_per_node.unwrap_or(gpus),
        0,
        PROCS_MAX,
    ) as u32;
    let procs = match top.framework {
        Framework::Mpi if only_starts => 0,
        // A rank for each GPU, as with torch.
        Framework::Mpi => i64::from(gpus_per_node.max(top.proc_per_node)),
        Framework::Torch => document
            .gpus_per_node
            .map_or(top.proc_per_node.into(), |gpus| gpus.max(1)),
        _ => top.proc_per_node.into(),
    };
    let proc_per_node = errors.number(
        &format!("{at}.procPerNode"),
        document.proc_per_node.unwrap_or(procs),
        if only_starts { 0 } else { 1 },
        PROCS_MAX,
    ) as u32;
    let or_top = |own: &[String], top: &[String]| match own.is_empty() {
        true => top.to_vec(),
        false => own.to_vec(),
    };
    // A role that names a program does not take the arguments of another program.
    let args = match document.command.is_empty() {
        true => or_top(&document.args, &top.args),
        false => document.args.clone(),
    };
    let command = or_top(&document.command, &top.command);
    let (command, args) = match top.framework.lends(&document.name) {
        true => (Vec::new(), Vec::new()),
        false => {
            errors.command(at, &command, &args, top.framework);
            (command, args)
        }
    };
    errors.env(at, &document.env);
    errors.directory(at, document.working_dir.as_deref());
    let own = |var: &&EnvVar| document.env.iter().all(|own| own.name != var.name);
    let env = top.env.iter().filter(own).chain(&document.env);
    Role {
        name: document.name.clone(),
        replicas,
        min_replicas,
        max_replicas,
        multiple_of,
        proc_per_node,
        gpus_per_node,
        command,
        args,
        env: env.cloned().collect(),
        working_dir: document
            .working_dir
            .clone()
            .or_else(|| top.working_dir.clone()),
        service: document
            .service
            .unwrap_or_else(|| top.framework.is_service(&document.name)),
        restart_scope: RestartScope::Job,
    }
}

/// What the document says, or else what the framework allows. `has_ps`: the job has parameter servers.
fn restart_scope(
    document: &RoleDocument,
    role: &Role,
    framework: Framework,
    has_ps: bool,
    at: &str,
    errors: &mut Errors,
) -> RestartScope {
    let path = format!("{at}.restartScope");
    let Some(word) = document.restart_scope.as_deref() else {
        return framework.restart_scope(&role.name, has_ps);
    };
    let scope = errors.one_of(&path, Some(word), &RestartScope::ALL);
    if scope == RestartScope::Job {
        return scope;
    }
    if !framework.takes_members_back() {
        errors.add(
            path,
            format!(
                "is member, and with framework {} a process that was started again cannot join those that run; use job",
                framework.name()
            ),
        );
    } else if role.proc_per_node != 1 {
        errors.add(
            path,
            format!(
                "is member, and each member has {} processes; this needs procPerNode 1",
                role.proc_per_node
            ),
        );
    }
    scope
}

/// The nodes of all roles together: wanted, at least, at most. The top of the document may only want
/// another number within these bounds.
pub(super) fn totals(
    document: &SpecDocument,
    roles: &[Role],
    errors: &mut Errors,
) -> (u32, u32, u32) {
    for (field, given) in [
        ("minReplicas", document.min_replicas),
        ("maxReplicas", document.max_replicas),
        ("multipleOf", document.multiple_of),
    ] {
        if given.is_some() {
            errors.add(
                format!("spec.{field}"),
                "is given beside roles; give it in the role that may change its size",
            );
        }
    }
    let sum = |of: fn(&Role) -> u32| roles.iter().map(of).fold(0, u32::saturating_add);
    let (min, max) = (sum(|role| role.min_replicas), sum(|role| role.max_replicas));
    let wanted = document
        .replicas
        .unwrap_or(sum(|role| role.replicas).into());
    if !(1..=NODES_MAX).contains(&max.into()) {
        errors.add(
            "spec.roles",
            format!("have {max} nodes in all, must be between 1 and {NODES_MAX}"),
        );
    } else if !(i64::from(min)..=i64::from(max)).contains(&wanted) {
        errors.add(
            "spec.replicas",
            format!(
                "is {wanted}, must be between {min} and {max}, the nodes that the roles have in all"
            ),
        );
    }
    (wanted.clamp(min.into(), max.into()) as u32, min.max(1), max)
}
