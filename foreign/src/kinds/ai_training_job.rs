//! `AITrainingJob` of Baidu's CCE, and of its open ancestor. One process alone runs; several find each
//! other by files and variables that Muster does not have yet.

use muster_core::spec::{RESTARTS_MAX, RuleDocument};

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    options::Cluster,
    pod::{Main, Pod},
    roles::{self, Ends, Policy, Style},
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
    ("faultTolerant", Rule::Read),
    ("completePolicy", ENDS),
    ("failPolicy", ENDS),
    ("timeLimit", Rule::Read),
    ("restartingExitCode", Rule::Read),
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
    ("faultTolerantPolicy", Rule::Read),
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

const FAULT: Rules = &[
    ("exitCodes", Rule::Read),
    ("exceptionalEvent", Rule::Read),
    (
        "restartPolicy",
        Rule::Note("is so: what an entry names is survived"),
    ),
    ("restartScope", Rule::Note("is not needed by one process")),
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
    let tolerant = spec.flag("faultTolerant", log).map(|(at, on)| {
        log.note(at, "is so: Muster survives the loss of a node");
        on
    });
    let retried = codes(spec.get("restartingExitCode"), log);
    let Some(specs) = spec.get("replicaSpecs") else {
        log.refuse(&job.spec, "has no replicaSpecs");
        return None;
    };
    let roles: Vec<Role<'_>> = specs
        .entries(log)
        .iter()
        .filter_map(|(name, field)| role(name, field, cluster, log))
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
    let restarts = ends(role, retried, tolerant == Some(true), log);
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
    .map(|job| job.of_groups([role.name]))
}

/// Exit codes as the kind lists them. What core says against them is said at the field.
fn codes<'t>(field: Option<&Field<'t>>, log: &mut Verdicts) -> Option<(String, Field<'t>)> {
    let field = field?;
    let text = field.text(log).filter(|text| !text.trim().is_empty())?;
    match RuleDocument::read(&format!("exit codes {text}: restart")).map(|rule| rule.verify()) {
        Ok(Ok(())) => Some((text.to_owned(), field.clone())),
        Ok(Err(why)) | Err(why) => {
            log.refuse(field, why);
            None
        }
    }
}

/// What the failures of the only role mean, in the order in which the operator asks: its
/// fault-tolerant entries, then its policy.
fn ends(
    role: &Role<'_>,
    retried: Option<(String, Field<'_>)>,
    tolerant: bool,
    log: &mut Verdicts,
) -> Ends {
    let limit = role.limit.filter(|limit| *limit > 0);
    let retry = |codes: &str| RuleDocument {
        codes: Some(codes.to_owned()),
        ..roles::restart("exit", limit.or(Some(RESTARTS_MAX)))
    };
    let mut rules = Vec::new();
    if let Some(field) = &role.faults {
        match tolerant {
            false => log.note(field, "is not used, as upstream: faultTolerant is not true"),
            true => {
                let all = faults(field, log);
                rules.extend(all.iter().map(|codes| retry(codes)));
            }
        }
    }
    let policy = role.policy.unwrap_or(Policy::Never);
    if let Some((codes, at)) = &retried {
        match policy {
            Policy::ExitCode => {
                log.taken(at, "part of spec.rules");
                rules.push(retry(codes));
            }
            _ => log.note(at, "is not used, as upstream: no role has ExitCode"),
        }
    }
    if role.policy.is_some() {
        match policy {
            Policy::OnFailure => log.taken(&role.at, "spec.restartPolicy"),
            Policy::Always => log.warn(&role.at, "restarts after failures only, not after success"),
            Policy::Never | Policy::ExitCode => log.taken(
                &role.at,
                "part of spec.rules; a node that is lost is replaced all the same",
            ),
        }
    }
    let of_failures = match policy {
        Policy::OnFailure | Policy::Always => {
            Some(roles::in_all(role.limit.unwrap_or(RESTARTS_MAX)))
        }
        Policy::Never | Policy::ExitCode => {
            rules.push(roles::failure_is_final());
            None
        }
    };
    Ends {
        policy: of_failures,
        rules,
    }
}

/// The exit codes of all entries.
fn faults(field: &Field<'_>, log: &mut Verdicts) -> Vec<String> {
    let mut found = Vec::new();
    for entry in field.items(log) {
        let entry = Object::walk(&entry, FAULT, log);
        if let Some((text, at)) = codes(entry.get("exitCodes"), log) {
            log.taken(&at, "part of spec.rules");
            found.push(text);
        }
        let Some((at, events)) = entry.text("exceptionalEvent", log) else {
            continue;
        };
        let known = |event: &str| matches!(event.trim(), "nodeNotReady" | "PodForceDeleted");
        match events.split(',').find(|event| !known(event)) {
            None => log.note(at, "is so: Muster survives the loss of a node"),
            Some(event) => log.refuse(
                at,
                format!("has {event:?}, and nodeNotReady and PodForceDeleted are known"),
            ),
        }
    }
    found
}

/// One of a job's roles, which have any name.
struct Role<'t> {
    name: &'t str,
    /// The most replicas that it may have.
    most: i64,
    policy: Option<Policy>,
    /// Where the policy stands, else the role.
    at: Field<'t>,
    limit: Option<i64>,
    faults: Option<Field<'t>>,
    pod: Pod<'t>,
}

fn role<'t>(
    name: &'t str,
    field: &Field<'t>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Role<'t>> {
    let object = Object::walk(field, ROLE, log);
    let mut most = 1;
    for size in ["replicas", "maxReplicas"] {
        if let Some((at, count)) = object.whole(size, log) {
            most = match size {
                "replicas" => count,
                _ => most.max(count),
            };
            log.taken(at, "spec.replicas");
        }
    }
    let limit = object.whole("restartLimit", log).map(|(at, limit)| {
        log.taken(
            at,
            "part of spec.restartPolicy.maxRestarts, or the limit of spec.rules",
        );
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
        name,
        most,
        policy,
        at,
        limit,
        faults: object.get("faultTolerantPolicy").cloned(),
        pod: Pod::read(template, STYLE.main, STYLE.told, cluster, log)?,
    })
}
