//! Compares every rendering of one job, its nodes and its story with the files in `golden/`. To
//! accept an intended change, run the tests with `MUSTER_BLESS=1` and read the difference.
mod pods;

use std::{env, fs, path::PathBuf};

use muster_proto::v1::*;

use super::{
    describe, document, environment, explain, json, listing::Listed, otlp, table::Table,
    trace::trace, yaml,
};

/// 2026-11-21T11:35:28Z, when the job was submitted.
const START: u64 = 1_795_260_928_000_000;
const NOW: u64 = START + 200_000_000;

fn job() -> Job {
    let rank = |rank: u32, node: &str, state: &str, error: &str| RankStatus {
        rank,
        local_rank: 0,
        node: node.into(),
        pid: 4711 + rank,
        state: state.into(),
        first_step: Some(1),
        last_step: Some(120 + u64::from(rank)),
        first_error: error.into(),
        memory_bytes: error.is_empty().then_some(5_200 << 20),
        cpu_milli: error.is_empty().then_some(1_980),
        usage_unix_us: if error.is_empty() { NOW - 8_000_000 } else { 0 },
        frames: Vec::new(),
    };
    let member = |node_rank, node: &str| MemberStatus {
        node: node.into(),
        node_rank,
        phase: "Running".into(),
        lane: "fork".into(),
        lane_reason: "asked for".into(),
        launcher_bytes: 300 << 20,
        torch: format!("2.{}.0+cu132", 14 + node_rank),
        cuda: "13.2".into(),
        ..MemberStatus::default()
    };
    Job {
        r#ref: Some(JobRef {
            namespace: "team-a".into(),
            name: "digits".into(),
        }),
        uid: "0190f0a0-0000-7000-8000-000000000001".into(),
        owner: "ann".into(),
        spec: Some(JobSpec {
            replicas: Some(3),
            min_replicas: Some(2),
            max_replicas: Some(4),
            proc_per_node: Some(1),
            gpus_per_node: Some(0),
            command: vec!["python3".into()],
            args: vec!["train.py".into(), "--note".into(), "it's on".into()],
            env: vec![EnvVar {
                file: String::new(),
                name: "TOKEN".into(),
                value: "yes".into(),
            }],
            working_dir: Some("/data".into()),
            priority: Some(-5),
            restart_policy: Some(RestartPolicy {
                max_restarts: Some(3),
                window: Some("1h".into()),
                max_same_failures: None,
            }),
            stop_grace_period: Some("10s".into()),
            scale_up_cooldown: Some("30s".into()),
            progress: Some("synchronous".into()),
            launch: Some("cold".into()),
            node_mix: Some("warn".into()),
            placement: Some("spread".into()),
            node_selector: [("pool".to_owned(), "h100".to_owned())].into(),
            exclude_nodes: vec!["node-9".into()],
            preferred_topology: vec!["rack".into()],
            tolerations: vec![Toleration {
                key: "dedicated".into(),
                value: "team-a".into(),
                effect: "NoSchedule".into(),
                ..Toleration::default()
            }],
            rules: vec![Rule {
                when: "signal".into(),
                signals: vec!["SIGKILL".into()],
                then: "restart".into(),
                limit: Some(2),
                ..Rule::default()
            }],
            active_deadline_seconds: Some(14_400),
            ttl_seconds_after_finished: Some(3_600),
            framework: Some("torch".into()),
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            phase: JobPhase::Running.into(),
            reason: "BelowReplicas".into(),
            message: "2 of 3 wanted nodes".into(),
            generation: 2,
            world_size: 2,
            nodes: 2,
            nodes_running: 2,
            restarts: 1,
            members: vec![member(0, "node-2"), member(1, "node-3")],
            ranks: vec![
                rank(0, "node-2", "running", ""),
                rank(1, "node-3", "exit code 1", "ValueError: bad\tshape"),
            ],
            last_step: Some(121),
            finished_unix_us: 0,
            waits_for_room: None,
            not_eligible: None,
            replicas: 3,
            store_node: "node-3".into(),
            store_address: "127.0.0.1:4242".into(),
            store_open: "node node-2 does not tell all its addresses".into(),
            total_steps: Some(1_000),
            loss: "2.310".into(),
            rate: "4.6 it/s".into(),
            step_time_us: Some(430_000),
            step_format: "step".into(),
            saved_unix_us: 0,
            suspended: false,
            deadline_unix_us: START + 14_400_000_000,
            rules: vec![RuleStatus {
                text: "rule 1 (signal SIGKILL: restart, at most 2)".into(),
                restarts: 1,
            }],
            time: Some(super::time_account::tests::account(START)),
            ..JobStatus::default()
        }),
        created_unix_us: START,
    }
}

fn pending() -> Job {
    Job {
        r#ref: Some(JobRef {
            namespace: "default".into(),
            name: "waits".into(),
        }),
        spec: Some(JobSpec {
            replicas: Some(8),
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            phase: JobPhase::Pending.into(),
            reason: "BelowMinimum".into(),
            replicas: 8,
            ..JobStatus::default()
        }),
        created_unix_us: NOW - 5_000_000,
        ..Job::default()
    }
}

#[test]
fn a_state_says_who_keeps_work_away() {
    let excluded = |excluded: &str| Node {
        excluded: excluded.into(),
        ..node()
    };
    assert_eq!(super::hardware::state(&excluded("")), "Suspect,Cordoned");
    let state = super::hardware::state(&excluded("unschedulable in Kubernetes"));
    assert_eq!(state, "Suspect,Cordoned,Excluded");
}

fn node() -> Node {
    let run = |generation, phase: &str| NodeRun {
        job_uid: "u".into(),
        namespace: "team-a".into(),
        job: "digits".into(),
        generation,
        phase: phase.into(),
        gpus: super::gpu_use::tests::held(phase),
    };
    Node {
        name: "node-2".into(),
        state: NodeState::Suspect.into(),
        cordon: Some(Cordon {
            by: "ada".into(),
            reason: "fan fails".into(),
            at_unix_us: START,
        }),
        epoch: 3,
        address: "10.0.0.2".into(),
        agent_version: "0.1.0 (commit abc)".into(),
        hostname: "rack-b-2".into(),
        kernel: "6.12.0".into(),
        labels: [("rack", "b"), ("topology.kubernetes.io/zone", "eu-1a")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        kubernetes_labels: vec!["topology.kubernetes.io/zone".into()],
        slots: 2,
        slots_free: 1,
        cpus: 64,
        memory_bytes: 512 << 30,
        gpus: vec![Gpu {
            uuid: "GPU-1".into(),
            index: 0,
            model: "NVIDIA H100".into(),
            memory_bytes: 80 << 30,
            ..Gpu::default()
        }],
        gpu_error: String::new(),
        warm_pool: Some(WarmPool {
            limit: 2,
            ready: 1,
            bytes: 250 << 20,
        }),
        runs: vec![run(1, "Dead"), run(2, "Running")],
        first_seen_unix_us: START - 3_600_000_000,
        last_heard_unix_us: NOW - 3_000_000,
        boot_id: "b1".into(),
        marks: vec![NodeMark {
            at_unix_us: NOW - 600_000_000,
            namespace: "team-a".into(),
            job: "digits".into(),
            cause: "WorkerFailed".into(),
            lasted_us: 90_000_000,
            standing: "open".into(),
        }],
        conditions: vec!["MassLoss: 3 of 10 nodes fell silent within 1m".into()],
        usage: Some(usage()),
        usage_unix_us: NOW - 8_000_000,
        ..Node::default()
    }
}

fn usage() -> Usage {
    let space = |available, total| Some(Space { available, total });
    let disk = |role: DiskRole, path: &str, space| DiskUsage {
        role: role.into(),
        path: path.into(),
        space,
    };
    Usage {
        memory: space(96 << 30, 512 << 30),
        swap: space(8 << 30, 8 << 30),
        load: Some(Load {
            one_milli: 12_340,
            five_milli: 11_000,
            fifteen_milli: 9_876,
        }),
        cpu: Some(CpuUsage {
            cpus: 64,
            all_milli: 24_500,
            others_milli: Some(1_250),
        }),
        processes: Some(1_412),
        disks: vec![
            disk(
                DiskRole::State,
                "/var/lib/muster",
                space(40 << 30, 100 << 30),
            ),
            disk(DiskRole::Work, "/nfs/data", None),
        ],
        network: Some(Traffic {
            received_bytes: 3 << 40,
            sent_bytes: 5 << 30,
        }),
        runs: Vec::new(),
        gpus: super::gpu_use::tests::used(),
    }
}

fn event(sequence: u64, at: u64, reason: &str, message: &str) -> Event {
    Event {
        sequence,
        at_unix_us: START + at,
        severity: if reason.ends_with("Lost") {
            EventSeverity::Warning
        } else {
            EventSeverity::Normal
        }
        .into(),
        reason: reason.into(),
        message: message.into(),
        namespace: "team-a".into(),
        job: "digits".into(),
        ..Event::default()
    }
}

fn events() -> Vec<Event> {
    vec![
        event(1, 0, "Submitted", "accepted"),
        event(
            2,
            415_000,
            "WorldFormed",
            "generation 1: world 3 on 3 nodes",
        ),
        Event {
            node: "node-1".into(),
            ..event(3, 38_974_000, "NodeLost", "silent for 5 s")
        },
        Event {
            job: String::new(),
            node: "node-4".into(),
            ..event(4, 60_000_000, "NodeReady", "node-4 connected\u{1b}[31m")
        },
    ]
}

fn story() -> ExplainResponse {
    ExplainResponse {
        job: Some(job()),
        // The last event announces the incident with the same text, and is not shown a second time.
        timeline: [
            events(),
            vec![Event {
                generation: 1,
                ..event(5, 38_974_000, "NodeLost", "node-1 lost its connection")
            }],
        ]
        .concat(),
        incidents: vec![
            Incident {
                at_unix_us: START,
                cause: "FirstStart".into(),
                message: "first start".into(),
                to_generation: 1,
                to_nodes: 3,
                detect_us: Some(0),
                launch_us: Some(7_681_888),
                charged: "nobody".into(),
                ..Incident::default()
            },
            Incident {
                at_unix_us: START + 38_974_000,
                cause: "NodeLost".into(),
                message: "node-1 lost its connection".into(),
                from_generation: 1,
                to_generation: 2,
                from_nodes: 3,
                to_nodes: 2,
                detect_us: Some(1_988_440),
                decide_us: Some(73),
                stop_us: Some(178_835),
                launch_us: Some(4_862_691),
                join_us: Some(6_948_039),
                first_step_us: Some(51_000),
                total_us: Some(14_051_585),
                steps_lost: Some(4),
                charged: "node".into(),
                culprit: "node-1".into(),
                rule: "rule 1 (signal SIGKILL: restart, at most 2)".into(),
                collateral: vec!["rank 1 on node-2".into(), "rank 2 on node-3".into()],
                collateral_more: 4_031,
                ..Incident::default()
            },
        ],
        lost: vec![
            LostTime {
                cause: "FirstStart".into(),
                lost_us: 36_124_000,
                incidents: 1,
            },
            LostTime {
                cause: "NodeLost".into(),
                lost_us: 14_051_585,
                incidents: 1,
            },
        ],
        incidents_dropped: 0,
    }
}

fn list<T: Listed>(items: &[T], wide: bool, namespaced: bool) -> String {
    let rows: Vec<_> = items
        .iter()
        .map(|item| item.row(NOW, wide, namespaced))
        .collect();
    Table::new(T::heads(wide, namespaced)).render(&rows, true)
}

fn held_to(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/output/golden")
        .join(name);
    if env::var_os("MUSTER_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "\n{name} is now:\n{text}");
}

#[test]
fn lists() {
    held_to("jobs.txt", &list(&[job(), pending()], false, false));
    held_to(
        "jobs-wide-all-namespaces.txt",
        &list(&[job(), pending()], true, true),
    );
    held_to("nodes.txt", &list(&[node()], false, false));
    let quiet = Node {
        name: "node-9".into(),
        usage: None,
        usage_unix_us: 0,
        ..node()
    };
    held_to("nodes-wide.txt", &list(&[node(), quiet], true, false));
    held_to("events.txt", &list(&events(), false, false));
    held_to("events-wide.txt", &list(&events(), true, true));
}

#[test]
fn descriptions() {
    held_to(
        "describe-job.txt",
        &describe::job(&job(), &events(), NOW, false),
    );
    held_to(
        "describe-job-pending.txt",
        &describe::job(&pending(), &[], NOW, false),
    );
    held_to(
        "describe-node.txt",
        &describe::node(&node(), &events(), NOW),
    );
}

#[test]
fn the_story_of_a_job() {
    held_to("explain.txt", &explain::render(&story(), NOW));
    let over = {
        let mut story = ExplainResponse {
            incidents_dropped: 7,
            lost: Vec::new(),
            timeline: Vec::new(),
            ..story()
        };
        let status = story
            .job
            .as_mut()
            .and_then(|job| job.status.as_mut())
            .unwrap();
        (status.phase, status.finished_unix_us) =
            (JobPhase::Succeeded.into(), START + 3_723_000_000);
        story.incidents.truncate(1);
        story
    };
    held_to("explain-over.txt", &explain::render(&over, NOW));
}

#[test]
fn the_environment_of_a_job() {
    let variable = |name: &str, value: Option<&str>, from: &str, why: &str, nodes: &[&str]| {
        EnvironmentVariable {
            name: name.into(),
            value: value.map(str::to_owned),
            from: from.into(),
            why: why.into(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        }
    };
    let answer = EnvironmentResponse {
        generation: 3,
        nodes: 4,
        transport: "infiniband".into(),
        profile_hash: "f3da59462432cc74".into(),
        variables: vec![
            variable("NCCL_ALGO", Some("Ring"), "job", "set by the job", &[]),
            variable(
                "NCCL_IB_HCA",
                Some("=mlx5_0,mlx5_1"),
                "node",
                "2 of this node's RDMA devices",
                &["n1", "n2", "n3"],
            ),
            variable(
                "NCCL_IB_HCA",
                Some("=mlx5_2"),
                "job, over =mlx5_0",
                "1 of this node's RDMA devices",
                &["n4"],
            ),
            variable(
                "NODE_ZONE",
                None,
                "node",
                "this node has no label zone",
                &[],
            ),
        ],
        remarks: vec![EnvironmentRemark {
            message: "NCCL_IB_DISABLE=true is 0 to NCCL".into(),
            nodes: vec!["n4".into()],
        }],
    };
    held_to("environment.txt", &environment::render("digits", &answer));
    held_to(
        "environment.json",
        &json(&document::Environment::from(answer)),
    );
}

#[test]
fn documents() {
    held_to("job.json", &json(&document::Job::from(job())));
    held_to("job.yaml", &yaml(&document::Job::from(job())));
    held_to("node.json", &json(&document::Node::from(node())));
    held_to("explain.json", &json(&document::Explanation::from(story())));
}

#[test]
fn values_of_variables_are_hidden_and_their_names_are_not() {
    let text = yaml(&document::Job::from(job().discreet()));
    assert!(
        text.contains("TOKEN") && text.contains("<hidden>") && !text.contains("\"yes\""),
        "{text}"
    );
    assert!(!describe::job(&job(), &[], NOW, false).contains("TOKEN=yes"));
    assert!(describe::job(&job(), &[], NOW, true).contains("TOKEN=yes"));
}

#[test]
fn what_is_printed_can_be_submitted_again() {
    let text = yaml(&document::Job::from(job()));
    let submitted: String = text
        .split("status:")
        .next()
        .unwrap()
        .lines()
        .filter(|line| !is_the_server_s(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let reader = crate::jobfile::Reader {
        here: "/".into(),
        ..Default::default()
    };
    let jobs = crate::jobfile::read("job.yaml", submitted.as_bytes(), &reader).unwrap();
    assert_eq!(
        jobs.documents[0].spec,
        muster_proto::convert::jobs::spec_document(job().spec.unwrap())
    );
}

fn is_the_server_s(line: &str) -> bool {
    line.trim_start().starts_with("uid:") || line.trim_start().starts_with("creationTimestamp:")
}

#[test]
fn traces() {
    held_to("trace.json", &json(&trace(&story(), NOW)));
}

#[test]
fn spans() {
    let text = json(&otlp::export(&story(), NOW));
    held_to("otlp.json", &text.replace(crate::VERSION, "VERSION"));
}
