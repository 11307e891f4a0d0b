use super::*;
use crate::health::{Channel, Severity};

const BOOT: &str = "boot-1";

fn at(seconds: u64) -> Moment {
    Moment {
        now: Timestamp(seconds * 1_000_000),
        unix_us: 1_000_000_000 + seconds * 1_000_000,
    }
}

fn judge() -> Judge {
    Judge::new(Table::standard(), BOOT, Memory::default())
}

fn gpu() -> Subject {
    Subject::Gpu("GPU-1".into())
}

fn reading(check: &'static str, value: Value) -> Reading {
    Reading {
        check,
        subject: gpu(),
        value,
        words: check.to_uppercase(),
        runs: Vec::new(),
    }
}

fn xid(code: u32, channel: Channel) -> Xid {
    Xid {
        pci: "0000:1b:00.0".into(),
        code,
        channel,
        fatal: None,
        detail: String::new(),
    }
}

fn checks(judge: &mut Judge, at: Moment) -> Vec<(String, Severity)> {
    judge
        .health(at.now)
        .findings
        .into_iter()
        .map(|finding| (finding.check, finding.severity))
        .collect()
}

#[test]
fn a_live_finding_is_there_as_long_as_it_is_seen() {
    let mut judge = judge();
    judge.look(
        Source::Gpus,
        &[reading("row-remap-pending", Value::Flag(true))],
        at(1),
    );
    judge.look(Source::Network, &[], at(2));
    let finding = judge.health(at(2).now).findings.remove(0);
    assert_eq!(
        (finding.severity, finding.reason.as_str()),
        (Severity::Drain, "ROW-REMAP-PENDING")
    );
    judge.look(
        Source::Gpus,
        &[reading("row-remap-pending", Value::Flag(true))],
        at(9),
    );
    assert_eq!(
        judge.health(at(9).now).findings[0].since_unix_us,
        at(1).unix_us,
        "since it was first seen"
    );
    judge.look(
        Source::Gpus,
        &[reading("row-remap-pending", Value::Flag(false))],
        at(10),
    );
    assert!(judge.health(at(10).now).findings.is_empty());
}

#[test]
fn what_a_look_no_longer_shows_is_over() {
    let mut judge = judge();
    judge.look(
        Source::Gpus,
        &[reading("recovery-reset", Value::Flag(true))],
        at(1),
    );
    judge.look(Source::Gpus, &[], at(2));
    assert!(
        judge.health(at(2).now).findings.is_empty(),
        "recovered, and back to value 0"
    );
}

#[test]
fn a_flag_must_be_sustained_where_the_rule_says_so() {
    let mut judge = judge();
    let hot = |judge: &mut Judge, second| {
        judge.look(
            Source::Gpus,
            &[reading("throttle", Value::Flag(true))],
            at(second),
        )
    };
    hot(&mut judge, 0);
    hot(&mut judge, 599);
    assert!(judge.health(at(599).now).findings.is_empty());
    judge.look(Source::Gpus, &[], at(599));
    hot(&mut judge, 600);
    assert!(
        judge.health(at(600).now).findings.is_empty(),
        "it had a break"
    );
    hot(&mut judge, 1_200);
    assert_eq!(
        checks(&mut judge, at(1_200)),
        [("throttle".into(), Severity::Warn)]
    );
}

#[test]
fn counters_count_from_the_baseline_of_this_boot() {
    let count = |judge: &mut Judge, value, second| {
        judge.look(
            Source::Counters,
            &[reading("ecc-uncorrectable", Value::Counter(value))],
            at(second),
        );
        checks(judge, at(second)).len()
    };
    let mut judge = judge();
    assert_eq!(
        count(&mut judge, 7, 1),
        0,
        "seven of before are nobody's fault today"
    );
    assert_eq!(count(&mut judge, 8, 2), 1);
    assert_eq!(count(&mut judge, 8, 3), 1, "and it stays");
    let mut restarted = Judge::new(Table::standard(), BOOT, judge.memory());
    assert_eq!(
        checks(&mut restarted, at(4)),
        [("ecc-uncorrectable".into(), Severity::FailNow)],
        "an agent's restart forgets nothing"
    );
    assert_eq!(count(&mut restarted, 9, 5), 1);
    assert_eq!(
        count(&mut restarted, 8, 6),
        0,
        "a counter that fell, if not below its baseline: the GPU was reset"
    );
    assert_eq!(count(&mut restarted, 8, 7), 0);
    let mut rebooted = Judge::new(Table::standard(), "boot-2", judge.memory());
    assert_eq!(checks(&mut rebooted, at(1)), [], "a reboot clears");
    assert_eq!(count(&mut rebooted, 3, 2), 0, "and is a new baseline");
}

#[test]
fn a_reset_is_seen_by_the_energy_that_begins_anew() {
    let look = |judge: &mut Judge, energy, second| {
        let energy = reading("energy", Value::SinceReset(energy));
        judge.look(Source::Counters, &[energy], at(second));
        checks(judge, at(second)).len()
    };
    let mut judge = judge();
    assert_eq!(look(&mut judge, 1_000_000, 1), 0);
    // A GSP timeout leaves no counter that a reset could clear.
    judge.xid(&xid(119, Channel::Event), &gpu(), at(2));
    assert_eq!(look(&mut judge, 1_100_000, 3), 1);
    let stored = judge.memory();
    assert_eq!(look(&mut judge, 1_200_000, 4), 1);
    assert_eq!(judge.memory(), stored, "small steps are not written");
    assert_eq!(look(&mut judge, 1_300_000, 5), 1);
    let mut restarted = Judge::new(Table::standard(), BOOT, judge.memory());
    assert_eq!(look(&mut restarted, 900_000, 6), 1);
    assert_eq!(
        look(&mut restarted, 910_000, 7),
        0,
        "reset without an agent"
    );
    assert_eq!(look(&mut judge, 0, 6), 1, "it may be a mistake");
    assert_eq!(look(&mut judge, 1_300_100, 7), 1, "and was one");
    assert_eq!(look(&mut judge, 1_299_000, 8), 1);
    assert_eq!(look(&mut judge, 1_299_100, 9), 0, "reset under the agent");
    judge.xid(&xid(119, Channel::Event), &gpu(), at(10));
    assert_eq!(
        look(&mut judge, 1_300_000, 11),
        1,
        "the next one counts again"
    );
}

#[test]
fn rates_are_of_their_window() {
    let mut judge = judge();
    let count = |judge: &mut Judge, value, second| {
        judge.look(
            Source::Counters,
            &[reading("pcie-replay", Value::Counter(value))],
            at(second),
        );
        checks(judge, at(second)).len()
    };
    assert_eq!(count(&mut judge, 0, 0), 0);
    for minute in 1..60 {
        assert_eq!(
            count(&mut judge, minute * 15, minute * 60),
            0,
            "15 a minute are allowed"
        );
    }
    assert_eq!(count(&mut judge, 59 * 15 + 16, 59 * 60 + 10), 1);
    assert_eq!(
        count(&mut judge, 59 * 15 + 16, 59 * 60 + 3_700),
        0,
        "held for an hour after the last"
    );
}

#[test]
fn the_same_xid_by_event_and_by_log_is_one() {
    let mut judge = judge();
    assert!(judge.xid(&xid(48, Channel::Event), &gpu(), at(1)));
    let told = judge.health(at(1).now);
    assert!(!judge.xid(&xid(48, Channel::Log), &gpu(), at(2)));
    assert_eq!(judge.health(at(2).now), told, "no news, no report");
    assert_eq!(
        (told.findings.len(), told.findings[0].severity),
        (1, Severity::FailNow)
    );
    assert_eq!(told.findings[0].reason, "XID 48 on 0000:1b:00.0");
}

#[test]
fn verdicts_of_xids() {
    for (code, severity, subject) in [
        (79, Severity::FailNow, Subject::Node),
        (48, Severity::FailNow, gpu()),
        (94, Severity::Note, gpu()),
        (31, Severity::Note, gpu()),
        (45, Severity::Note, gpu()),
        (154, Severity::Note, gpu()),
        (999, Severity::Drain, gpu()),
    ] {
        let mut judge = judge();
        judge.xid(&xid(code, Channel::Event), &gpu(), at(1));
        let finding = judge.health(at(1).now).findings.remove(0);
        assert_eq!(
            (finding.severity, finding.subject),
            (severity, subject),
            "XID {code}"
        );
        assert_eq!(finding.check, format!("xid:{code}"));
    }
}

#[test]
fn the_log_s_word_on_an_nvlink_error_takes_the_place_of_the_event_s() {
    let mut judge = judge();
    judge.xid(&xid(145, Channel::Event), &gpu(), at(1));
    assert_eq!(
        checks(&mut judge, at(1)),
        [("xid:145".into(), Severity::Drain)]
    );
    judge.xid(
        &Xid {
            fatal: Some(false),
            ..xid(145, Channel::Log)
        },
        &gpu(),
        at(1),
    );
    assert_eq!(
        checks(&mut judge, at(1)),
        [("xid:145:nonfatal".into(), Severity::Warn)]
    );
}

#[test]
fn grave_xids_again_and_again_are_a_matter_for_a_person() {
    let mut judge = judge();
    for burst in 0..4 {
        for drop in 0..20 {
            judge.xid(&xid(119, Channel::Event), &gpu(), at(burst * 3_600 + drop));
        }
    }
    assert_eq!(checks(&mut judge, at(4 * 3_600)).len(), 1);
    judge.xid(&xid(120, Channel::Event), &gpu(), at(4 * 3_600));
    let all = judge.health(at(4 * 3_600).now).findings;
    assert!(
        all.iter()
            .any(|f| f.check == "xid-repeated" && f.remedy == Remedy::Support),
        "{all:?}"
    );
}

#[test]
fn a_fault_of_an_application_is_forgotten_after_a_while() {
    let mut judge = judge();
    judge.xid(&xid(31, Channel::Event), &gpu(), at(0));
    assert_eq!(judge.next_due(), Some(at(3_600).now));
    assert_eq!(checks(&mut judge, at(3_600)), []);
}

#[test]
fn a_driver_loaded_anew_clears_what_a_reset_clears() {
    let mut judge = judge();
    judge.xid(&xid(48, Channel::Event), &gpu(), at(0));
    judge.xid(&xid(54, Channel::Event), &gpu(), at(0));
    judge.driver_reloaded();
    assert_eq!(
        checks(&mut judge, at(1)),
        [("xid:54".into(), Severity::FailNow)],
        "a power cable stays loose"
    );
}

#[test]
fn the_most_ever_seen_is_what_is_expected() {
    let mut judge = judge();
    assert_eq!(judge.most_seen("gpu", 8), 8);
    assert_eq!(judge.most_seen("gpu", 7), 8);
    let mut restarted = Judge::new(Table::standard(), BOOT, judge.memory());
    assert_eq!(restarted.most_seen("gpu", 7), 8);
}

#[test]
fn the_worst_comes_first_and_unknown_checks_mean_nothing() {
    let mut judge = judge();
    let readings = [
        reading("persistence-off", Value::Flag(true)),
        reading("row-remap-failure", Value::Flag(true)),
        reading("no-such-check", Value::Flag(true)),
        reading("row-remap-many", Value::Level(512)),
    ];
    judge.look(Source::Inventory, &readings, at(1));
    let names: Vec<String> = checks(&mut judge, at(1))
        .into_iter()
        .map(|(check, _)| check)
        .collect();
    assert_eq!(
        names,
        ["row-remap-failure", "persistence-off", "row-remap-many"]
    );
    assert_eq!(
        judge.health(at(1).now).findings[2].reason,
        "ROW-REMAP-MANY: 512, above 511"
    );
}

#[test]
fn a_program_s_fault_is_the_gpu_s_when_different_jobs_have_it_there_alone() {
    let other = Subject::Gpu("GPU-2".into());
    let suspects = |judge: &mut Judge, second| {
        let suspected = judge
            .health(at(second).now)
            .findings
            .into_iter()
            .filter(|f| f.check == "xid-app-repeated");
        suspected
            .map(|f| (f.subject, f.severity))
            .collect::<Vec<_>>()
    };
    let mut judge = judge();
    for second in 0..50 {
        judge.fault_of_job(31, &gpu(), "default/a", at(second * 60));
    }
    assert_eq!(
        suspects(&mut judge, 3_000),
        [],
        "a bug comes back with its job"
    );
    judge.fault_of_job(31, &other, "default/b", at(3_001));
    judge.fault_of_job(48, &gpu(), "default/c", at(3_002));
    assert_eq!(
        suspects(&mut judge, 3_003),
        [],
        "another GPU, and a code that no program causes"
    );
    judge.fault_of_job(13, &gpu(), "default/d", at(3_004));
    assert_eq!(suspects(&mut judge, 3_005), [(gpu(), Severity::Warn)]);
    judge.fault_of_job(13, &other, "default/d", at(3_006));
    assert_eq!(
        suspects(&mut judge, 3_007),
        [],
        "the second job's bug is everywhere it runs"
    );
    let day = 24 * 3_600;
    judge.fault_of_job(31, &gpu(), "default/e", at(day + 2_941));
    assert_eq!(
        suspects(&mut judge, day + 2_941),
        [],
        "what the first had is a day ago"
    );
}

#[test]
fn a_clock_that_nobody_sets_is_told_when_it_lasts() {
    let mut judge = judge();
    let look = |judge: &mut Judge, second| {
        let reading = Reading {
            subject: Subject::Node,
            ..reading("clock-unsynchronised", Value::Flag(true))
        };
        judge.look(Source::Node, &[reading], at(second));
        checks(judge, at(second))
    };
    assert_eq!(look(&mut judge, 0), []);
    assert_eq!(look(&mut judge, 599), [], "chrony has just been started");
    assert_eq!(
        look(&mut judge, 600),
        [("clock-unsynchronised".into(), Severity::Warn)]
    );
}

#[test]
fn memory_of_an_idle_gpu_withholds_it_when_it_is_seen_again_and_again() {
    let mut judge = judge();
    let look = |judge: &mut Judge, mib: u64, second| {
        judge.look(
            Source::Inventory,
            &[reading("memory-held", Value::Level(mib))],
            at(second),
        );
        checks(judge, at(second))
    };
    assert_eq!(look(&mut judge, 700, 0), []);
    assert_eq!(
        look(&mut judge, 700, 60),
        [],
        "what a process that ended in this moment had"
    );
    assert_eq!(
        look(&mut judge, 700, 120),
        [("memory-held".into(), Severity::Drain)]
    );
    assert_eq!(look(&mut judge, 15, 180), []);
}

#[test]
fn each_counter_of_a_port_and_of_memory_has_its_own_measure() {
    let looks = |check: &'static str, per_look: u64| {
        let mut judge = judge();
        for look in 0..5 {
            judge.look(
                Source::NicCounters,
                &[reading(check, Value::Counter(look * per_look))],
                at(look * 15),
            );
        }
        checks(&mut judge, at(60))
            .into_iter()
            .map(|(_, severity)| severity)
            .collect::<Vec<_>>()
    };
    // 15 seconds: the allowed number of errors, and one more. If none is allowed, one is too many.
    for (check, allowed, severity) in [
        ("port-buffer-overruns", 0, Severity::Drain),
        ("port-integrity-errors", 0, Severity::Drain),
        ("port-retries-exhausted", 0, Severity::Warn),
        ("port-symbol-errors", 30, Severity::Drain),
        ("port-symbol-burst", 150, Severity::Warn),
        ("port-receive-errors", 150, Severity::Warn),
        ("port-ack-timeouts", 15, Severity::Warn),
        ("port-discards", 1_500, Severity::Warn),
        ("port-slow-restarts", 150, Severity::Warn),
        ("dram-corrected-many", 5_000_000, Severity::Warn),
        ("sram-corrected-many", 2_500, Severity::Warn),
    ] {
        assert_eq!(looks(check, allowed), [], "{check}: {allowed} a look");
        assert_eq!(
            looks(check, allowed + 1),
            [severity],
            "{check}: {} a look",
            allowed + 1
        );
    }
    // The window is a minute, which is four looks.
    assert_eq!(looks("port-link-recoveries", 1), []);
    assert_eq!(looks("port-link-recoveries", 2), [Severity::Warn]);
}

#[test]
fn a_worker_that_cannot_be_killed_withholds_its_node_until_it_is_gone() {
    let mut judge = judge();
    let reading = Reading {
        subject: Subject::Node,
        ..reading("worker-unkillable", Value::Flag(true))
    };
    judge.look(Source::Runs, &[reading], at(1));
    let health = judge.health(at(1).now);
    let found = health.withholds_node().unwrap();
    assert_eq!(
        (found.severity, found.remedy),
        (Severity::Drain, Remedy::NodeReboot)
    );
    judge.look(Source::Runs, &[], at(2));
    assert_eq!(checks(&mut judge, at(2)), []);
}
