use std::time::Duration;

use super::*;
use crate::spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument};

/// A job just submitted.
pub(crate) fn record() -> JobRecord {
    let metadata = Metadata {
        name: "digits".into(),
        namespace: None,
    };
    let spec = SpecDocument {
        args: vec!["train.py".into()],
        ..SpecDocument::default()
    };
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata,
        spec,
    };
    let (name, spec) = document.check().unwrap();
    JobRecord::submitted(JobUid::from("uid"), name, spec, String::new(), Timestamp(0))
}

pub(crate) fn generation(number: u64) -> GenerationRecord {
    GenerationRecord {
        number: Generation(number),
        cause: Cause::FirstStart,
        members: Vec::new().into(),
        proc_per_node: 1,
        layout: Layout::default(),
        restart_count: 0,
        store_host: NodeName::from("a"),
        store: None,
        peers: Vec::new(),
        keys: Vec::new(),
        rendezvous: String::new(),
        opened: Timestamp(0),
        started: true,
        started_at: None,
        launched: true,
        previous_grace: Duration::ZERO,
        stopping: None,
        dead: BTreeSet::new(),
        fenced: BTreeSet::new(),
        profile: Profile::default(),
        ends: BTreeMap::new(),
        left_behind: BTreeSet::new(),
        forced: BTreeSet::new(),
        disobeyed: BTreeSet::new(),
        step_pattern_told: false,
        won: None,
        member_restarts: BTreeMap::new(),
        stall: None,
        slow: None,
    }
}

/// Brings the job to its end.
pub(crate) fn end(job: &mut JobRecord, phase: Phase, message: &str, at: Timestamp) {
    let ending = Ending {
        phase,
        reason: Reason::Completed,
        message: message.into(),
    };
    let stopping = Stopping {
        reason: String::new(),
        grace: Duration::ZERO,
    };
    job.end(ending, stopping);
    job.close(at);
    job.say(Reason::Completed, message.into());
}

#[test]
fn the_first_generation_that_failed_stays_known() {
    let mut job = record();
    for number in 1..=30 {
        // The first generation is resized. All later ones fail. The job remembers its newest
        // incidents only.
        let cause = if number == 1 {
            Cause::Scaled
        } else {
            Cause::WorkerFailed
        };
        job.open_incident(Incident {
            cause,
            from: Some(Generation(number)),
            ..Incident::at(Timestamp(number))
        });
        if number > 20 {
            job.incidents.remove(0);
        }
        job.retiring.push(generation(number));
        job.keep_proven_as_history();
    }
    let known: Vec<u64> = job
        .history
        .iter()
        .map(|generation| generation.number.0)
        .collect();
    assert_eq!(known, [2, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
}

#[test]
fn a_job_forgets_nodes_that_are_not_known_any_more_when_they_are_many() {
    let mut job = record();
    let name = |n: usize| NodeName::from(format!("pod-{n:05}"));
    for n in 0..NODES_USED_MAX {
        job.use_nodes([name(n)].iter(), |_| false);
    }
    assert_eq!(job.nodes_used.len(), NODES_USED_MAX);
    let known = [name(7), name(NODES_USED_MAX)];
    job.use_nodes(known[1..].iter(), |node| known.contains(node));
    assert!(job.nodes_used.iter().eq(known.iter()));
}
