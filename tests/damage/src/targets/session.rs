//! The agent session in both directions. An accepted message survives the way over the wire
//! unchanged.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    exit::Exit,
    hello::Hello,
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, Term},
    layout::{Layout, RoleShare},
    nccl::{profile::Profile, stack::Stack},
    node_report::{NodeReport, labels::Labels},
    protocol::Speaks,
    run::{
        Assignment, Desired, DesiredRun, Endpoint, LauncherReport, LauncherState, Obeyed, RunId,
        RunPhase, RunReport, Target,
    },
    spec::{Framework, Launch, Standbys},
    stacks,
    time::Timestamp,
};
use muster_proto::{
    convert::{
        session::{
            Welcome, desired_from_wire, desired_to_wire, hello_from_wire, hello_to_wire,
            launchers_from_wire, launchers_to_wire, node_report_from_wire, node_report_to_wire,
            runs_from_wire, runs_to_wire, welcome_from_wire, welcome_to_wire,
        },
        stacks::{located_from_wire, located_to_wire},
        usage::{usage_from_wire, usage_to_wire},
    },
    v1::{
        AgentMessage, CoordinatorMessage, agent_message::Message as Up,
        coordinator_message::Message as Down,
    },
};
use prost::Message;

/// On both ends ages are relative to this moment.
const NOW: Timestamp = Timestamp(1 << 50);

pub(super) fn agent_message(input: &[u8]) {
    let Ok(AgentMessage {
        message: Some(message),
    }) = AgentMessage::decode(input)
    else {
        return;
    };
    match message {
        Up::Hello(wire) => {
            if let Ok(hello) = hello_from_wire(wire, NOW) {
                let again = hello_from_wire(hello_to_wire(&hello, NOW), NOW)
                    .expect("an accepted hello is accepted again");
                assert_eq!(format!("{again:?}"), format!("{hello:?}"));
            }
        }
        Up::Report(wire) => {
            if let Ok(report) = node_report_from_wire(wire) {
                let again = node_report_from_wire(node_report_to_wire(&report));
                assert_eq!(again.expect("an accepted report is accepted again"), report);
            }
        }
        Up::Runs(wire) => {
            if let Ok(runs) = runs_from_wire(wire, NOW) {
                assert_eq!(
                    runs_from_wire(runs_to_wire(&runs, None, NOW), NOW)
                        .expect("accepted runs are accepted again"),
                    runs
                );
            }
        }
        Up::Launchers(wire) => {
            if let Ok(launchers) = launchers_from_wire(wire) {
                assert_eq!(
                    launchers_from_wire(launchers_to_wire(&launchers))
                        .expect("accepted launchers are accepted again"),
                    launchers
                );
            }
        }
        Up::Usage(wire) => {
            if let Ok(usage) = usage_from_wire(wire) {
                assert_eq!(
                    usage_from_wire(usage_to_wire(&usage))
                        .expect("an accepted usage is accepted again"),
                    usage
                );
            }
        }
        Up::Located(wire) => {
            let ranks = located_from_wire(&NodeName::from("n1"), wire);
            let again = located_from_wire(&NodeName::from("n1"), located_to_wire(1, &ranks));
            assert_eq!(again.len(), ranks.len());
            let together = stacks::together(&again);
            assert_eq!(
                together.iter().map(|t| t.ranks.len()).sum::<usize>(),
                again.len()
            );
            let _ = stacks::waits(&again);
        }
        Up::Heartbeat(_) | Up::Log(_) | Up::Signalled(_) => {}
    }
}

pub(super) fn agent_seeds() -> Vec<Vec<u8>> {
    let run = RunReport {
        phase: RunPhase::Running,
        store: Some(Endpoint {
            host: "127.0.0.1".into(),
            port: 4711,
        }),
        joined_ranks: vec![0, 1],
        launched_at: Some(Timestamp(NOW.0 - 5)),
        torchrun_exit: Some(Exit::Signal(9)),
        fenced: true,
        stack: Stack {
            torch: "2.15.0+cu132".into(),
            cuda: "13.2".into(),
            nccl: "2.30.7".into(),
            nccl2: "1".into(),
        },
        ..RunReport::preparing(
            RunId {
                job: JobUid::from("0192-ab"),
                generation: Generation(3),
            },
            Term(2),
        )
    };
    let hello = Hello {
        node: "node-1".into(),
        boot_id: "boot".into(),
        uptime: Some(Duration::from_secs(1)),
        incarnation: 7,
        speaks: Speaks::OURS,
        term_seen: Term(2),
        epoch_seen: NodeEpoch(3),
        jobs_seen: [(
            JobUid::from("0192-ab"),
            Obeyed {
                generation: Generation(3),
                over: true,
            },
        )]
        .into(),
        report: NodeReport::default(),
        runs: vec![run.clone()],
    };
    let launcher = |job: &str, state| LauncherReport {
        job: JobUid::from(job),
        state,
    };
    let launchers = [
        launcher("0192-ab", LauncherState::Ready),
        launcher("0192-cd", LauncherState::Refused("no such file".into())),
    ];
    let up = |message| {
        AgentMessage {
            message: Some(message),
        }
        .encode_to_vec()
    };
    vec![
        up(Up::Hello(hello_to_wire(&hello, NOW))),
        up(Up::Runs(runs_to_wire(&[run], None, NOW))),
        up(Up::Report(node_report_to_wire(&NodeReport::default()))),
        up(Up::Launchers(launchers_to_wire(&launchers))),
    ]
}

pub(super) fn coordinator_message(input: &[u8]) {
    let Ok(CoordinatorMessage {
        message: Some(message),
    }) = CoordinatorMessage::decode(input)
    else {
        return;
    };
    match message {
        Down::Welcome(wire) => {
            if let Ok(welcome) = welcome_from_wire(wire) {
                assert_eq!(
                    welcome_from_wire(welcome_to_wire(&welcome))
                        .expect("an accepted welcome is accepted again"),
                    welcome
                );
            }
        }
        Down::Desired(wire) => {
            if let Ok(desired) = desired_from_wire(wire) {
                let again = desired_from_wire(desired_to_wire(&desired));
                assert_eq!(
                    again.expect("an accepted desired state is accepted again"),
                    desired
                );
            }
        }
        Down::Authorities(_)
        | Down::Heartbeat(_)
        | Down::LogRead(_)
        | Down::LogCancel(_)
        | Down::LogCredit(_)
        | Down::SignalRanks(_)
        | Down::LocateRanks(_) => {}
    }
}

pub(super) fn coordinator_seeds() -> Vec<Vec<u8>> {
    let run = |generation| RunId {
        job: JobUid::from("0192-ab"),
        generation: Generation(generation),
    };
    let stopped = Target::Stopped {
        grace: Duration::from_secs(10),
        reason: "cancelled".into(),
    };
    let runs = vec![
        DesiredRun {
            run: run(1),
            target: Target::Gone { purge: true },
        },
        DesiredRun {
            run: run(2),
            target: stopped,
        },
        DesiredRun {
            run: run(3),
            target: Target::Ready(Box::new(assignment(run(3)))),
        },
    ];
    let desired = Desired {
        retire: Some("the job is over".into()),
        term: Term(4),
        epoch: NodeEpoch(5),
        runs,
        labels: Labels::bounded([("zone".to_owned(), "a".to_owned())]),
        prewarm: vec![assignment(run(4))],
    };
    let welcome = Welcome {
        term: Term(4),
        epoch: NodeEpoch(5),
        heartbeat: Duration::from_secs(1),
        protocol: 2,
    };
    let down = |message| {
        CoordinatorMessage {
            message: Some(message),
        }
        .encode_to_vec()
    };
    vec![
        down(Down::Desired(desired_to_wire(&desired))),
        down(Down::Welcome(welcome_to_wire(&welcome))),
    ]
}

fn assignment(run: RunId) -> Assignment {
    let profile = Profile::default();
    Assignment {
        run,
        name: JobName {
            namespace: "default".into(),
            name: "digits".into(),
        },
        rendezvous: "0192-ab.g3".into(),
        node_rank: 0,
        node_count: 1,
        proc_per_node: 1,
        first_rank: 0,
        world_size: 1,
        store_host: "node-1".into(),
        hosts_store: true,
        store_clients: Vec::new(),
        env_files: BTreeMap::new(),
        command: vec!["python3".into()],
        args: vec!["train.py".into()],
        env: BTreeMap::from([("A".into(), "b".into())]),
        working_dir: Some("/w".into()),
        image: None,
        gpus: Vec::new(),
        hides_gpus: false,
        launch: Launch::Cold,
        standbys: Standbys::Auto,
        inspect: Default::default(),
        stop_grace: Duration::from_secs(10),
        step_pattern: None,
        checkpoint_pattern: None,
        restart_count: 0,
        profile_hash: profile.hash(),
        profile,
        fence_after: Some(Duration::from_secs(60)),
        framework: Framework::Plain,
        layout: Layout(vec![RoleShare {
            name: "worker".into(),
            members: 1,
            procs: 1,
            slots: 2,
            service: false,
            restarts_alone: true,
        }]),
        members: Vec::new(),
        programs: Vec::new(),
        owner: None,
    }
}
