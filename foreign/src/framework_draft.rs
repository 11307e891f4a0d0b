//! Puts a job of a framework other than torch together: one role for each replica group, or none for a
//! single group whose name nobody reads.

use muster_core::{
    period,
    spec::{
        API_VERSION, Framework, JobDocument, KIND, LAUNCHER, Metadata, RestartScope, RoleDocument,
        SpecDocument,
    },
};

use crate::{
    draft::{self, Converted, Meta, ObjectOnly, may_stay, variables, working_dir},
    launch,
    pod::Chosen,
    roles::{Ends, Role},
    run_policy::RunPolicy,
    tree::Field,
    variables::Variables,
    verdict::Verdicts,
};

/// Fields that say how many processes there are.
const COUNTS: [&str; 2] = ["replicas", "slotsPerWorker"];

/// A replica group, and the role that it becomes.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a, 't> {
    pub(crate) role: &'a Role<'t>,
    /// The name of the role.
    pub(crate) name: String,
    /// Whether it serves the others, if that is not as usual for its name.
    pub(crate) service: Option<bool>,
    /// Processes on each node.
    pub(crate) procs: Option<i64>,
    /// At least and at most so many nodes, if they may change.
    pub(crate) sizes: Option<(i64, i64)>,
    /// A process that fails is started again without the others.
    pub(crate) restarts_alone: bool,
}

/// The job before it is checked.
#[derive(Debug)]
pub(crate) struct FrameworkDraft<'a, 't> {
    pub(crate) kind: &'static str,
    pub(crate) meta: &'a Meta<'t>,
    pub(crate) framework: Framework,
    /// In the order of node ranks; at least one.
    pub(crate) groups: Vec<Group<'a, 't>>,
    pub(crate) ends: Ends,
    pub(crate) run: &'a RunPolicy<'t>,
}

impl<'t> FrameworkDraft<'_, 't> {
    /// The job, if core takes it. An objection of core is reported at the field from which the value
    /// came.
    pub(crate) fn finish(self, log: &mut Verdicts) -> Option<Converted> {
        let ranks = self.groups.iter().map(|group| {
            let most = group.sizes.map_or(group.role.replicas, |(_, most)| most);
            most.saturating_mul(group.procs.unwrap_or(1))
        });
        let ranks = ranks.fold(0, i64::saturating_add);
        let launches = self.groups.iter().map(|group| &group.role.launch);
        // All are told of.
        let refused = launches.filter(|launch| !may_stay(launch, ranks, log));
        if refused.count() > 0 {
            return None;
        }
        let variables: Vec<Variables<'t>> = self
            .groups
            .iter()
            .map(|group| variables(&group.role.pod, &group.role.launch))
            .collect();
        let roles = self.groups.iter().zip(&variables);
        let roles: Vec<RoleDocument> = roles.map(|(group, env)| role(group, env)).collect();
        let (object, clash) = self.object(log);
        if clash {
            return None;
        }
        let pods = || self.groups.iter().map(|group| &group.role.pod);
        let priority = pods().find_map(|pod| pod.priority.as_ref());
        let priority = priority.or(self.run.priority.as_ref());
        // All roles stop together, so the longest grace is enough for each.
        let started = self.groups.iter().map(|group| group.role);
        let graces = started.filter_map(|role| draft::grace(&role.pod, &role.launch));
        let grace = graces.max_by_key(|(grace, _)| period::parse(grace).ok());
        let seconds = |given: &Option<(i64, Field<'_>)>| given.as_ref().map(|(given, _)| *given);
        let mut spec = SpecDocument {
            framework: Some(self.framework.name().to_owned()),
            priority: priority.map(|(priority, _)| *priority),
            restart_policy: self.ends.policy.clone(),
            rules: self.ends.rules.clone(),
            suspend: self.run.suspend.then_some(true),
            active_deadline_seconds: seconds(&self.run.deadline),
            ttl_seconds_after_finished: seconds(&self.run.ttl),
            stop_grace_period: grace.map(|(grace, _)| grace),
            ..SpecDocument::default()
        };
        let keeps_names = self.framework.tells_role_names();
        Chosen::of(pods().map(|pod| &pod.nodes), log).write(&mut spec);
        match <[RoleDocument; 1]>::try_from(roles) {
            Ok([only]) if !keeps_names => {
                spec = SpecDocument {
                    replicas: only.replicas,
                    proc_per_node: only.proc_per_node,
                    gpus_per_node: only.gpus_per_node,
                    command: only.command,
                    args: only.args,
                    env: only.env,
                    working_dir: only.working_dir,
                    ..spec
                };
            }
            Ok([only]) => spec.roles = vec![only],
            Err(roles) => spec.roles = roles,
        }
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: self.meta.name.clone(),
                namespace: self.meta.namespace.clone(),
            },
            spec,
        };
        let mut checked = document.clone();
        // The caller makes a relative directory absolute.
        checked.spec.working_dir = None;
        for role in &mut checked.spec.roles {
            role.working_dir = None;
        }
        // A command that was refused says nothing more.
        let roles = self.groups.iter().zip(&mut checked.spec.roles);
        for (_, role) in roles.filter(|(group, _)| group.role.launch.broken) {
            match self.framework == Framework::Mpi && role.name != LAUNCHER {
                // It runs nothing of its own.
                true => (role.command, role.args) = (Vec::new(), Vec::new()),
                false => launch::placeholder(&mut role.command, &mut role.args),
            }
        }
        if self.groups.iter().any(|group| group.role.launch.broken) && checked.spec.roles.is_empty()
        {
            launch::placeholder(&mut checked.spec.command, &mut checked.spec.args);
        }
        let errors = checked.check().err().unwrap_or_default();
        let clean = errors.is_empty();
        for error in errors {
            let at = self.at(&error.path, &variables);
            let of_container = self
                .groups
                .iter()
                .any(|group| group.role.pod.container.path == at.path);
            if error.path == "spec.roles" && log.doubts(&COUNTS) {
                continue;
            }
            // `Meta::check` says it, or it follows from another mistake.
            if error.path.starts_with("metadata.") || !of_container && log.is_settled(&at.path) {
                continue;
            }
            log.refuse(at, format!("{}: {}", error.path, error.message));
        }
        let converted = clean.then_some(Converted {
            place: self.meta.place,
            kind: self.kind,
            document,
            object,
        })?;
        Some(match &self.groups[..] {
            [only] if !keeps_names => converted.of_groups([&*only.name]),
            _ => converted,
        })
    }

    /// The fields that only an object has. True: the groups' templates differ, and the job is refused for it.
    fn object(&self, log: &mut Verdicts) -> (Option<ObjectOnly>, bool) {
        let [first, others @ ..] = &self.groups[..] else {
            return (None, false);
        };
        let Some(template) = first.role.pod.template.clone() else {
            return (None, false);
        };
        let differs = |group: &&Group<'_, '_>| {
            let own = group.role.pod.template.as_ref();
            !own.is_some_and(|own| own.says_the_same(&template))
        };
        if let Some(other) = others.iter().find(differs) {
            log.refuse(
                &other.role.template,
                format!(
                    "differs from that of {} by more than the command; with --pods all pods of a job are alike",
                    first.role.name
                ),
            );
            return (None, true);
        }
        let object = ObjectOnly { template };
        (Some(object), false)
    }

    /// The field from which the value at this path of the document came.
    fn at<'b>(&'b self, path: &str, variables: &'b [Variables<'t>]) -> &'b Field<'t> {
        let number = |rest: &str| rest.split(']').next()?.parse::<usize>().ok();
        let (group, rest) = match path.strip_prefix("spec.roles[") {
            Some(rest) => (
                number(rest).unwrap_or(0),
                rest.split_once("].").map_or("", |(_, rest)| rest),
            ),
            None => (0, path.strip_prefix("spec.").unwrap_or(path)),
        };
        let group = group.min(self.groups.len() - 1);
        let role = self.groups[group].role;
        let variable = || {
            let i = number(rest.strip_prefix("env[")?)?;
            variables[group].list.get(i)?.1.as_ref()
        };
        match path {
            "spec.activeDeadlineSeconds" | "spec.ttlSecondsAfterFinished" => {
                let given = match rest.starts_with("active") {
                    true => self.run.deadline.as_ref(),
                    false => self.run.ttl.as_ref(),
                };
                given.map_or(&role.pod.container, |(_, at)| at)
            }
            _ if rest.ends_with("eplicas") => &role.replicas_at,
            _ => variable().unwrap_or(&role.pod.container),
        }
    }
}

fn role(group: &Group<'_, '_>, variables: &Variables<'_>) -> RoleDocument {
    let Role { pod, launch, .. } = group.role;
    RoleDocument {
        name: group.name.clone(),
        replicas: Some(group.role.replicas),
        proc_per_node: group.procs,
        gpus_per_node: (pod.gpus != 0).then_some(pod.gpus),
        command: launch.command.clone(),
        args: launch.args.clone(),
        env: variables.list.iter().map(|(var, _)| var.clone()).collect(),
        working_dir: working_dir(pod, launch),
        service: group.service,
        min_replicas: group.sizes.map(|(least, _)| least),
        max_replicas: group.sizes.map(|(_, most)| most),
        multiple_of: None,
        restart_scope: (group.restarts_alone).then(|| RestartScope::Member.name().to_owned()),
    }
}
