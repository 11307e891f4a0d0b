//! The kinds of Kubeflow's operator whose processes are told of each other: `TFJob`, `JAXJob`, `XGBoostJob`
//! and `PaddleJob`. Each replica group becomes a role.

use muster_core::spec::{Framework, PADDLE_VARIABLES, RuleDocument};

use super::Job;
use crate::{
    draft::Converted,
    fields::{Object, Rule, Rules},
    framework_draft::{FrameworkDraft, Group},
    options::Cluster,
    pod::Main,
    roles::{self, Policy, Role, Style},
    run_policy,
    tree::{Field, Value},
    variables::Told,
    verdict::Verdicts,
};

/// A kind whose groups become the roles of one framework.
#[derive(Clone, Copy, Debug)]
struct Kind {
    framework: Framework,
    /// The field with the replica groups.
    specs: &'static str,
    /// The groups, in the order of ranks.
    groups: &'static [&'static str],
    style: Style,
    /// The groups' restartPolicy, if they name none.
    policy: Policy,
    /// Groups of which a job has one at most, with one process.
    first: &'static [&'static str],
    /// Whether it must have one of these.
    needs_first: bool,
}

impl Kind {
    fn read(
        self,
        job: &Job<'_, '_>,
        spec: &Object<'_>,
        service: impl Fn(&Role<'_>, &[Role<'_>]) -> Option<bool>,
        success: Option<RuleDocument>,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Option<Converted> {
        let run = run_policy::read(spec, &["kubeflow.org/training-operator"], cluster, log);
        let Some(specs) = spec.get(self.specs) else {
            log.lacks(&job.spec, self.specs);
            return None;
        };
        let mut roles = roles::read(specs, self.groups, 1, self.style, cluster, log);
        self.has_first(specs, &roles, log);
        let order = |role: &Role<'_>| self.groups.iter().position(|name| *name == role.name);
        roles.sort_by_key(order);
        roles.retain(|role| {
            if role.replicas == 0 {
                log.note(&role.replicas_at, "is no process");
            }
            role.replicas != 0
        });
        if roles.is_empty() {
            // Unless one is there, and was refused.
            if !self
                .groups
                .iter()
                .any(|name| log.is_settled(&specs.below(name)))
            {
                log.refuse(specs, "has no process");
            }
            return None;
        }
        for (i, role) in roles.iter().enumerate() {
            let field = match roles.len() {
                1 => "spec.replicas".to_owned(),
                _ => format!("spec.roles[{i}].replicas"),
            };
            log.taken(&role.replicas_at, field);
        }
        let mut ends = roles::restarts_by_role(&roles, self.policy, &run, log);
        ends.rules.extend(success);
        let groups = roles.iter().map(|role| Group {
            role,
            name: role.name.to_lowercase(),
            service: service(role, &roles),
            // A GPU is not a process.
            procs: Some(1),
            sizes: None,
            restarts_alone: false,
        });
        FrameworkDraft {
            kind: job.kind,
            meta: job.meta,
            framework: self.framework,
            groups: groups.collect(),
            ends,
            run: &run,
        }
        .finish(log)
    }
}

impl Kind {
    /// Judges the groups of which a job has one at most. Others find it by its address.
    fn has_first(self, specs: &Field<'_>, roles: &[Role<'_>], log: &mut Verdicts) {
        let names = self.first.join(" or ");
        let mut found: Option<&Role<'_>> = None;
        for role in roles.iter().filter(|role| self.first.contains(&role.name)) {
            if let Some(other) = found {
                log.refuse(
                    &role.template,
                    format!(
                        "is a {} beside the {}, and a job has one {names}",
                        role.name, other.name
                    ),
                );
            }
            if role.replicas != 1 && !log.is_settled(&role.replicas_at.path) {
                log.refuse(
                    &role.replicas_at,
                    format!("is {}, must be 1", role.replicas),
                );
            }
            found = found.or(Some(role));
        }
        if self.needs_first && found.is_none() {
            for name in self.first {
                log.lacks(specs, name);
            }
        }
    }
}

/// The rule that the success of node rank 0 is that of the job.
fn first_succeeds() -> RuleDocument {
    RuleDocument {
        when: "success".into(),
        of: Some("first".into()),
        then: "succeed".into(),
        ..RuleDocument::default()
    }
}

const TF_SPEC: Rules = &[
    ("tfReplicaSpecs", Rule::Read),
    ("runPolicy", Rule::Read),
    ("successPolicy", Rule::Read),
    ("enableDynamicWorker", Rule::Read),
    // Before runPolicy these were here.
    ("cleanPodPolicy", Rule::Read),
    ("ttlSecondsAfterFinished", Rule::Read),
    ("activeDeadlineSeconds", Rule::Read),
    ("backoffLimit", Rule::Read),
];

const TF: Kind = Kind {
    framework: Framework::Tensorflow,
    specs: "tfReplicaSpecs",
    groups: &["Chief", "Master", "Worker", "PS", "Evaluator"],
    style: Style {
        main: Main::Named("tensorflow"),
        told: Told {
            names: &["TF_CONFIG"],
            prefixes: &[],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::Never,
    first: &["Chief", "Master"],
    needs_first: false,
};

/// `TFJob` of `kubeflow.org/v1`.
pub(super) fn tensorflow(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, TF_SPEC, log);
    // The chief's success is the job's. Without a chief it is that of worker 0, or of all workers.
    let mut success = Some(first_succeeds());
    if let Some((at, policy)) = spec.text("successPolicy", log) {
        let groups = spec.get("tfReplicaSpecs");
        let has_chief = groups.is_some_and(|groups| {
            let names = groups.entries(log);
            names
                .iter()
                .any(|(name, _)| ["chief", "master"].contains(&&*name.to_lowercase()))
        });
        match policy {
            "" => log.note(at, "is the usual"),
            "AllWorkers" if has_chief => log.note(
                at,
                "is not used, as upstream: the chief's success is the job's",
            ),
            "AllWorkers" => {
                log.taken(at, "the usual end: all workers must succeed");
                success = None;
            }
            other => log.refuse(at, format!("is {other:?}, must be empty or AllWorkers")),
        }
    }
    if let Some((at, dynamic)) = spec.flag("enableDynamicWorker", log) {
        match dynamic {
            true => log.refuse(
                at,
                "lets workers come and go one by one, which Muster cannot do yet",
            ),
            false => log.note(at, "is so"),
        }
    }
    // Beside parameter servers a chief gives the workers their work. They wait for it for ever, and
    // the job is over when the chief is.
    let service = |role: &Role<'_>, roles: &[Role<'_>]| {
        let has = |names: &[&str]| roles.iter().any(|role| names.contains(&role.name));
        (role.name == "Worker" && has(&["PS"]) && has(&["Chief", "Master"])).then_some(true)
    };
    let groups = spec.get(TF.specs).map(|groups| groups.entries(log));
    let evaluators = groups.iter().flatten();
    let mut evaluators = evaluators.filter(|(name, _)| name.eq_ignore_ascii_case("Evaluator"));
    if let Some((_, group)) = evaluators.next()
        && let Some(count) = group.node.entry("replicas")
        && matches!(count.node.value, Value::Whole(count) if count > 1)
    {
        log.warn(
            group,
            "are several: TF_CONFIG lists them all, as upstream, and TensorFlow's strategies for several workers refuse such a cluster",
        );
    }
    TF.read(job, &spec, service, success, cluster, log)
}

const JAX_SPEC: Rules = &[("jaxReplicaSpecs", Rule::Read), ("runPolicy", Rule::Read)];

const JAX: Kind = Kind {
    framework: Framework::Jax,
    specs: "jaxReplicaSpecs",
    groups: &["Worker"],
    style: Style {
        main: Main::Named("jax"),
        told: Told {
            names: &[
                "COORDINATOR_ADDRESS",
                "COORDINATOR_PORT",
                "NUM_PROCESSES",
                "PROCESS_ID",
                "PYTHONUNBUFFERED",
            ],
            prefixes: &[],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::Never,
    first: &[],
    needs_first: false,
};

/// `JAXJob` of `kubeflow.org/v1`.
pub(super) fn jax(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, JAX_SPEC, log);
    JAX.read(job, &spec, |_, _| None, None, cluster, log)
}

const XGBOOST_SPEC: Rules = &[("xgbReplicaSpecs", Rule::Read), ("runPolicy", Rule::Read)];

const XGBOOST: Kind = Kind {
    framework: Framework::Xgboost,
    specs: "xgbReplicaSpecs",
    groups: &["Master", "Worker"],
    style: Style {
        main: Main::Named("xgboost"),
        told: Told {
            names: &[
                "MASTER_ADDR",
                "MASTER_PORT",
                "WORLD_SIZE",
                "RANK",
                "WORKER_ADDRS",
                "WORKER_PORT",
                "PYTHONUNBUFFERED",
            ],
            prefixes: &[],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::Never,
    first: &["Master"],
    needs_first: true,
};

/// `XGBoostJob` of `kubeflow.org/v1`.
pub(super) fn xgboost(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, XGBOOST_SPEC, log);
    XGBOOST.read(
        job,
        &spec,
        |_, _| None,
        Some(first_succeeds()),
        cluster,
        log,
    )
}

const PADDLE_SPEC: Rules = &[
    ("paddleReplicaSpecs", Rule::Read),
    ("runPolicy", Rule::Read),
    (
        "elasticPolicy",
        Rule::Refuse("lets a job of Paddle grow and shrink, which Muster cannot do yet"),
    ),
];

const PADDLE: Kind = Kind {
    framework: Framework::Paddle,
    specs: "paddleReplicaSpecs",
    groups: &["Worker", "Master"],
    style: Style {
        main: Main::Named("paddle"),
        told: Told {
            names: PADDLE_VARIABLES,
            prefixes: &["PYTHONUNBUFFERED"],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::OnFailure,
    first: &[],
    needs_first: false,
};

/// `PaddleJob` of `kubeflow.org/v1`. With a Master it has parameter servers.
pub(super) fn paddle(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, PADDLE_SPEC, log);
    let groups = spec.get(PADDLE.specs);
    for (name, group) in groups.map(|groups| groups.entries(log)).unwrap_or_default() {
        if name.eq_ignore_ascii_case("Master") {
            log.refuse(
                &group,
                "are parameter servers of Paddle, which Muster cannot run yet",
            );
        }
    }
    PADDLE.read(job, &spec, |_, _| None, None, cluster, log)
}
