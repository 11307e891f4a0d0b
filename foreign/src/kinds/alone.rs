//! Kinds whose processes find each other in a way that Muster does not offer yet. One process alone
//! needs nobody, so where a kind allows it, that one runs as a plain program.

use super::Job;
use crate::{
    draft::{Converted, Draft},
    fields::{Object, Rule, Rules},
    options::Cluster,
    pod::Main,
    roles::{self, Policy, Style},
    run_policy,
    variables::Told,
    verdict::Verdicts,
};

/// Reads a kind whose processes find each other in a way that Muster does not offer yet. One process
/// alone needs nobody: it runs as a plain program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    /// The field with the replica groups.
    pub(super) specs: &'static str,
    /// The groups, of which the first ones may run alone.
    pub(super) roles: &'static [&'static str],
    pub(super) may_run: usize,
    pub(super) style: Style,
    /// The groups' restartPolicy, if they name none.
    pub(super) policy: Policy,
    /// Why more than one process is refused, or any if none `may_run`.
    pub(super) why: &'static str,
}

impl Alone {
    pub(super) fn read(
        self,
        job: &Job<'_, '_>,
        spec: &Object<'_>,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) -> Option<Converted> {
        let first = log.remarks.len();
        let own = [
            "kubeflow.org/training-operator",
            "kubeflow.org/mpi-operator",
        ];
        let run = run_policy::read(spec, &own, cluster, log);
        let Some(specs) = spec.get(self.specs) else {
            log.refuse(&job.spec, format!("has no {}", self.specs));
            return None;
        };
        let before = log.refused();
        let roles = roles::read(specs, self.roles, 1, self.style, cluster, log);
        let total = roles
            .iter()
            .fold(0_i64, |sum, role| sum.saturating_add(role.replicas));
        let others = log.refused() > before;
        let role = match &roles[..] {
            [role] if total == 1 && self.roles[..self.may_run].contains(&role.name) => role,
            _ => {
                log.refuse(specs, self.why);
                log.calm(first);
                return None;
            }
        };
        if others {
            return None;
        }
        log.taken(&role.replicas_at, "spec.replicas");
        let mut launch = role.launch.clone();
        launch.without_torch();
        let restarts = roles::restarts(
            role.policy.as_ref(),
            self.policy,
            &run,
            None,
            roles::RETRIED,
            log,
        );
        Draft {
            kind: job.kind,
            meta: job.meta,
            pod: &role.pod,
            launch: &launch,
            replicas: (1, role.replicas_at.clone()),
            min: None,
            max: None,
            procs: 1,
            restarts,
            run: &run,
        }
        .finish(log)
        .map(|job| job.of_groups([&*role.name]))
    }
}

/// `PaddleJob` of `kubeflow.org/v1`. One process alone runs; several find each other by PADDLE_MASTER,
/// which Muster does not set yet.
pub(super) fn paddle(
    job: &Job<'_, '_>,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let spec = Object::walk(&job.spec, PADDLE_SPEC, log);
    PADDLE.read(job, &spec, cluster, log)
}

const PADDLE_SPEC: Rules = &[
    ("paddleReplicaSpecs", Rule::Read),
    ("runPolicy", Rule::Read),
    (
        "elasticPolicy",
        Rule::Refuse("lets a job of Paddle grow and shrink, which Muster cannot do yet"),
    ),
];

const PADDLE: Alone = Alone {
    specs: "paddleReplicaSpecs",
    roles: &["Worker", "Master"],
    may_run: 1,
    style: Style {
        main: Main::Named("paddle"),
        told: Told {
            names: &[],
            prefixes: &["PADDLE_"],
        },
        entrypoint: None,
        as_is: true,
    },
    policy: Policy::OnFailure,
    why: "are several Paddle processes, which find each other by PADDLE_MASTER, and Muster does not set it yet",
};
