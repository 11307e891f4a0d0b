//! Jobs as the rules' tests need them.

use std::time::Duration;

use muster_core::{
    fleet::{
        job::{Ending, GenerationRecord, JobRecord, Phase, Reason, Stopping},
        receipt::Cause,
    },
    id::{Generation, JobUid, NodeName},
    layout::Layout,
    nccl::profile::Profile,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};

/// A job just submitted.
pub(super) fn record() -> JobRecord {
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

/// A generation that trains.
pub(super) fn generation(number: u64) -> GenerationRecord {
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
        dead: Default::default(),
        fenced: Default::default(),
        profile: Profile::default(),
        ends: Default::default(),
        left_behind: Default::default(),
        forced: Default::default(),
        disobeyed: Default::default(),
        step_pattern_told: false,
        won: None,
        member_restarts: Default::default(),
        stall: None,
        slow: None,
    }
}

/// The job ends, and its generation is not proven dead yet.
pub(super) fn ends(job: &mut JobRecord, phase: Phase, reason: Reason) {
    if let Some(mut generation) = job.current.take() {
        generation.stopping = Some(Stopping {
            reason: String::new(),
            grace: Duration::ZERO,
        });
        job.retiring.push(generation);
    }
    (job.phase, job.why) = (Phase::Stopping, None);
    job.ending = Some(Ending {
        phase,
        reason,
        message: String::new(),
    });
}

/// Brings the job to its end.
pub(super) fn end(job: &mut JobRecord, phase: Phase, message: &str, at: Timestamp) {
    ends(job, phase, Reason::Completed);
    (job.finished, job.phase) = (Some(at), phase);
    (job.reason, job.message) = (Reason::Completed, message.into());
    if let Some(ending) = &mut job.ending {
        ending.phase = phase;
        ending.message = message.into();
    }
}
