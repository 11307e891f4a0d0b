//! Ranks that make the others wait.

use super::*;
use crate::{
    health::{Finding, Remedy, Severity, Subject},
    slow::{Arrivals, Clock, InGroup},
};

/// The look of one rank, which comes so much later to each call than it should. A step is 80 ms long.
fn arrivals(look: u64, late_ms: u64) -> Option<Box<Arrivals>> {
    let at = |call: u64| look * 10_000_000 + call * 80_000 + late_ms * 1_000;
    let clock = Clock {
        ahead_us: 0,
        error_us: 200,
    };
    Some(Box::new(Arrivals {
        look,
        groups: vec![InGroup {
            group: "0".into(),
            calls: 1,
            round: Duration::from_millis(80),
            marks: (0..6).map(|call| (call, at(call))).collect(),
            ..InGroup::default()
        }],
        clock: Some(clock),
    }))
}

impl Bench {
    /// So many looks, ten seconds apart. Rank 1 comes late by so much.
    fn looked(&mut self, looks: std::ops::Range<u64>, late_ms: u64) {
        for look in looks {
            self.pass(10 * SECOND);
            self.tell_ranks("digits", |rank| {
                let late = if rank.rank == 1 { late_ms } else { 0 };
                rank.arrivals = arrivals(look, late);
            });
        }
    }

    fn slow(&self) -> Vec<u32> {
        let current = self.job("digits").current.as_ref().unwrap();
        let slow = current.slow.iter().flat_map(|slow| &slow.ranks);
        slow.map(|slow| slow.rank).collect()
    }
}

/// A job that shows no steps: they would be long here.
fn quiet() -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(SECOND);
    bench
}

#[test]
fn a_slow_rank_is_told_once_and_so_is_its_end() {
    let mut bench = quiet();
    bench.looked(1..7, 30);
    assert_eq!(bench.slow(), [0; 0], "fifty seconds");
    bench.looked(7..20, 30);
    assert_eq!(bench.slow(), [1]);
    let told = "default/digits: rank 1 on b: each step waits 0.030 s for it (1.5 x) (muster stacks digits --rank 1)";
    assert_eq!(bench.told("RankSlow"), [told]);
    let stored = bench.stored_jobs.values().next().unwrap();
    assert!(stored.current.as_ref().unwrap().slow.is_some());
    // A coordinator that has read this tells nothing twice.
    bench.looked(20..25, 0);
    assert_eq!(bench.slow(), [0; 0]);
    let told = "default/digits: the others do not wait for rank 1 on b any more";
    assert_eq!(bench.told("RankNotSlow"), [told]);
    assert_eq!(bench.told("RankSlow").len(), 1);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "nothing is done about it"
    );
}

#[test]
fn a_job_that_is_even_or_has_long_steps_has_no_slow_rank() {
    let mut bench = quiet();
    bench.looked(1..20, 10);
    assert_eq!(bench.told("RankSlow"), [""; 0], "1.14 times as long");
    // Its output says that a step takes a second.
    let mut bench = Bench::new(&["a", "b"]);
    bench.trains("digits", document(2, 2, 2));
    bench.looked(1..20, 30);
    assert_eq!(bench.told("RankSlow"), [""; 0]);
}

#[test]
fn looks_of_another_time_say_nothing_together() {
    let mut bench = quiet();
    for look in 1..20 {
        bench.pass(10 * SECOND);
        bench.tell_ranks("digits", |rank| {
            let late = u64::from(rank.rank == 1);
            rank.arrivals = arrivals(look + 100 * late, 30 * late);
        });
    }
    assert_eq!(bench.told("RankSlow"), [""; 0]);
}

#[test]
fn what_the_node_reports_is_named_with_it() {
    let mut bench = quiet();
    let session = bench.agents[&NodeName::from("b")].session.unwrap();
    let mut report = crate::node_report::NodeReport::default();
    let finding = |check: &str, reason: &str| Finding {
        check: check.into(),
        subject: Subject::Gpu("GPU-1".into()),
        severity: Severity::Warn,
        remedy: Remedy::None,
        reason: reason.into(),
        since_unix_us: 0,
        runs: Vec::new(),
    };
    let ecc = finding("ecc-corrected", "corrected");
    report.health.findings = vec![ecc, finding("throttle", "GPU-1 is held back by heat")];
    bench.input(Input::Report { session, report });
    bench.looked(1..9, 30);
    let told = bench.told("RankSlow");
    assert!(
        told[0].contains("(1.5 x); its node reports: throttle: GPU-1 is held back by heat ("),
        "{told:?}"
    );
}
