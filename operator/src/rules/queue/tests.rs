use muster_core::{fleet::job::GenerationRecord, time::Timestamp};

use super::*;
use crate::rules::tests::{end, generation, record};

/// A job of two nodes that waits.
fn job() -> JobRecord {
    let mut job = record();
    job.replicas = 2;
    job
}

fn training() -> JobRecord {
    let mut job = job();
    job.current = Some(generation(1));
    job
}

fn queued(job: &JobRecord, pods: usize) -> Queued<'_> {
    Queued {
        job,
        queue: Some("gpus"),
        suspend: false,
        pods: Some(pods),
    }
}

/// Its Workload, as it was made.
fn waiting() -> Workload {
    Workload {
        queue: "gpus".into(),
        count: 2,
        active: true,
        ..Workload::default()
    }
}

fn admitted() -> Workload {
    Workload {
        reserved: true,
        admitted: true,
        assigned: Some(2),
        ready: Some(true),
        ..waiting()
    }
}

fn asks() -> Asks {
    Asks {
        queue: "gpus".into(),
        count: 2,
        priority: 0,
    }
}

fn reason(decision: &Decision) -> &str {
    match &decision.admission {
        Admission::Waits(said) => &said.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_waits_until_it_is_admitted() {
    let job = job();
    let new = decide(queued(&job, 0), None);
    assert_eq!(
        (reason(&new), new.step.clone()),
        ("NoWorkload", Some(Step::Create(asks())))
    );
    // It is as Kueue says.
    let mut workload = waiting();
    let stays = decide(queued(&job, 0), Some(&workload));
    assert_eq!((reason(&stays), stays.step.clone()), ("Pending", None));
    let said = Said::new("WaitingForQuota", "needs 8 more nvidia.com/gpu");
    workload.waits = Some(said.clone());
    let told = decide(queued(&job, 0), Some(&workload));
    assert_eq!(told.admission, Admission::Waits(said));
    // Quota alone does not admit it: a check may be open.
    workload.reserved = true;
    assert_eq!(
        reason(&decide(queued(&job, 0), Some(&workload))),
        "WaitingForQuota"
    );
    (workload.admitted, workload.assigned) = (true, Some(2));
    let starts = decide(queued(&job, 0), Some(&workload));
    assert_eq!(
        (starts.admission, starts.step),
        (Admission::Admitted(2), None)
    );
}

#[test]
fn what_it_asks_for_changes_until_quota_is_reserved() {
    let mut job = job();
    (job.replicas, job.spec.priority) = (3, 7);
    let changed = Asks {
        queue: "others".into(),
        count: 3,
        priority: 7,
    };
    let of = |workload: &Workload| {
        let queued = Queued {
            queue: Some("others"),
            ..queued(&job, 0)
        };
        decide(queued, Some(workload)).step
    };
    assert_eq!(of(&waiting()), Some(Step::Update(changed)));
    let reserved = Workload {
        reserved: true,
        ..waiting()
    };
    assert_eq!(of(&reserved), None);
}

#[test]
fn an_evicted_job_gives_its_quota_back_when_its_pods_are_gone() {
    let why = Said::new("Preempted", "for team-b/big");
    let evicted = Workload {
        evicted: Some(why.clone()),
        ..admitted()
    };
    let trains = training();
    let told = decide(queued(&trains, 2), Some(&evicted));
    assert_eq!(told.admission, Admission::Waits(why.clone()));
    assert_eq!(told.step, Some(Step::Ready(false)));
    let evicted = Workload {
        ready: Some(false),
        ..evicted
    };
    // Neither while workers may live, nor while pods are there, nor while nobody knows.
    let stopped = job();
    let unknown = Queued {
        pods: None,
        ..queued(&stopped, 0)
    };
    for holds in [queued(&trains, 0), queued(&stopped, 1), unknown] {
        assert_eq!(decide(holds, Some(&evicted)).step, None, "{holds:?}");
    }
    let release = |why: &Said, requeued| {
        let why = why.clone();
        Some(Step::Release { why, requeued })
    };
    let gone = decide(queued(&stopped, 0), Some(&evicted));
    assert_eq!(gone.step, release(&why, true));
    // Kueue itself puts back those that it has evicted for other reasons.
    let why = Said::new("PodsReadyTimeout", "too slow");
    let slow = Workload {
        evicted: Some(why.clone()),
        ..evicted.clone()
    };
    assert_eq!(
        decide(queued(&stopped, 0), Some(&slow)).step,
        release(&why, false)
    );
    let released = Workload {
        reserved: false,
        admitted: false,
        ..evicted
    };
    let waits = decide(queued(&stopped, 0), Some(&released));
    assert_eq!((reason(&waits), waits.step.clone()), ("Preempted", None));
    // It waits as any other, though the condition stays until quota is reserved again.
    let mut smaller = stopped.clone();
    smaller.replicas = 1;
    let changed = Step::Update(Asks { count: 1, ..asks() });
    let waits = decide(queued(&smaller, 0), Some(&released));
    assert_eq!(waits.step, Some(changed));
}

#[test]
fn a_workload_that_is_not_active_or_is_gone_admits_nobody() {
    let job = training();
    let of = |workload: &Workload| {
        let decision = decide(queued(&job, 2), Some(workload));
        (reason(&decision).to_owned(), decision.step)
    };
    let unready = Some(Step::Ready(false));
    let inactive = Workload {
        active: false,
        ..admitted()
    };
    assert_eq!(of(&inactive), ("Deactivated".into(), unready));
    // Kueue itself may have done it, and then its reason is told. A reason of before is not.
    let said = |reason: &str| {
        let released = Workload {
            reserved: false,
            evicted: Some(Said::new(reason, "the check has refused it")),
            ..inactive.clone()
        };
        match decide(queued(&job, 2), Some(&released)).admission {
            Admission::Waits(said) => said.message,
            other => panic!("{other:?}"),
        }
    };
    let plain = "its Workload is not active (spec.active is false)";
    assert_eq!(said("Preempted"), plain);
    assert_eq!(
        said("DeactivatedDueToAdmissionCheck"),
        format!("{plain}: the check has refused it")
    );
    let deleting = Workload {
        deleting: true,
        ..admitted()
    };
    assert_eq!(of(&deleting), ("WorkloadDeleted".into(), None));
    let finished = Workload {
        finished: Some(Said::new("OutOfSync", "no")),
        ..admitted()
    };
    assert_eq!(of(&finished), ("WorkloadFinished".into(), None));
    // Another one is made when the pods are gone.
    let without = decide(queued(&job, 2), None);
    assert_eq!(
        (reason(&without), without.step.clone()),
        ("NoWorkload", None)
    );
}

#[test]
fn a_smaller_job_gives_quota_back_and_does_not_get_it_again() {
    let mut job = training();
    job.replicas = 1;
    let of = |job: &JobRecord, pods, workload: &Workload| decide(queued(job, pods), Some(workload));
    // Its second pod is still there.
    assert_eq!(of(&job, 2, &admitted()).step, None);
    let shrunk = of(&job, 1, &admitted());
    assert_eq!(shrunk.step, Some(Step::Reclaim(1)));
    assert_eq!(shrunk.admission, Admission::Admitted(2));
    let reclaimed = Workload {
        reclaimable: 1,
        ..admitted()
    };
    let settled = of(&job, 1, &reclaimed);
    assert_eq!(
        (settled.admission, settled.step),
        (Admission::Admitted(1), None)
    );
}

#[test]
fn kueue_is_told_whether_the_job_trains_and_how_it_ends() {
    let mut job = training();
    let unready = Workload {
        ready: None,
        ..admitted()
    };
    let step = |job: &JobRecord, workload: &Workload| decide(queued(job, 2), Some(workload)).step;
    assert_eq!(step(&job, &unready), Some(Step::Ready(true)));
    let mut restarts = training();
    restarts.current = Some(GenerationRecord {
        launched: false,
        ..generation(2)
    });
    for (job, told) in [(&restarts, None), (&self::job(), Some(Step::Ready(false)))] {
        assert_eq!(step(job, &unready), None);
        assert_eq!(step(job, &admitted()), told);
    }
    // Not before the last worker is proven dead.
    end(&mut job, Phase::Failed, "out of memory", Timestamp(0));
    assert_eq!(step(&job, &admitted()), None);
    job.retiring.clear();
    let finish = Step::Finish {
        succeeded: false,
        message: "out of memory".into(),
    };
    let ended = decide(queued(&job, 2), Some(&admitted()));
    assert_eq!(
        (ended.admission, ended.step),
        (Admission::Free, Some(finish))
    );
    let finished = Workload {
        finished: Some(Said::new("Failed", "out of memory")),
        ..admitted()
    };
    assert_eq!(step(&job, &finished), None);
}

#[test]
fn a_suspended_job_is_in_no_queue() {
    let job = job();
    let suspended = |pods| Queued {
        suspend: true,
        ..queued(&job, pods)
    };
    assert_eq!(decide(suspended(1), Some(&admitted())).step, None);
    let gone = decide(suspended(0), Some(&admitted()));
    assert_eq!(
        (reason(&gone), gone.step.clone()),
        ("Suspended", Some(Step::Delete))
    );
    assert_eq!(decide(suspended(0), None).step, None);
    // One that has left its queue goes on.
    let left = Queued {
        queue: None,
        ..queued(&job, 2)
    };
    let free = decide(left, Some(&admitted()));
    assert_eq!(
        (free.admission, free.step),
        (Admission::Free, Some(Step::Delete))
    );
}

#[test]
fn an_admission_bounds_the_nodes_of_a_job() {
    let waits = Admission::Waits(Said::new("Pending", ""));
    for (admission, held, bounds) in [
        (Admission::Free, (false, false), (4, 4)),
        (Admission::Admitted(2), (false, false), (2, 2)),
        (Admission::Admitted(0), (false, false), (1, 1)),
        (waits, (true, true), (4, 4)),
        (Admission::Unknown, (false, true), (2, 3)),
    ] {
        let holds = (admission.holds_back(false), admission.holds_back(true));
        let of = |has| admission.bounds(4, has, 1);
        assert_eq!((holds, (of(2), of(3))), (held, bounds), "{admission:?}");
    }
}
