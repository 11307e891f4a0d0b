//! A job's story, and stories that nobody meant to tell.

use muster_proto::v1::{
    self, Event, ExplainResponse, Incident, Job, JobRef, JobStatus, MemberStatus, Stall,
};
use proptest::prelude::*;

/// When the job was submitted: 2026-11-21T11:35:28Z.
pub(in crate::output) const START: u64 = 1_795_260_928_000_000;
pub(in crate::output) const SECOND: u64 = 1_000_000;

pub(in crate::output) fn event(at: u64, reason: &str, message: &str) -> Event {
    Event {
        at_unix_us: START + at * SECOND,
        reason: reason.into(),
        message: message.into(),
        ..Event::default()
    }
}

/// One that took a second for each phase, and three for the model.
pub(in crate::output) fn incident(at: u64, cause: &str, from: u64, to: u64) -> Incident {
    Incident {
        at_unix_us: START + at * SECOND,
        cause: cause.into(),
        message: format!("{cause} happened"),
        from_generation: from,
        to_generation: to,
        from_nodes: 2,
        to_nodes: 2,
        detect_us: Some(SECOND),
        decide_us: Some(SECOND),
        stop_us: Some(SECOND),
        launch_us: Some(SECOND),
        join_us: Some(SECOND),
        first_step_us: Some(SECOND),
        total_us: Some(6 * SECOND),
        charged: "job".into(),
        ..Incident::default()
    }
}

/// Waits for nodes, starts on two, loses one, waits, goes on with another, stalls for a while, and is cancelled.
pub(in crate::output) fn story() -> ExplainResponse {
    let first = Incident {
        detect_us: Some(0),
        decide_us: Some(10 * SECOND),
        stop_us: None,
        total_us: Some(13 * SECOND),
        from_nodes: 0,
        ..incident(0, "FirstStart", 0, 1)
    };
    let lost = Incident {
        decide_us: Some(20 * SECOND),
        total_us: Some(25 * SECOND),
        culprit: "node-2".into(),
        error_class: "Infrastructure".into(),
        steps_lost: Some(4),
        start: Some(v1::StartPhases {
            imports_us: Some(SECOND / 2),
            join_us: Some(SECOND / 2),
            nccl_us: Some(SECOND / 4),
            first_step_us: Some(SECOND / 4 * 3),
            imports: vec![v1::Import {
                name: "torch".into(),
                us: 400_000,
                why: String::new(),
            }],
            ..v1::StartPhases::default()
        }),
        ..incident(60, "NodeLost", 1, 2)
    };
    let alone = Incident {
        restarted_ranks: vec![1],
        stop_us: None,
        join_us: None,
        first_step_us: None,
        total_us: Some(3 * SECOND),
        ..incident(100, "WorkerKilled", 2, 2)
    };
    let member = |rank: u32, node: &str| MemberStatus {
        node: node.into(),
        node_rank: rank,
        ..MemberStatus::default()
    };
    ExplainResponse {
        job: Some(Job {
            r#ref: Some(JobRef {
                namespace: "team-a".into(),
                name: "digits".into(),
            }),
            uid: "u1".into(),
            created_unix_us: START,
            status: Some(JobStatus {
                generation: 2,
                members: vec![member(0, "node-1"), member(1, "node-3")],
                finished_unix_us: START + 200 * SECOND,
                ..JobStatus::default()
            }),
            ..Job::default()
        }),
        timeline: vec![
            event(0, "Submitted", "accepted"),
            event(2, "BelowMinimum", "1 of at least 2 nodes available"),
            event(
                11,
                "WorldFormed",
                "generation 1: world 4 on 2 nodes: node-1, node-2; torch 2.15.0",
            ),
            Event {
                node: "node-2".into(),
                ..event(61, "NodeSuspect", "silent for 3 s")
            },
            event(62, "BelowMinimum", "1 of at least 2 nodes available"),
            event(70, "NodesOccupied", "node-3 is occupied"),
            event(
                82,
                "WorldFormed",
                "generation 2: world 4 on 2 nodes: node-1, node-3",
            ),
            event(120, "JobStalled", "nothing has moved for 10s"),
            event(130, "JobMovesAgain", "it moves again"),
            event(190, "CancelRequested", "it is being cancelled"),
            event(200, "Cancelled", "cancelled"),
        ],
        incidents: vec![first, lost, alone],
        ..ExplainResponse::default()
    }
}

fn any_incident() -> impl Strategy<Value = Incident> {
    let phase = || proptest::option::of(0..30_u64);
    let phases = proptest::array::uniform7(phase());
    (0..90_u64, 0..4_u64, 0..4_u64, phases, any::<bool>()).prop_map(
        |(at, from, to, phases, alone)| {
            let [
                detect_us,
                decide_us,
                stop_us,
                launch_us,
                join_us,
                first_step_us,
                total_us,
            ] = phases.map(|phase| phase.map(|seconds| seconds * SECOND));
            Incident {
                detect_us,
                decide_us,
                stop_us,
                launch_us,
                join_us,
                first_step_us,
                total_us,
                restarted_ranks: if alone { vec![1] } else { Vec::new() },
                stall: (at % 3 == 0).then(|| Stall {
                    since_unix_us: START + at * SECOND,
                    ..Stall::default()
                }),
                ..incident(at, "NodeLost", from, to)
            }
        },
    )
}

fn any_event() -> impl Strategy<Value = Event> {
    let reasons = [
        "BelowMinimum",
        "NodesOccupied",
        "Suspended",
        "Resumed",
        "Eligible",
        "JobStalled",
        "JobMovesAgain",
        "CancelRequested",
        "WorldFormed",
    ];
    (0..120_u64, 0..reasons.len(), 1..5_u64).prop_map(move |(at, reason, generation)| {
        let message = format!("generation {generation}: world 2 on 2 nodes: a, b");
        event(at, reasons[reason], &message)
    })
}

/// Any incidents and events in any order, of a job whose clocks may have been set.
pub(in crate::output) fn any_story() -> impl Strategy<Value = ExplainResponse> {
    (
        proptest::collection::vec(any_incident(), 0..6),
        proptest::collection::vec(any_event(), 0..12),
        (0..60_u64, 0..120_u64),
        0..4_u64,
    )
        .prop_map(
            |(incidents, mut timeline, (submitted, finished), generation)| {
                timeline.sort_by_key(|event| event.at_unix_us);
                let mut answer = ExplainResponse {
                    incidents,
                    timeline,
                    ..story()
                };
                let job = answer.job.get_or_insert_default();
                job.created_unix_us = START + submitted * SECOND;
                let status = job.status.get_or_insert_default();
                status.generation = generation;
                status.finished_unix_us = match finished {
                    0..60 => 0,
                    _ => START + finished * SECOND,
                };
                answer
            },
        )
}
