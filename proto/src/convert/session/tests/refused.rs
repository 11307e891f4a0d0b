//! One wrong message per bound.

use muster_core::node_report::holders::HOLDERS_MAX;

use super::*;

fn good_run() -> v1::RunReport {
    let run = RunId {
        job: JobUid::from("0a"),
        generation: Generation(1),
    };
    runs_to_wire(&[RunReport::preparing(run, Term(1))], None, NOW)
        .runs
        .remove(0)
}

fn holders(count: usize) -> v1::GpuHolders {
    let holder = |i: usize| v1::GpuHolder {
        gpu: "GPU-0".into(),
        namespace: "team-a".into(),
        pod: format!("pod-{i}"),
    };
    v1::GpuHolders {
        known: true,
        holders: (0..count).map(holder).collect(),
    }
}

fn good_rank() -> v1::RankReport {
    v1::RankReport {
        rank: 3,
        ..Default::default()
    }
}

#[test]
fn every_wrong_run_report_is_refused_by_field() {
    let cases: Vec<(v1::RunReport, &str)> = vec![
        (
            v1::RunReport {
                job_uid: String::new(),
                ..good_run()
            },
            "runs[0].job_uid: is empty",
        ),
        (
            v1::RunReport {
                job_uid: "../x".into(),
                ..good_run()
            },
            "runs[0].job_uid: has '.': only letters, digits and '-' are allowed",
        ),
        (
            v1::RunReport {
                generation: 0,
                ..good_run()
            },
            "runs[0].generation: is 0, the first is 1",
        ),
        (
            v1::RunReport {
                phase: 0,
                ..good_run()
            },
            "runs[0].phase: 0 is not a phase",
        ),
        (
            v1::RunReport {
                phase: 99,
                ..good_run()
            },
            "runs[0].phase: 99 is not a phase",
        ),
        (
            v1::RunReport {
                refused: "a\0".into(),
                ..good_run()
            },
            "runs[0].refused: has a NUL byte",
        ),
        (
            v1::RunReport {
                store: Some(v1::Endpoint {
                    host: "h".into(),
                    port: 70_000,
                }),
                ..good_run()
            },
            "runs[0].store.port: 70000 is not a port",
        ),
        (
            v1::RunReport {
                store: Some(v1::Endpoint {
                    host: String::new(),
                    port: 7,
                }),
                ..good_run()
            },
            "runs[0].store.host: is empty",
        ),
        (
            v1::RunReport {
                launcher_exit: Some(v1::Exit { how: None }),
                ..good_run()
            },
            "runs[0].launcher_exit: has neither a code nor a signal",
        ),
        (
            v1::RunReport {
                ranks: vec![good_rank(); 257],
                ..good_run()
            },
            "runs[0].ranks: has 257 items, at most 256 are allowed",
        ),
        (
            v1::RunReport {
                ranks: vec![good_rank(); 2],
                ..good_run()
            },
            "runs[0].ranks[1]: rank 3 is listed before",
        ),
        (
            v1::RunReport {
                ranks: vec![v1::RankReport {
                    tail: vec![String::new(); 65],
                    ..good_rank()
                }],
                ..good_run()
            },
            "runs[0].ranks[0].tail: has 65 items, at most 64 are allowed",
        ),
        (
            v1::RunReport {
                leftovers: vec![v1::Leftover::default(); 17],
                ..good_run()
            },
            "runs[0].leftovers: has 17 items, at most 16 are allowed",
        ),
        (
            v1::RunReport {
                leftovers: vec![v1::Leftover {
                    program: "p".repeat(257),
                    ..v1::Leftover::default()
                }],
                ..good_run()
            },
            "runs[0].leftovers[0].program: is 257 bytes long, at most 256 are allowed",
        ),
        (
            v1::RunReport {
                ranks: vec![v1::RankReport {
                    killed_after_ms: Some(u64::MAX),
                    ..good_rank()
                }],
                ..good_run()
            },
            "runs[0].ranks[0].killed_after_ms: is 18446744073709551615, longer than 30 days",
        ),
        (
            v1::RunReport {
                ranks: vec![v1::RankReport {
                    step_format: "f".repeat(257),
                    ..good_rank()
                }],
                ..good_run()
            },
            "runs[0].ranks[0].step_format: is 257 bytes long, at most 256 are allowed",
        ),
        (
            v1::RunReport {
                ranks: vec![v1::RankReport {
                    exit: Some(v1::Exit {
                        how: Some(v1::exit::How::Signal(0)),
                    }),
                    ..good_rank()
                }],
                ..good_run()
            },
            "runs[0].ranks[0].exit.signal: 0 is not a signal",
        ),
    ];
    for (wire, error) in cases {
        assert_eq!(
            runs_from_wire(v1::RunReports { runs: vec![wire] }, NOW)
                .unwrap_err()
                .to_string(),
            error
        );
    }
    let twice = v1::RunReports {
        runs: vec![good_run(), good_run()],
    };
    assert_eq!(
        runs_from_wire(twice, NOW).unwrap_err().to_string(),
        "runs[1]: names a run that is listed before"
    );
    let many = v1::RunReports {
        runs: vec![good_run(); 65],
    };
    assert_eq!(
        runs_from_wire(many, NOW).unwrap_err().to_string(),
        "runs: has 65 items, at most 64 are allowed"
    );
}

pub(super) fn good_hello() -> v1::Hello {
    let report = v1::NodeReport {
        address: "127.0.0.1".into(),
        ..Default::default()
    };
    v1::Hello {
        protocol: protocol::NEWEST,
        node: "n1".into(),
        boot_id: "b".into(),
        report: Some(report),
        runs: Some(v1::RunReports::default()),
        ..Default::default()
    }
}

#[test]
fn every_wrong_hello_is_refused_by_field() {
    assert!(hello_from_wire(good_hello(), NOW).is_ok());
    let report = |change: fn(&mut v1::NodeReport)| {
        let mut hello = good_hello();
        change(hello.report.as_mut().unwrap());
        hello
    };
    let cases = [
        (
            v1::Hello {
                protocol: 0,
                ..good_hello()
            },
            "hello.protocol: is 0, the first version is 1",
        ),
        (
            v1::Hello {
                protocol_oldest: 9,
                ..good_hello()
            },
            "hello.protocol_oldest: is 9, and the newest is 5",
        ),
        (
            v1::Hello {
                node: "Node".into(),
                ..good_hello()
            },
            "hello.node: \"Node\" has 'N': only lower-case letters, digits and '-' are allowed",
        ),
        (
            v1::Hello {
                boot_id: String::new(),
                ..good_hello()
            },
            "hello.boot_id: is empty",
        ),
        (
            v1::Hello {
                report: None,
                ..good_hello()
            },
            "hello.report: is missing",
        ),
        (
            v1::Hello {
                jobs_seen: (0..1_001)
                    .map(|i| (format!("{i}"), v1::Obeyed::default()))
                    .collect(),
                ..good_hello()
            },
            "hello.jobs_seen: has 1001 items, at most 1000 are allowed",
        ),
        (
            v1::Hello {
                jobs_seen: [("0a".to_owned(), v1::Obeyed::default())].into(),
                ..good_hello()
            },
            "hello.jobs_seen.generation: is 0, the first is 1",
        ),
        (
            v1::Hello {
                epoch_seen: u64::MAX,
                ..good_hello()
            },
            "hello.epoch_seen: is 18446744073709551615: nobody has given out so many",
        ),
        (
            v1::Hello {
                runs: None,
                ..good_hello()
            },
            "hello.runs: is missing",
        ),
        (
            report(|r| r.address = "node-2".into()),
            "report.address: \"node-2\": invalid IP address syntax",
        ),
        (
            report(|r| {
                r.labels = (0..1_001)
                    .map(|i| (format!("k{i}"), String::new()))
                    .collect()
            }),
            "report.labels: has 1001 items, at most 1000 are allowed",
        ),
        (
            report(|r| r.gpus = vec![v1::Gpu::default()]),
            "report.gpus[0].uuid: is empty",
        ),
        (
            report(|r| r.gpu_holders = Some(holders(HOLDERS_MAX + 1))),
            "report.gpu_holders.holders: has 513 items, at most 512 are allowed",
        ),
        (
            report(|r| {
                r.gpu_holders = Some(holders(1));
                r.gpu_holders.as_mut().unwrap().holders[0].pod.clear();
            }),
            "report.gpu_holders.holders[0].pod: is empty",
        ),
        (
            report(|r| r.hostname = "h".repeat(257)),
            "report.hostname: is 257 bytes long, at most 256 are allowed",
        ),
    ];
    for (wire, error) in cases {
        assert_eq!(hello_from_wire(wire, NOW).unwrap_err().to_string(), error);
    }
}

#[test]
fn every_wrong_assignment_is_refused_by_field() {
    let good = || v1::Assignment {
        namespace: "default".into(),
        name: "digits".into(),
        rendezvous: "r".into(),
        node_count: 2,
        proc_per_node: 2,
        world_size: 4,
        store_host: "n1".into(),
        launch: "cold".into(),
        ..Default::default()
    };
    let read = |assignment: v1::Assignment| {
        let target = Some(desired_run::Target::Ready(assignment));
        let run = v1::DesiredRun {
            job_uid: "0a".into(),
            generation: 1,
            target,
        };
        desired_from_wire(v1::Desired {
            runs: vec![run],
            ..Default::default()
        })
    };
    assert!(read(good()).is_ok());
    let env = BTreeMap::from([("A=B".to_owned(), String::new())]);
    let cases = [
        (
            v1::Assignment {
                name: String::new(),
                ..good()
            },
            "name: must not be empty",
        ),
        (
            v1::Assignment {
                node_count: 0,
                ..good()
            },
            "node_count: is 0, must be between 1 and 4096",
        ),
        (
            v1::Assignment {
                node_rank: 2,
                ..good()
            },
            "node_rank: is 2, must be between 0 and 1",
        ),
        (
            v1::Assignment {
                proc_per_node: 257,
                ..good()
            },
            "proc_per_node: is 257, must be between 1 and 256",
        ),
        (
            v1::Assignment {
                first_rank: 3,
                ..good()
            },
            "first_rank: is 3, must be between 0 and 2",
        ),
        (
            v1::Assignment {
                world_size: 1,
                ..good()
            },
            "world_size: is 1, must be between 2 and 1048576",
        ),
        (
            v1::Assignment {
                rendezvous: String::new(),
                ..good()
            },
            "rendezvous: is empty",
        ),
        (
            v1::Assignment { env, ..good() },
            "env: \"A=B\" is not a variable the system takes",
        ),
        (
            v1::Assignment {
                launch: "warp".into(),
                ..good()
            },
            "launch: \"warp\" is not a lane this agent knows",
        ),
        (
            v1::Assignment {
                profile: Some(v1::Profile::default()),
                ..good()
            },
            "profile.hash: is empty",
        ),
        (
            v1::Assignment {
                stop_grace_ms: u64::MAX,
                ..good()
            },
            "stop_grace_ms: is 18446744073709551615, longer than 30 days",
        ),
        (
            v1::Assignment {
                fence_after_ms: u64::MAX,
                ..good()
            },
            "fence_after_ms: is 18446744073709551615, longer than 30 days",
        ),
    ];
    for (wire, error) in cases {
        assert_eq!(
            read(wire).unwrap_err().to_string(),
            format!("desired.runs[0].ready.{error}")
        );
    }
    let newer = v1::Profile {
        transport: "warp".into(),
        hash: "1".into(),
        ..Default::default()
    };
    assert!(
        read(v1::Assignment {
            profile: Some(newer),
            ..good()
        })
        .is_ok(),
        "the run is refused by its hash, not the session"
    );
    let run = v1::DesiredRun {
        job_uid: "0a".into(),
        generation: 1,
        target: None,
    };
    let labels = [("zone".to_owned(), "a".repeat(64))].into();
    let long = desired_from_wire(v1::Desired {
        labels,
        ..Default::default()
    })
    .unwrap_err();
    assert_eq!(
        long.to_string(),
        "desired.labels[\"zone\"]: the value is 64 bytes long, at most 63 are allowed"
    );
    let warm = v1::Warm {
        job_uid: "0a".into(),
        generation: 2,
        assignment: Some(good()),
    };
    let asked = |warm: Vec<v1::Warm>| {
        desired_from_wire(v1::Desired {
            warm,
            ..Default::default()
        })
    };
    assert_eq!(
        asked(vec![warm.clone()]).unwrap().prewarm[0].run.generation,
        Generation(2)
    );
    let cases = [
        (
            vec![v1::Warm {
                assignment: None,
                ..warm.clone()
            }],
            "desired.warm[0].assignment: is missing",
        ),
        (
            vec![
                warm.clone(),
                v1::Warm {
                    generation: 3,
                    ..warm.clone()
                },
            ],
            "desired.warm[1]: names a job that is listed before",
        ),
        (
            vec![warm; 65],
            "desired.warm: has 65 items, at most 64 are allowed",
        ),
    ];
    for (wire, error) in cases {
        assert_eq!(asked(wire).unwrap_err().to_string(), error);
    }
    let launcher = |job: &str, state| v1::Launcher {
        job_uid: job.into(),
        state,
    };
    let cases = [
        (vec![launcher("", None)], "launchers[0].job_uid: is empty"),
        (
            vec![launcher("a", Some(State::Ready(v1::Ready {}))); 2],
            "launchers[1].job_uid: is listed before",
        ),
        (
            vec![launcher("a", Some(State::Refused(String::new())))],
            "launchers[0].refused: is empty",
        ),
    ];
    for (launchers, error) in cases {
        assert_eq!(
            launchers_from_wire(v1::Launchers { launchers })
                .unwrap_err()
                .to_string(),
            error
        );
    }
    let long = LauncherReport {
        job: JobUid::from("a"),
        state: LauncherState::Refused(format!("\0{}", "ä".repeat(3_000))),
    };
    assert!(
        launchers_from_wire(launchers_to_wire(&[long])).is_ok(),
        "whatever a reason is made of"
    );
    let newer = launchers_from_wire(v1::Launchers {
        launchers: vec![launcher("a", None)],
    });
    assert_eq!(
        newer,
        Ok(Vec::new()),
        "what a newer agent says of it is waited for"
    );
    let none = v1::Desired {
        runs: vec![run],
        ..Default::default()
    };
    assert_eq!(
        desired_from_wire(none).unwrap_err().to_string(),
        "desired.runs[0].target: is missing"
    );
}
