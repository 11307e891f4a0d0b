//! What a node's verdict on its hardware does to jobs.

use super::*;
use crate::{
    health::{Finding, Health, Remedy, Severity, Subject, TERMINATION_NOTICE, WORKER_UNKILLABLE},
    node_report::Gpu,
    spec::RuleDocument,
};

/// The node reports two GPUs, and these findings.
fn reports(bench: &mut Bench, node: &str, findings: &[(Subject, Severity)]) {
    let found = |(subject, severity): &(Subject, Severity)| Finding {
        severity: *severity,
        ..finding(subject.clone())
    };
    tells(bench, node, findings.iter().map(found).collect());
}

fn finding(subject: Subject) -> Finding {
    Finding {
        check: "xid:48".into(),
        subject,
        severity: Severity::Drain,
        remedy: Remedy::GpuReset,
        reason: "XID 48".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    }
}

fn tells(bench: &mut Bench, node: &str, findings: Vec<Finding>) {
    let session = bench.agents[&node.into()].session.unwrap();
    let report = report(node, findings);
    bench.input(Input::Report { session, report });
    bench.obey();
}

fn report(node: &str, findings: Vec<Finding>) -> NodeReport {
    let gpu = |index: u32| Gpu {
        uuid: format!("{node}-{index}"),
        index,
        model: "H100".into(),
        ..Gpu::default()
    };
    NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        gpus: vec![gpu(0), gpu(1)],
        health: Health { findings },
        ..NodeReport::default()
    }
}

fn with_gpus(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(nodes);
    nodes.iter().for_each(|node| reports(&mut bench, node, &[]));
    bench
}

fn spec(min: i64, replicas: i64, gpus: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(gpus),
        proc_per_node: Some(1),
        ..document(min, replicas, replicas)
    }
}

fn gpu(uuid: &str) -> Subject {
    Subject::Gpu(uuid.into())
}

fn given(bench: &Bench, job: &str) -> Vec<String> {
    bench
        .job(job)
        .current
        .as_ref()
        .unwrap()
        .members
        .iter()
        .flat_map(|member| member.gpus.clone())
        .collect()
}

#[test]
fn a_gpu_that_fails_is_left_at_once_and_its_node_pays() {
    let mut bench = with_gpus(&["a", "b", "c"]);
    bench.submit("digits", spec(2, 2, 1));
    assert_eq!(given(&bench, "digits"), ["a-0", "b-0"]);
    reports(&mut bench, "b", &[(gpu("b-0"), Severity::FailNow)]);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.last_generation.0, job.phase),
        (2, Phase::Running),
        "{}",
        job.message
    );
    assert_eq!(
        given(&bench, "digits"),
        ["a-0", "b-1"],
        "the node's other GPU is well"
    );
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::NodeUnhealthy, Charged::Node)
    );
    assert!(
        incident.message.contains("xid:48: XID 48"),
        "{}",
        incident.message
    );
}

#[test]
fn a_stored_report_ends_nothing_before_its_node_is_heard() {
    let mut bench = with_gpus(&["a", "b", "c"]);
    bench.submit("digits", spec(2, 2, 1));
    let failed = Finding {
        severity: Severity::FailNow,
        ..finding(gpu("b-0"))
    };
    bench.restart_coordinator_with(vec![("b".into(), report("b", vec![failed.clone()]))]);
    for node in ["a", "c"] {
        bench.connect(node);
        tells(&mut bench, node, Vec::new());
    }
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert!(job.current.is_some(), "{}", job.message);
    bench.connect("b");
    tells(&mut bench, "b", vec![failed]);
    bench.pass(SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        2,
        "its own word counts"
    );
}

#[test]
fn a_user_who_scales_a_job_does_not_wait_for_the_cool_down_beside_an_ailing_gpu() {
    let mut bench = with_gpus(&["a", "b", "c"]);
    let spec = SpecDocument {
        max_replicas: Some(3),
        ..spec(2, 2, 1)
    };
    bench.submit("digits", spec);
    reports(&mut bench, "b", &[(gpu("b-0"), Severity::Drain)]);
    assert_eq!(bench.job("digits").last_generation.0, 1, "the cool-down");
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes: 3 });
    let job = bench.job("digits");
    assert_eq!(job.last_generation.0, 2, "{}", job.message);
    assert_eq!(given(&bench, "digits"), ["a-0", "b-1", "c-0"]);
}

#[test]
fn a_gpu_nobody_uses_and_a_warning_move_nothing() {
    let mut bench = with_gpus(&["a", "b"]);
    bench.submit("digits", spec(2, 2, 1));
    reports(
        &mut bench,
        "b",
        &[
            (gpu("b-1"), Severity::FailNow),
            (gpu("b-0"), Severity::Warn),
        ],
    );
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 1);
}

#[test]
fn an_unhealthy_gpu_is_never_placed_on_until_it_is_well() {
    let mut bench = with_gpus(&["a"]);
    reports(&mut bench, "a", &[(gpu("a-0"), Severity::Drain)]);
    bench.submit("digits", spec(1, 1, 2));
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Pending, Reason::BelowMinimum)
    );
    assert!(job.message.contains("1 of 2 GPUs free"), "{}", job.message);
    reports(&mut bench, "a", &[]);
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Running);
}

#[test]
fn nothing_is_placed_on_a_node_that_is_unhealthy_as_a_whole_and_the_job_says_why() {
    let mut bench = with_gpus(&["a"]);
    reports(
        &mut bench,
        "a",
        &[(Subject::Nic("mlx5_2".into()), Severity::Drain)],
    );
    bench.submit("digits", spec(1, 1, 1));
    assert!(
        bench
            .job("digits")
            .message
            .contains("a unhealthy (xid:48: XID 48)"),
        "{}",
        bench.job("digits").message
    );
}

#[test]
fn a_node_that_drains_is_left_after_the_cool_down_and_only_for_as_much_room() {
    let mut bench = with_gpus(&["a", "b"]);
    bench.submit("digits", spec(2, 2, 2));
    reports(&mut bench, "b", &[(gpu("b-0"), Severity::Drain)]);
    bench.pass(20 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "there is nothing better to go to"
    );
    bench.connect("c");
    reports(&mut bench, "c", &[]);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.last_generation.0, job.restarts.len()),
        (2, 0),
        "{}",
        job.message
    );
    assert_eq!(bench.members("digits"), ["a", "c"]);
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeUnhealthy);
}

#[test]
fn a_machine_that_will_be_taken_away_is_left_at_once_with_the_stop_grace() {
    let mut bench = with_gpus(&["a", "b", "c"]);
    bench.submit("digits", spec(2, 3, 2));
    bench.pass(SECOND);
    let notice = |bench: &mut Bench, node: &str| {
        let found = Finding {
            check: TERMINATION_NOTICE.into(),
            reason: "spot interruption at 10:02".into(),
            ..finding(Subject::Node)
        };
        tells(bench, node, vec![found]);
    };
    let made_less = Finding {
        check: TERMINATION_NOTICE.into(),
        severity: Severity::Warn,
        ..finding(Subject::Node)
    };
    tells(&mut bench, "b", vec![made_less]);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "an operator's rules may make less of it"
    );
    notice(&mut bench, "b");
    let job = bench.job("digits");
    let (cause, message) = job
        .incidents
        .last()
        .map(|incident| (incident.cause, incident.message.clone()))
        .unwrap();
    assert_eq!(
        (cause, message.as_str()),
        (Cause::NodeLeaving, "leaving b: spot interruption at 10:02")
    );
    assert_eq!(
        (bench.members("digits"), job.restarts.len()),
        (vec!["a", "c"], 0),
        "no cool-down, and it goes on with fewer"
    );
    let told = bench
        .events
        .iter()
        .find(|event| event.reason == "Resizing")
        .unwrap();
    assert!(told.message.starts_with("leaving b"), "{}", told.message);
    // Below the minimum the job has nowhere to go. Whatever still trains is left alone until
    // another node comes.
    notice(&mut bench, "c");
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a", "c"]);
    bench.connect("d");
    reports(&mut bench, "d", &[]);
    bench.pass(SECOND);
    assert_eq!(
        (bench.members("digits"), bench.job("digits").phase),
        (vec!["a", "d"], Phase::Running)
    );
    assert!(
        bench
            .stored_nodes
            .values()
            .all(|node| node.marks.is_empty()),
        "nobody is to blame"
    );
}

#[test]
fn what_keeps_work_away_is_told_once_and_its_end_too() {
    let mut bench = with_gpus(&["a"]);
    let said = |bench: &Bench| {
        let of_health = bench
            .events
            .iter()
            .filter(|event| event.reason.ends_with("ealthy"));
        of_health
            .map(|event| event.message.clone())
            .collect::<Vec<_>>()
    };
    reports(&mut bench, "a", &[(gpu("a-0"), Severity::Warn)]);
    assert!(said(&bench).is_empty(), "a warning keeps nothing away");
    let both = [
        (gpu("a-0"), Severity::FailNow),
        (gpu("a-1"), Severity::Drain),
    ];
    reports(&mut bench, "a", &both);
    reports(&mut bench, "a", &both);
    bench.cut("a");
    bench.connect("a");
    reports(&mut bench, "a", &[]);
    let news = "a: xid:48 (fail_now): XID 48; and 1 more";
    assert_eq!(
        said(&bench),
        [
            news,
            "a: nothing keeps work away from its hardware any more"
        ]
    );
}

#[test]
fn a_job_that_waits_for_what_nothing_kills_says_so() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 2, 2));
    let b = bench.agents.get_mut(&"b".into()).unwrap();
    b.frozen = true;
    let session = b.session.unwrap();
    bench.rank_exits("digits", 0, Exit::Signal(11), None);
    for _ in 0..10 {
        bench.pass(SECOND);
        bench.input(Input::Heartbeat { session });
    }
    let job = bench.job("digits");
    assert_eq!(
        (job.reason, job.message.as_str()),
        (Reason::Preparing, "1 of 2 nodes not ready yet: b")
    );

    let run = format!("{}-g1", bench.job("digits").uid);
    let stuck = |run: &str| Finding {
        check: WORKER_UNKILLABLE.into(),
        reason: format!("process 4242 of {run} cannot be killed"),
        ..finding(Subject::Node)
    };
    for other in ["another-g1", &format!("{run}2"), &format!("x-{run}")] {
        tells(&mut bench, "b", vec![stuck(other)]);
        bench.pass(SECOND);
        assert_eq!(
            bench.job("digits").reason,
            Reason::Preparing,
            "{other} is not what it waits for"
        );
    }
    // An agent that names runs is taken at its word, whatever its sentence looks like.
    let uid = bench.job("digits").uid.clone();
    let id = |generation| RunId {
        job: uid.clone(),
        generation: Generation(generation),
    };
    let typed = |reason: &str, runs: Vec<RunId>| Finding {
        runs,
        ..stuck(reason)
    };
    tells(&mut bench, "b", vec![typed(&run, vec![id(9)])]);
    bench.pass(SECOND);
    assert_eq!(
        bench.job("digits").reason,
        Reason::Preparing,
        "another generation is meant"
    );
    tells(&mut bench, "b", vec![typed("one", vec![id(9), id(1)])]);
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").reason, Reason::Stopping);
    tells(&mut bench, "b", Vec::new());
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").reason, Reason::Preparing);

    // An older agent names them only in the sentence.
    tells(&mut bench, "b", vec![stuck(&run)]);
    bench.pass(SECOND);
    let told = format!(
        "the workers on b are not dead, and it needs a reboot: process 4242 of {run} cannot be killed"
    );
    assert_eq!(
        (
            bench.job("digits").reason,
            bench.job("digits").message.as_str()
        ),
        (Reason::Stopping, told.as_str())
    );

    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    bench.request(Request::Cancel { name });
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").message.as_str()
        ),
        (Phase::Stopping, told.as_str())
    );
}

/// The agents' pods are deleted just after a job began. Their notices come later than the refusals.
#[test]
fn nobody_pays_for_a_start_in_a_container_that_goes() {
    for said in [
        "the workers' container was told to end",
        "the workers' container does not answer: Connection refused (os error 111)",
    ] {
        let mut bench = Bench::new(&["a", "b"]);
        for name in ["a", "b"] {
            bench.agents.get_mut(&name.into()).unwrap().frozen = true;
        }
        bench.submit("digits", document(2, 2, 2));
        let job = bench.job("digits");
        let run = job.current.as_ref().unwrap().run(&job.uid);
        for name in ["a", "b"] {
            let agent = bench.agents.get_mut(&name.into()).unwrap();
            agent.frozen = false;
            let refused = RunReport {
                phase: RunPhase::Refused(said.into()),
                ..RunReport::preparing(run.clone(), Term(1))
            };
            agent.runs.insert(run.clone(), refused.clone());
            let session = agent.session.unwrap();
            bench.input(Input::Runs {
                session,
                runs: vec![refused],
            });
        }
        bench.pass(SECOND);
        let incidents = &bench.job("digits").incidents;
        let broke = incidents
            .iter()
            .find(|one| one.from == Some(Generation(1)))
            .unwrap();
        assert_eq!(
            (broke.cause, broke.charged),
            (Cause::NodeLeaving, Charged::Nobody),
            "{}",
            broke.message
        );
    }
}

/// A rule about lost nodes is asked of a node that the job leaves in time, as of one that it loses.
#[test]
fn a_rule_about_lost_nodes_decides_about_a_move_as_well() {
    for (rule, ends) in [("nodeLost: fail", true), ("nodeLost: restart", false)] {
        let mut bench = with_gpus(&["a", "b", "c"]);
        let ruled = SpecDocument {
            rules: vec![RuleDocument::read(rule).unwrap()],
            ..spec(2, 2, 1)
        };
        bench.submit("digits", ruled);
        bench.pass(400 * SECOND);
        reports(&mut bench, "b", &[(gpu("b-0"), Severity::Drain)]);
        bench.pass(SECOND);
        let job = bench.job("digits");
        let named = format!("rule 1 ({rule})");
        if ends {
            assert_eq!(job.reason, Reason::FailedByRule, "{}", job.message);
            assert!(job.message.ends_with(&named), "{}", job.message);
            continue;
        }
        assert_eq!(job.phase, Phase::Running, "{}", job.message);
        assert_eq!(given(&bench, "digits"), ["a-0", "b-1"]);
        let rule = job.incidents.last().unwrap().rule.as_deref();
        assert_eq!(rule, Some(&*named));
    }
}
