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
        self.looked_at(looks, |_, rank| if rank == 1 { late_ms } else { 0 });
    }

    /// The same, where it depends on node and rank how late one comes.
    fn looked_at(&mut self, looks: std::ops::Range<u64>, late: impl Fn(&str, u32) -> u64) {
        for look in looks {
            self.pass(10 * SECOND);
            let members = self.members("digits").into_iter().map(str::to_owned);
            let members: Vec<String> = members.collect();
            self.tell_ranks("digits", |rank| {
                let late = late(&members[rank.rank as usize], rank.rank);
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

/// A job of two nodes on a fleet of these, which leaves slow nodes.
fn leaves(nodes: &[&str], sizes: (i64, i64, i64)) -> Bench {
    let mut bench = Bench::new(nodes);
    let document = SpecDocument {
        inspect: Some("collectives".into()),
        on_slow_rank: Some("replace".into()),
        scale_up_cooldown: Some("0s".into()),
        ..document(sizes.0, sizes.1, sizes.2)
    };
    bench.submit("digits", document);
    bench.pass(SECOND);
    bench
}

/// Node b is slow, whichever rank is there.
fn slow_on_b(node: &str, _: u32) -> u64 {
    if node == "b" { 30 } else { 0 }
}

#[test]
fn a_job_leaves_a_slow_node_if_it_asks_for_that_and_there_is_room() {
    let mut bench = leaves(&["a", "b", "c"], (2, 2, 2));
    assert_eq!(bench.members("digits"), ["a", "b"]);
    bench.looked_at(1..20, slow_on_b);
    assert_eq!(bench.members("digits"), ["a", "c"]);
    let job = bench.job("digits");
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.message.as_str()),
        (
            Cause::RankSlow,
            "leaving what is slow: rank 1 on b: each step waits 0.030 s for it (1.5 x)"
        )
    );
    assert_eq!(
        (job.restarts.len(), job.restart_count),
        (0, 1),
        "nobody pays"
    );
    // A failure does not bring it back.
    bench.looked_at(20..30, slow_on_b);
    let number = bench.job("digits").last_generation;
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(SECOND * 10);
    assert_ne!(bench.job("digits").last_generation, number);
    assert_eq!(bench.members("digits"), ["a", "c"]);
    // Without the other node it does, rather than wait.
    bench.cut("c");
    bench.pass(SECOND * 60);
    assert_eq!(bench.members("digits"), ["a", "b"]);
}

#[test]
fn a_job_whose_own_work_is_slow_moves_once() {
    let mut bench = leaves(&["a", "b", "c", "d"], (2, 2, 2));
    bench.looked(1..60, 30);
    assert_eq!(bench.members("digits"), ["a", "c"]);
    let told = bench.told("RankSlow");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[1].contains("; it was slow on b too, so it is its work and not the node"),
        "{told:?}"
    );
    assert_eq!(bench.job("digits").last_generation.0, 2);
}

#[test]
fn a_job_stays_where_there_is_no_room_and_leaves_when_there_is() {
    let mut bench = leaves(&["a", "b"], (1, 2, 2));
    bench.looked_at(1..20, slow_on_b);
    assert_eq!(
        bench.members("digits"),
        ["a", "b"],
        "two slow nodes are more than one"
    );
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(SECOND * 10);
    assert_eq!(bench.members("digits"), ["a", "b"], "as before");
    bench.looked_at(21..40, slow_on_b);
    bench.connect("c");
    bench.looked_at(40..42, slow_on_b);
    assert_eq!(bench.members("digits"), ["a", "c"]);
    assert_eq!(
        bench.job("digits").incidents.last().unwrap().cause,
        Cause::RankSlow
    );
}

/// Also a change that was made for another reason leaves it, and a job that may grow does not grow onto it.
#[test]
fn a_job_does_not_grow_onto_what_it_left() {
    let mut bench = leaves(&["a", "b", "c"], (2, 3, 3));
    assert_eq!(bench.members("digits"), ["a", "b", "c"]);
    bench.looked_at(1..10, slow_on_b);
    assert_eq!(bench.slow(), [1]);
    bench.rank_exits("digits", 0, Exit::Code(1), None);
    bench.pass(SECOND * 10);
    bench.looked_at(12..40, slow_on_b);
    assert_eq!(bench.members("digits"), ["a", "c"]);
}

/// A node that was left is no room for the next move.
#[test]
fn two_slow_nodes_and_one_spare_are_one_move() {
    let mut bench = leaves(&["a", "b", "c", "d"], (3, 3, 3));
    bench.looked_at(1..12, |node, _| if node == "c" { 30 } else { 0 });
    assert_eq!(bench.members("digits"), ["a", "b", "d"]);
    bench.looked_at(12..100, slow_on_b);
    assert_eq!(bench.job("digits").last_generation.0, 2);
    assert_eq!(bench.members("digits"), ["a", "b", "d"]);
    bench.connect("e");
    bench.looked_at(100..103, slow_on_b);
    assert_eq!(bench.members("digits"), ["a", "d", "e"]);
}
