use super::*;
use crate::{
    fleet::{
        job::tests::{generation, record},
        receipt::Incident,
    },
    id::Generation,
};

fn stopping() -> Stopping {
    Stopping {
        reason: String::new(),
        grace: std::time::Duration::ZERO,
    }
}

/// A generation that has just been opened.
fn opened(number: u64) -> GenerationRecord {
    GenerationRecord {
        started: false,
        launched: false,
        ..generation(number)
    }
}

#[test]
fn a_job_goes_from_stage_to_stage_and_the_phase_follows() {
    let mut job = record();
    let mut shown = vec![job.phase_now()];
    job.open_incident(Incident::at(Timestamp(0)));
    job.open_generation(opened(1));
    assert!(matches!(job.stage(), Stage::Forming(now, None) if now.number == Generation(1)));
    shown.push(job.phase_now());
    job.start_generation(Timestamp(1));
    assert!(job.training().is_some() && !job.is_running());
    shown.push(job.phase_now());
    job.note_launched();
    assert!(job.is_running());
    shown.push(job.phase_now());
    job.retire_current(stopping());
    assert!(matches!(job.stage(), Stage::Waiting(None)) && !job.begins());
    shown.push(job.phase_now());
    job.found(Some(Why::BelowMinimum));
    assert!(job.begins());
    shown.push(job.phase_now());
    job.open_generation(opened(2));
    shown.push(job.phase_now());
    let ending = Ending {
        phase: Phase::Failed,
        reason: Reason::FailedByRule,
        message: "a rule".into(),
    };
    job.end(ending, stopping());
    assert!(matches!(job.stage(), Stage::Ending(_)) && job.ends() && !job.is_over());
    shown.push(job.phase_now());
    job.close(Timestamp(9));
    assert!(matches!(job.stage(), Stage::Over(_)) && job.is_over());
    shown.push(job.phase_now());
    use Phase::*;
    let wanted = [
        Pending, Forming, Forming, Running, Recovering, Pending, Recovering, Stopping, Failed,
    ];
    assert_eq!(shown, wanted);
}

#[test]
fn a_generation_that_broke_while_it_had_no_replacement_leaves_a_job_without_nodes() {
    let mut job = record();
    job.open_incident(Incident::at(Timestamp(0)));
    for (found, left) in [
        (Some(Why::Stranded), Some(Why::Stranded)),
        (Some(Why::Fencing), None),
        (None, None),
    ] {
        job.open_generation(opened(1));
        job.found(found);
        job.retire_current(stopping());
        assert_eq!((job.why, job.begins()), (left, false));
    }
}

/// What a coordinator before this one stored: neither `why` nor `launched`.
fn older(job: &JobRecord) -> JobRecord {
    let mut text = serde_json::to_value(job).unwrap();
    let fields = text.as_object_mut().unwrap();
    fields.remove("why");
    if let Some(current) = fields["current"].as_object_mut() {
        current.remove("launched");
    }
    let mut job: JobRecord = serde_json::from_value(text).unwrap();
    job.read_older();
    job
}

#[test]
fn a_record_of_an_earlier_coordinator_is_at_the_same_stage() {
    let all = [
        (Why::Suspended, Reason::Suspended),
        (Why::BackOff, Reason::BackOff),
        (Why::BelowMinimum, Reason::BelowMinimum),
        (Why::Stranded, Reason::BelowMinimum),
    ];
    for (why, reason) in all {
        let mut job = record();
        job.open_incident(Incident::at(Timestamp(0)));
        job.found(Some(why));
        job.say(reason, String::new());
        assert_eq!(older(&job), job, "{why:?}");
    }
    for (why, reason) in [
        (Why::Fencing, Reason::Fencing),
        (Why::Unreachable, Reason::Unreachable),
    ] {
        let mut job = record();
        job.open_generation(opened(2));
        job.found(Some(why));
        job.say(reason, String::new());
        assert_eq!(older(&job), job, "{why:?}");
    }
    let mut job = record();
    job.open_generation(opened(1));
    job.start_generation(Timestamp(1));
    job.say(Reason::Launching, String::new());
    assert_eq!(older(&job), job, "not launched");
    job.note_launched();
    for (why, reason) in [
        (None, Reason::Running),
        (Some(Why::Stranded), Reason::BelowMinimum),
    ] {
        job.found(why);
        job.say(reason, String::new());
        assert_eq!(older(&job), job, "{reason}");
    }
    let ending = Ending {
        phase: Phase::Cancelled,
        reason: Reason::Cancelled,
        message: "by a user".into(),
    };
    job.end(ending, stopping());
    assert_eq!(older(&job), job, "ending");
    job.close(Timestamp(7));
    job.say(Reason::Cancelled, "by a user".into());
    assert_eq!(older(&job), job, "over");
    job.ending = None;
    assert!(
        older(&job).is_over(),
        "as records were before there were endings"
    );
}
