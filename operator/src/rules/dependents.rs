//! The objects that a `MusterJob` object owns besides its pods, because its spec asks for them. Kubernetes
//! calls what an object owns its dependents.
//!
//! [`wanted`] says which there should be, and [`step`] names the next change. Both are asked again whenever
//! something has changed. All are there before the first pod is. What the object does not ask for
//! any more is deleted; what is left when the object is deleted, the cluster collects.

use muster_core::spec::GangScheduler;

/// What a spec asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `disruptionBudget: Minimum`
    pub budget: bool,
    /// `networkPolicy: Job`
    pub policy: bool,
    /// `podGroup`, with the scheduler that it names.
    pub group: Option<GangScheduler>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    NetworkPolicy,
    DisruptionBudget,
    /// Each of these schedulers has a kind of its own, and all call it PodGroup.
    PodGroup(GangScheduler),
}

/// A dependent that there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependent {
    /// The pods of the job are reached by each other only.
    NetworkPolicy,
    /// An eviction must leave so many healthy pods of the job. This does not depend on how many nodes the job
    /// wants, so nothing is written when it is scaled.
    DisruptionBudget { min_available: u32 },
    /// The scheduler places so many pods of the job at once, or none. Those beyond them it places one by one, so
    /// nothing is written when the job is scaled.
    PodGroup {
        scheduler: GangScheduler,
        min_member: u32,
    },
}

impl Dependent {
    pub fn kind(self) -> Kind {
        match self {
            Dependent::NetworkPolicy => Kind::NetworkPolicy,
            Dependent::DisruptionBudget { .. } => Kind::DisruptionBudget,
            Dependent::PodGroup { scheduler, .. } => Kind::PodGroup(scheduler),
        }
    }
}

impl Kind {
    /// Those that every cluster has.
    pub const BUILT_IN: [Kind; 2] = [Kind::NetworkPolicy, Kind::DisruptionBudget];

    /// The kind as Kubernetes calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::DisruptionBudget => "PodDisruptionBudget",
            Kind::PodGroup(_) => "PodGroup",
        }
    }

    /// The field of the spec that asks for it.
    pub fn field(self) -> &'static str {
        match self {
            Kind::NetworkPolicy => "spec.networkPolicy",
            Kind::DisruptionBudget => "spec.disruptionBudget",
            Kind::PodGroup(_) => "spec.podGroup",
        }
    }
}

/// A dependent that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct There {
    pub kind: Kind,
    /// It says what the wanted one of its kind says.
    pub fits: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Create(Dependent),
    Update(Dependent),
    Delete(Kind),
}

impl Step {
    pub fn kind(self) -> Kind {
        match self {
            Step::Create(dependent) | Step::Update(dependent) => dependent.kind(),
            Step::Delete(kind) => kind,
        }
    }
}

/// What an object is like, as far as its dependents depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    pub asks: Asked,
    /// The fewest nodes of its job. `None`: its spec is none.
    pub min_replicas: Option<u32>,
    pub is_over: bool,
    /// The job is to have no nodes for now.
    pub is_held_back: bool,
}

/// Which dependents there should be.
pub fn wanted(situation: Situation) -> Vec<Dependent> {
    let Situation {
        asks,
        min_replicas,
        is_over,
        is_held_back,
    } = situation;
    // The pods of a job that is over stay, and so does what protects them. A budget or a group for pods
    // that are not there would only alarm people.
    let policy = asks.policy.then_some(Dependent::NetworkPolicy);
    let min_replicas = min_replicas.filter(|_| !is_over && !is_held_back);
    let budget = min_replicas.filter(|_| asks.budget);
    let budget = budget.map(|min_available| Dependent::DisruptionBudget { min_available });
    let group = asks.group.zip(min_replicas);
    let group = group.map(|(scheduler, min_member)| Dependent::PodGroup {
        scheduler,
        min_member,
    });
    policy.into_iter().chain(budget).chain(group).collect()
}

/// The next change that makes of the dependents that exist those that are wanted.
pub fn step(wanted: &[Dependent], there: &[There]) -> Option<Step> {
    let of = |kind: Kind| there.iter().find(|there| there.kind == kind);
    let lacking = wanted.iter().find_map(|one| match of(one.kind()) {
        None => Some(Step::Create(*one)),
        Some(there) if !there.fits => Some(Step::Update(*one)),
        Some(_) => None,
    });
    let is_wanted = |kind: Kind| wanted.iter().any(|one| one.kind() == kind);
    let unwanted = there.iter().find(|there| !is_wanted(there.kind));
    lacking.or(unwanted.map(|there| Step::Delete(there.kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Dependent = Dependent::NetworkPolicy;

    fn budget(min_available: u32) -> Dependent {
        Dependent::DisruptionBudget { min_available }
    }

    #[test]
    fn a_budget_is_for_pods_that_there_should_be_and_a_policy_for_all() {
        let both = Asked {
            budget: true,
            policy: true,
            group: None,
        };
        let runs = Situation {
            asks: both,
            min_replicas: Some(2),
            is_over: false,
            is_held_back: false,
        };
        assert_eq!(wanted(runs), [POLICY, budget(2)]);
        for without in [
            Situation {
                is_over: true,
                ..runs
            },
            Situation {
                is_held_back: true,
                ..runs
            },
            Situation {
                min_replicas: None,
                ..runs
            },
            Situation {
                asks: Asked {
                    budget: false,
                    ..both
                },
                ..runs
            },
        ] {
            assert_eq!(wanted(without), [POLICY], "{without:?}");
        }
        let asks = Asked {
            policy: false,
            ..both
        };
        assert_eq!(wanted(Situation { asks, ..runs }), [budget(2)]);
        let asks = Asked::default();
        assert_eq!(wanted(Situation { asks, ..runs }), []);
    }

    #[test]
    fn a_group_is_for_the_fewest_pods_with_which_the_job_may_run() {
        let asks = Asked {
            group: Some(GangScheduler::Volcano),
            ..Asked::default()
        };
        let runs = Situation {
            asks,
            min_replicas: Some(2),
            is_over: false,
            is_held_back: false,
        };
        let group = Dependent::PodGroup {
            scheduler: GangScheduler::Volcano,
            min_member: 2,
        };
        assert_eq!(wanted(runs), [group]);
        // Its scheduler's kind, and no other.
        assert_eq!(group.kind(), Kind::PodGroup(GangScheduler::Volcano));
        let held = Situation {
            is_held_back: true,
            ..runs
        };
        assert_eq!(wanted(held), []);
    }

    fn there(kind: Kind, fits: bool) -> There {
        There { kind, fits }
    }

    #[test]
    fn each_step_brings_them_nearer_and_none_is_left() {
        let wanted = [POLICY, budget(2)];
        let both = |policy: bool, budget: bool| {
            [
                there(Kind::NetworkPolicy, policy),
                there(Kind::DisruptionBudget, budget),
            ]
        };
        for (there, next) in [
            (vec![], Some(Step::Create(POLICY))),
            (
                vec![there(Kind::NetworkPolicy, true)],
                Some(Step::Create(budget(2))),
            ),
            (both(true, false).into(), Some(Step::Update(budget(2)))),
            (both(false, false).into(), Some(Step::Update(POLICY))),
            (both(true, true).into(), None),
        ] {
            assert_eq!(step(&wanted, &there), next, "{there:?}");
        }
        // Missing objects come before superfluous ones.
        let other = [there(Kind::DisruptionBudget, false)];
        assert_eq!(step(&[POLICY], &other), Some(Step::Create(POLICY)));
        let gone = Some(Step::Delete(Kind::DisruptionBudget));
        assert_eq!(step(&[POLICY], &both(true, false)), gone);
        assert_eq!(
            step(&[], &[there(Kind::NetworkPolicy, true)]),
            Some(Step::Delete(Kind::NetworkPolicy))
        );
        assert_eq!(step(&[], &[]), None);
    }
}
