//! `AITrainingJob` of Baidu's CCE, and of its open ancestor. One process alone runs; several find each
//! other by files and variables that Muster does not have yet.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    options::Cluster,
    pod::{Main, Pod},
    roles::{self, Policy, Style},
    run_policy::RunPolicy,
    tree::Field,
    variables::Told,
    verdict::Verdicts,
};

const ENDS: Rule = Rule::Note("is so: with one process, the job ends as it does");

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
    ("plugin", Rule::Note("is not needed by one process")),
    (
        "faultTolerant",
        Rule::Note("is so: Muster survives the loss of a node"),
    ),
    ("completePolicy", ENDS),
    ("failPolicy", ENDS),
    (
        "timeLimit",
        Rule::Warn(
            "has no effect: only a MusterJob object in Kubernetes has a deadline (activeDeadlineSeconds), so the job runs until it ends",
        ),
    ),
    (
        "restartingExitCode",
        Rule::Warn(
            "has no effect: exit codes are not told apart yet, so any failure of the job counts",
        ),
    ),
    (
        "metrics",
        Rule::Warn("have no effect: one process does not grow"),
    ),
];

const ROLE: Rules = &[
    ("replicas", Rule::Read),
    ("minReplicas", Rule::Note("is not needed by one process")),
    ("maxReplicas", Rule::Read),
    ("replicaType", Rule::Note("is not needed by one process")),
    ("restartPolicy", Rule::Read),
    ("restartLimit", Rule::Read),
    ("restartScope", Rule::Note("is not needed by one process")),
    (
        "restartTimeLimit",
        Rule::Warn("has no documented meaning and no effect here"),
    ),
    (
        "restartTimeout",
        Rule::Warn("has no documented meaning and no effect here"),
    ),
    (
        "faultTolerantPolicy",
        Rule::Warn(
            "has no effect: exit codes are not told apart yet, so any failure of the job counts",
        ),
    ),
    ("completePolicy", ENDS),
    ("failPolicy", ENDS),
    (
        "edlPolicy",
        Rule::Warn("has no effect: one process does not grow"),
    ),
    (
        "scaleTimeout",
        Rule::Warn("has no effect: one process does not grow"),
    ),
    (
        "scaleInpods",
        Rule::Warn("has no effect: one process does not grow"),
    ),
    (
        "scaleCancle",
        Rule::Warn("has no effect: one process does not grow"),
    ),
    ("template", Rule::Read),
];

const STYLE: Style = Style {
    main: Main::Prefix("aitj-"),
    told: Told {
        names: &[],
        prefixes: &["TRAININGJOB_"],
    },
    entrypoint: None,
    as_is: true,
};

const WHY: &str = "is more than one process; they find each other by discovery files and variables of their roles, and Muster has neither yet";

pub(super) fn read(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, SPEC, log);
    let before = log.refused();
    if let Some((at, framework)) = spec.text("frameworkType", log) {
        match framework {
            "horovod" => log.refuse(
                at,
                "Horovod's launcher starts processes on other nodes, which Muster cannot do yet",
            ),
            _ => log.note(at, "is not needed by one process"),
        }
    }
    let priority = spec
        .text("priority", log)
        .filter(|(_, class)| !class.is_empty());
    let priority =
        priority.and_then(|(at, class)| Some((cluster.priority(class, at, log)?, at.clone())));
    let run = RunPolicy {
        priority,
        ..RunPolicy::default()
    };
    let Some(specs) = spec.get("replicaSpecs") else {
        log.refuse(&job.spec, "has no replicaSpecs");
        return None;
    };
    let roles: Vec<Role<'_>> = specs
        .entries(log)
        .iter()
        .filter_map(|(_, field)| role(field, cluster, log))
        .collect();
    let total = roles
        .iter()
        .fold(0_i64, |sum, role| sum.saturating_add(role.most));
    let ([role], 1) = (&roles[..], total) else {
        if total > 1 || log.refused() == before {
            log.refuse(specs, WHY);
        }
        return None;
    };
    if log.refused() > before {
        return None;
    }
    let mut launch = roles::start(&role.pod, STYLE, log)?;
    launch.without_torch();
    log.warn(
        &role.pod.container,
        "is not told the variables of its role, such as TRAINER_HOSTS, because it is alone",
    );
    let policy = role.policy.map(|policy| (policy, role.at.clone()));
    let restarts = roles::restarts(
        policy.as_ref(),
        Policy::Never,
        &run,
        role.limit,
        "those that are listed",
        log,
    );
    Draft {
        kind: job.kind,
        meta: job.meta,
        pod: &role.pod,
        launch: &launch,
        replicas: (1, role.at.clone()),
        min: None,
        max: None,
        procs: 1,
        restarts,
        run: &run,
    }
    .finish(log)
}

/// One of a job's roles, which have any name.
struct Role<'t> {
    /// The most replicas that it may have.
    most: i64,
    policy: Option<Policy>,
    /// Where the policy stands, else the role.
    at: Field<'t>,
    limit: Option<i64>,
    pod: Pod<'t>,
}

fn role<'t>(field: &Field<'t>, cluster: &Cluster<'_>, log: &mut Verdicts) -> Option<Role<'t>> {
    let object = Object::walk(field, ROLE, log);
    let mut most = 1;
    for name in ["replicas", "maxReplicas"] {
        if let Some((at, count)) = object.whole(name, log) {
            most = match name {
                "replicas" => count,
                _ => most.max(count),
            };
            log.taken(at, "spec.replicas");
        }
    }
    let limit = object.whole("restartLimit", log).map(|(at, limit)| {
        log.taken(at, "part of spec.restartPolicy.maxRestarts");
        limit
    });
    let mut at = field.clone();
    let policy = object.text("restartPolicy", log).and_then(|(there, word)| {
        at = there.clone();
        let policy = match word {
            "Never" | "OnNodeFail" => Policy::Never,
            "OnFailure" => Policy::OnFailure,
            "Always" => Policy::Always,
            "ExitCode" | "OnNodeFailWithExitCode" => Policy::ExitCode,
            other => {
                log.refuse(
                    there,
                    format!("is {other:?}, must be one of Never, Always, OnFailure, OnNodeFail, ExitCode, OnNodeFailWithExitCode"),
                );
                return None;
            }
        };
        Some(policy)
    });
    let Some(template) = object.get("template") else {
        log.refuse(field, "has no template");
        return None;
    };
    Some(Role {
        most,
        policy,
        at,
        limit,
        pod: Pod::read(template, STYLE.main, STYLE.told, cluster, log)?,
    })
}
