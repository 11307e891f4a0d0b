//! `AITrainingJob` of Baidu's CCE, and of its open ancestor. A launcher and the nodes on which it starts ranks
//! become a job of framework `mpi` (`launched`). In all other jobs each process is told of the others
//! (`peers`).
//!
//! Source: elasticdeeplearning/trainingjob-operator, `pkg/controller`; and the types of CCE's own operator
//! in PaddlePaddle/PaddleFlow, `pkg/apis/aitj-operator/v1`.

use muster_core::spec::TRAINING_JOB_VARIABLES;

use super::Job;
use crate::{
    draft::Converted,
    fields::{Object, Rule, Rules},
    launch::Launch,
    options::Cluster,
    pod::{Main, Pod},
    roles::{self, Policy, Style},
    run_policy::RunPolicy,
    tree::Field,
    variables::Told,
    verdict::Verdicts,
};

mod ends;
mod launched;
mod peers;

const SPEC: Rules = &[
    ("replicaSpecs", Rule::Read),
    ("frameworkType", Rule::Read),
    ("priority", Rule::Read),
    (
        "cleanPodPolicy",
        Rule::Note("is not needed: processes end with the job, and logs stay until it is deleted"),
    ),
    (
        "schedulerName",
        Rule::Note("is not needed: Muster places all nodes of a job together"),
    ),
    ("plugin", Rule::Read),
    ("faultTolerant", Rule::Read),
    ("completePolicy", Rule::Read),
    ("failPolicy", Rule::Read),
    ("timeLimit", Rule::Read),
    ("restartingExitCode", Rule::Read),
    ("metrics", Rule::Read),
];

const NO_MEANING: Rule = Rule::Warn("has no documented meaning and no effect here");

const ROLE: Rules = &[
    ("replicas", Rule::Read),
    ("minReplicas", Rule::Read),
    ("maxReplicas", Rule::Read),
    ("replicaType", Rule::Read),
    ("restartPolicy", Rule::Read),
    ("restartLimit", Rule::Read),
    ("restartScope", Rule::Read),
    ("restartTimeLimit", NO_MEANING),
    ("restartTimeout", NO_MEANING),
    ("faultTolerantPolicy", Rule::Read),
    ("completePolicy", Rule::Read),
    ("failPolicy", Rule::Read),
    ("edlPolicy", Rule::Read),
    ("scaleTimeout", Rule::Read),
    ("scaleInpods", Rule::Read),
    ("scaleCancle", Rule::Read),
    ("template", Rule::Read),
];

const STYLE: Style = Style {
    main: Main::Prefix("aitj-"),
    told: Told {
        names: TRAINING_JOB_VARIABLES,
        prefixes: &["TRAININGJOB_"],
    },
    entrypoint: None,
    as_is: true,
};

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let refused_before = log.refused();
    let spec = Object::walk(&job.spec, SPEC, log);
    let framework = spec.text("frameworkType", log);
    let framework = framework.map(|(at, framework)| (at.clone(), framework));
    let priority = spec
        .text("priority", log)
        .filter(|(_, class)| !class.is_empty());
    let priority =
        priority.and_then(|(at, class)| Some((cluster.priority(class, at, log)?, at.clone())));
    let deadline = spec.whole("timeLimit", log).map(|(at, seconds)| {
        log.taken(
            at,
            "spec.activeDeadlineSeconds, counted from the submission",
        );
        (seconds, at.clone())
    });
    let run = RunPolicy {
        priority,
        deadline,
        ..RunPolicy::default()
    };
    let tolerant = spec.flag("faultTolerant", log);
    let tolerant = tolerant.map(|(at, on)| (at.clone(), on));
    let retried = ends::codes(spec.get("restartingExitCode"), log);
    let Some(specs) = spec.get("replicaSpecs").cloned() else {
        log.lacks(&job.spec, "replicaSpecs");
        return None;
    };
    let roles: Vec<Role<'_>> = specs
        .entries(log)
        .iter()
        .map(|(name, field)| role(name, field, cluster, log))
        .collect();
    let whole = Whole {
        spec,
        framework,
        run,
        tolerant,
        retried,
        refused_before,
    };
    match launched::pair(&whole, &roles) {
        Ok(Some(pair)) => launched::read(job, &whole, pair.launcher, pair.hosts, log),
        Ok(None) => peers::read(job, &whole, &specs, &roles, log),
        Err(why) => {
            log.refuse(&specs, why);
            None
        }
    }
}

/// What the job says beside its roles.
struct Whole<'t> {
    spec: Object<'t>,
    framework: Option<(Field<'t>, &'t str)>,
    run: RunPolicy<'t>,
    tolerant: Option<(Field<'t>, bool)>,
    retried: Option<ends::Codes<'t>>,
    /// Refusals before this job.
    refused_before: usize,
}

impl Whole<'_> {
    fn is_refused(&self, log: &Verdicts) -> bool {
        log.refused() > self.refused_before
    }

    /// As with its operator, where it is left out.
    fn is_tolerant(&self) -> bool {
        self.tolerant.as_ref().is_some_and(|(_, on)| *on)
    }
}

/// One of a job's roles, which have any name.
struct Role<'t> {
    name: &'t str,
    at: Field<'t>,
    spec: Object<'t>,
    template: Field<'t>,
    replicas: Option<(Field<'t>, i64)>,
    least_wanted: Option<(Field<'t>, i64)>,
    most_wanted: Option<(Field<'t>, i64)>,
    policy: Option<(Policy, Field<'t>)>,
    limit: Option<(Field<'t>, i64)>,
    pod: Pod<'t>,
    /// False: nothing to run was found, which was refused.
    has_pod: bool,
}

impl<'t> Role<'t> {
    fn replicas(&self) -> i64 {
        self.replicas.as_ref().map_or(1, |(_, count)| *count)
    }

    /// The most replicas that it may have.
    fn most(&self) -> i64 {
        let wanted = self.most_wanted.as_ref().map(|(_, count)| *count);
        self.replicas().max(wanted.unwrap_or(0))
    }
}

fn role<'t>(
    name: &'t str,
    field: &Field<'t>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Role<'t> {
    let spec = Object::walk(field, ROLE, log);
    let mut whole = |name: &str| {
        let found = spec.whole(name, log);
        found.map(|(at, count)| (at.clone(), count))
    };
    let replicas = whole("replicas");
    let (least_wanted, most_wanted) = (whole("minReplicas"), whole("maxReplicas"));
    let limit = whole("restartLimit");
    let policy = spec.text("restartPolicy", log).and_then(|(at, word)| {
        let policy = match word {
            "Never" | "OnNodeFail" => Policy::Never,
            "OnFailure" => Policy::OnFailure,
            "Always" => Policy::Always,
            "ExitCode" | "OnNodeFailWithExitCode" => Policy::ExitCode,
            other => {
                log.refuse(
                    at,
                    format!("is {other:?}, must be one of Never, Always, OnFailure, OnNodeFail, ExitCode, OnNodeFailWithExitCode"),
                );
                return None;
            }
        };
        Some((policy, at.clone()))
    });
    let template = spec.get("template").cloned();
    if template.is_none() {
        log.lacks(field, "template");
    }
    let pod = template
        .as_ref()
        .and_then(|at| Pod::read(at, STYLE.main, STYLE.told, cluster, log));
    let template = template.unwrap_or_else(|| field.clone());
    Role {
        name,
        at: field.clone(),
        replicas,
        least_wanted,
        most_wanted,
        policy,
        limit,
        has_pod: pod.is_some(),
        pod: pod.unwrap_or_else(|| Pod::nothing(&template)),
        template,
        spec,
    }
}

/// The most processes that these roles may have.
fn processes(roles: &[Role<'_>]) -> i64 {
    let most = roles.iter().map(Role::most);
    most.fold(0, i64::saturating_add)
}

/// The role as a replica group.
fn of_group<'t>(role: &Role<'t>, launch: Launch) -> roles::Role<'t> {
    let at = role.replicas.as_ref().map(|(at, _)| at.clone());
    roles::Role {
        name: role.name,
        replicas: role.replicas(),
        replicas_at: at.unwrap_or_else(|| role.at.clone()),
        policy: None,
        template: role.template.clone(),
        pod: role.pod.clone(),
        launch,
    }
}

/// The policy of a role about its end.
fn policy<'o, 't>(
    spec: &'o Object<'t>,
    name: &str,
    log: &mut Verdicts,
) -> Option<(&'o Field<'t>, &'t str)> {
    let (at, word) = spec.text(name, log)?;
    let known = matches!(word, "All" | "Any" | "Rank0" | "None");
    if !known {
        log.refuse(at, format!("is {word:?}, must be All, Any, Rank0 or None"));
    }
    known.then_some((at, word))
}

/// What is said about edits of the size while the job runs.
fn edits(role: &Role<'_>, log: &mut Verdicts) {
    let edit = "has no effect: muster scale changes the size at once, and Muster chooses the nodes that go";
    warn(
        &role.spec,
        &["scaleTimeout", "scaleInpods", "scaleCancle"],
        edit,
        log,
    );
    let edl = "has no effect: minReplicas and maxReplicas say whether the size may change";
    warn(&role.spec, &["edlPolicy"], edl, log);
}

/// Notes fields that the way in which the job runs makes needless.
fn note(spec: &Object<'_>, names: &[&str], message: &str, log: &mut Verdicts) {
    for at in names.iter().filter_map(|name| spec.get(name)) {
        if !at.is_bare() {
            log.note(at, message);
        }
    }
}

/// The same with a warning.
fn warn(spec: &Object<'_>, names: &[&str], message: &str, log: &mut Verdicts) {
    for at in names.iter().filter_map(|name| spec.get(name)) {
        if !at.is_bare() {
            log.warn(at, message);
        }
    }
}
