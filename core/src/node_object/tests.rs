use super::*;

const NOW: Timestamp = Timestamp(1_795_453_236_000_000);

fn condition(kind: &str, status: Status) -> Condition {
    Condition {
        kind: kind.into(),
        status,
        reason: "Why".into(),
        message: "it broke".into(),
        since: Some(Timestamp(9_000_000)),
    }
}

fn note() -> CordonNote {
    CordonNote {
        by: "muster".into(),
        at: NOW.rfc3339(),
        reason: "restart storm".into(),
        job: "default/a,team/b".into(),
        was_unschedulable: false,
    }
}

fn cordoned() -> Marking {
    Marking {
        cordon: Some(note()),
        ..Marking::default()
    }
}

/// The object after the correction was written.
fn written(mut raw: Raw, correction: &Correction) -> Raw {
    raw.unschedulable = correction.unschedulable.unwrap_or(raw.unschedulable);
    for (key, value) in &correction.annotations {
        match value {
            Some(value) => drop(raw.annotations.insert((*key).into(), value.clone())),
            None => drop(raw.annotations.remove(*key)),
        }
    }
    if let Some(condition) = &correction.condition {
        raw.conditions.retain(|other| other.kind != condition.kind);
        raw.conditions.push(condition.clone());
    }
    raw
}

fn correct(raw: &Raw, wanted: &Marking) -> (Raw, Correction) {
    let done = correction(wanted, &NodeObject::read(raw.clone()), NOW);
    let raw = written(raw.clone(), &done);
    let again = correction(wanted, &NodeObject::read(raw.clone()), NOW);
    assert!(again.is_empty(), "one correction is enough: {again:?}");
    (raw, done)
}

fn unschedulable() -> Raw {
    Raw {
        unschedulable: true,
        ..Raw::default()
    }
}

#[test]
fn a_cordon_is_set_with_who_why_when_and_which_job_and_leaves_nothing_behind() {
    let (raw, done) = correct(&Raw::default(), &cordoned());
    assert!(raw.unschedulable && done.is_urgent());
    let said = |key: &str| raw.annotations[key].as_str();
    assert_eq!(
        (said(CORDONED_BY), said(CORDONED_REASON), said(CORDONED_JOB)),
        ("muster", "restart storm", "default/a,team/b")
    );
    assert_eq!(said(CORDONED_AT), "2026-11-23T17:00:36.000000Z");
    assert_eq!(raw.annotations.len(), 4, "{:?}", raw.annotations);
    let told = done.event.unwrap();
    assert_eq!((told.reason, told.warning), ("Cordoned", true));
    assert!(told.note.contains("default/a"), "{}", told.note);
    let object = NodeObject::read(raw.clone());
    assert_eq!(
        (object.marking.clone(), object.excluded(None)),
        (cordoned(), None),
        "Muster's own cordon is no news to Muster"
    );
    let (raw, done) = correct(&raw, &Marking::default());
    assert_eq!(raw, Raw::default());
    assert_eq!(done.event.unwrap().reason, "Uncordoned");
}

#[test]
fn what_somebody_else_made_unschedulable_stays_so() {
    let (raw, done) = correct(&unschedulable(), &Marking::default());
    assert!(raw.unschedulable && done.is_empty(), "no cordon of ours");
    let (raw, _) = correct(&unschedulable(), &cordoned());
    assert_eq!(raw.annotations[WAS_UNSCHEDULABLE], "true");
    let object = NodeObject::read(raw.clone());
    assert!(
        object.excluded(None).is_some(),
        "somebody else's stands as well"
    );
    // A newer cordon keeps it in mind.
    let newer = Marking {
        cordon: Some(CordonNote {
            at: "2026-11-23T18:00:00.000000Z".into(),
            job: String::new(),
            ..note()
        }),
        ..Marking::default()
    };
    let (raw, _) = correct(&raw, &newer);
    assert_eq!(raw.annotations.get(CORDONED_JOB), None);
    assert_eq!(raw.annotations[WAS_UNSCHEDULABLE], "true");
    let (raw, _) = correct(&raw, &Marking::default());
    assert_eq!(raw, unschedulable());
}

#[test]
fn of_a_cordon_that_somebody_ended_only_the_annotations_are_muster_s() {
    let (raw, _) = correct(&Raw::default(), &cordoned());
    let object = NodeObject::read(raw.clone());
    let overruled = |at: u64| Marking {
        overruled: Some(Timestamp(at)),
        ..Marking::default()
    };
    assert_eq!(object.excluded(overruled(NOW.0 - 1).overruled), None);
    assert!(object.excluded(overruled(NOW.0).overruled).is_some());
    let (lifted, _) = correct(&raw, &overruled(NOW.0 - 1));
    assert_eq!(lifted, Raw::default(), "an older one was ended");
    let (kept, done) = correct(&raw, &overruled(NOW.0));
    assert_eq!(kept, unschedulable());
    assert!(done.event.unwrap().note.contains("stays unschedulable"));
    // A newer cordon of Muster knows whose the node was before.
    let newer = Marking {
        cordon: Some(CordonNote {
            at: "2026-11-23T18:00:00.000000Z".into(),
            ..note()
        }),
        ..overruled(NOW.0)
    };
    let (above, _) = correct(&raw, &newer);
    assert_eq!(above.annotations[WAS_UNSCHEDULABLE], "true");
    let (kept, _) = correct(&above, &overruled(NOW.0));
    assert_eq!(kept, unschedulable());
}

#[test]
fn a_note_that_muster_did_not_write_makes_no_cordon_muster_s() {
    let (mut raw, _) = correct(&Raw::default(), &cordoned());
    raw.annotations.insert(CORDONED_AT.into(), "today".into());
    assert!(NodeObject::read(raw.clone()).excluded(None).is_some());
    assert_eq!(correct(&raw, &Marking::default()).0, unschedulable());
}

#[test]
fn a_withheld_cordon_is_told_again_only_if_more_than_its_numbers_changes() {
    let withheld = |text: &str| Marking {
        withheld: Some(text.into()),
        ..Marking::default()
    };
    let (raw, done) = correct(&Raw::default(), &withheld("2 of 30 nodes"));
    assert!(done.event.is_some());
    let (raw, done) = correct(&raw, &withheld("10 of 3 nodes"));
    assert_eq!(raw.annotations[CORDON_WITHHELD], "10 of 3 nodes");
    assert_eq!(done.event, None);
    let (_, done) = correct(&raw, &withheld("somebody uncordoned it"));
    assert_eq!(done.event.unwrap().reason, "CordonWithheld");
}

#[test]
fn a_persons_uncordon_is_not_undone() {
    let (mut raw, _) = correct(&Raw::default(), &cordoned());
    raw.unschedulable = false;
    let (same, done) = correct(&raw, &cordoned());
    assert!(same == raw && done.is_empty(), "{done:?}");
    // When the cordon is over, only the annotations go.
    let (clean, done) = correct(&raw, &Marking::default());
    assert_eq!((clean, done.unschedulable), (Raw::default(), None));
    // A newer cordon was decided without that word.
    let newer = Marking {
        cordon: Some(CordonNote {
            at: "2026-11-23T18:00:00.000000Z".into(),
            ..note()
        }),
        ..Marking::default()
    };
    let (raw, _) = correct(&raw, &newer);
    assert!(raw.unschedulable && !raw.annotations.contains_key(WAS_UNSCHEDULABLE));
}

#[test]
fn the_condition_keeps_the_time_of_its_status() {
    let health = |status, message: &str| Marking {
        health: Some(Verdict {
            status,
            reason: "Reason".into(),
            message: message.into(),
        }),
        ..Marking::default()
    };
    let mut others = Raw::default();
    others.conditions.push(condition("Ready", Status::True));
    let (raw, done) = correct(&others, &health(Status::True, "fine"));
    assert_eq!(done.condition.unwrap().since, Some(NOW));
    assert_eq!(done.judged, None, "that a node is well is no event");
    assert_eq!(raw.conditions.len(), 2);
    let seen = NodeObject::read(raw.clone());
    let later = Timestamp(NOW.0 + 60_000_000);
    let same = correction(&health(Status::True, "very fine"), &seen, later);
    assert_eq!(same.condition.unwrap().since, Some(NOW));
    let worse = correction(&health(Status::False, "broken"), &seen, later);
    assert_eq!(worse.condition.as_ref().unwrap().since, Some(later));
    assert_eq!(worse.judged.unwrap().reason, "GPUUnhealthy");
    assert!(correction(&health(Status::True, "fine"), &seen, later).is_empty());
    let unknown = correction(&Marking::default(), &seen, later);
    assert!(unknown.is_empty(), "no verdict leaves it as it is");
}

#[test]
fn what_would_be_done_is_said_and_taken_back() {
    let wanted = Marking {
        would_cordon: Some("muster: restart storm".into()),
        withheld: Some("should be, but".into()),
        ..Marking::default()
    };
    let (raw, done) = correct(&Raw::default(), &wanted);
    assert!(!raw.unschedulable && !done.is_urgent());
    assert_eq!(raw.annotations[WOULD_CORDON], "muster: restart storm");
    assert_eq!(raw.annotations[CORDON_WITHHELD], "should be, but");
    assert_eq!(done.event.unwrap().reason, "WouldCordon");
    let (raw, _) = correct(&raw, &Marking::default());
    assert_eq!(raw, Raw::default());
}

#[test]
fn objects_that_others_look_after_are_left_alone() {
    let labelled = |key: &str, value: &str| Raw {
        labels: [(key.to_owned(), value.to_owned())].into(),
        ..Raw::default()
    };
    let tainted = Raw {
        taints: vec![Taint::read("nvidia.com/gpu-error=fatal:NoSchedule").unwrap()],
        ..Raw::default()
    };
    let quarantined = Raw {
        annotations: [("quarantineHealthEvent".to_owned(), "[]".to_owned())].into(),
        ..Raw::default()
    };
    for raw in [
        labelled("muster.dev/managed", "false"),
        labelled("sagemaker.amazonaws.com/node-health-status", "Schedulable"),
        tainted,
        quarantined,
    ] {
        let (same, done) = correct(&raw, &cordoned());
        assert!(same == raw && done.is_empty(), "{raw:?}");
        assert!(NodeObject::read(raw).left_alone.is_some());
    }
    let managed = NodeObject::read(labelled("muster.dev/managed", "true"));
    assert_eq!(managed.left_alone, None);
}

#[test]
fn what_others_say_is_a_finding_and_may_exclude_or_announce_the_end() {
    let of = |kind: &str, status| {
        NodeObject::read(Raw {
            conditions: vec![condition(kind, status)],
            ..Raw::default()
        })
    };
    let warned = of("XIDErrors", Status::True);
    assert_eq!((&warned.excluded, &warned.leaving), (&None, &None));
    let found = &warned.findings[0];
    assert_eq!(
        (found.check.as_str(), found.severity, found.since_unix_us),
        ("kubernetes:XIDErrors", Severity::Warn, 9_000_000)
    );
    assert_eq!(
        found.reason,
        "condition XIDErrors=True (AKS): the driver reported XIDs; it says: it broke"
    );
    assert_eq!(of("XIDErrors", Status::False), NodeObject::default());
    let excluded = of("AcceleratedHardwareReady", Status::False);
    assert!(
        excluded
            .excluded
            .unwrap()
            .contains("AcceleratedHardwareReady")
    );
    let leaving = of("VMEventScheduled", Status::True);
    assert_eq!(leaving.findings[0].check, TERMINATION_NOTICE);
    assert!(leaving.leaving.is_some() && leaving.excluded.is_none());
    assert_eq!(of("Ready", Status::Unknown).findings.len(), 1);
    assert_eq!(of("Ready", Status::True).findings, []);
    let silent = |status| of("Ready", status).kubelet_silent;
    assert!(silent(Status::Unknown) && !silent(Status::False) && !silent(Status::True));
    let own = of(GPU_HEALTHY, Status::False);
    assert_eq!(own.findings, [], "Muster does not believe itself");
}

#[test]
fn a_text_is_cut_between_letters() {
    assert_eq!(cut("short", 5), "short");
    assert_eq!(cut("longer", 5), "lo...");
    let cut = cut(&"\u{e4}".repeat(600), 1_024);
    assert!(cut.len() <= 1_024 && cut.ends_with("..."), "{}", cut.len());
}
