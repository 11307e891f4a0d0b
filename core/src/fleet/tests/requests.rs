//! What users and operators ask for, and what nodes are shown and given. Each rule is tested once.

use super::*;
use crate::spec::JobSpec;

#[test]
fn submitting_twice_makes_one_job() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    let again = bench.submit("digits", document(1, 1, 1));
    assert!(matches!(again, Answer::Job { existed: true, .. }));
    let other = bench.submit("digits", document(1, 1, 2));
    let Answer::Refused(Refusal::JobExists { fields, .. }) = other else {
        panic!("{other:?}")
    };
    assert_eq!(fields, "spec.maxReplicas");
    assert_eq!(bench.fleet.jobs.len(), 1);
}

/// A job of one node.
fn submission_in(namespace: &str, name: &str) -> (JobName, JobSpec) {
    let metadata = Metadata {
        name: name.into(),
        namespace: Some(namespace.into()),
    };
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata,
        spec: document(1, 1, 1),
    };
    document.check().unwrap()
}

pub(super) fn submission(name: &str) -> (JobName, JobSpec) {
    submission_in("default", name)
}

/// Each namespace has a share of the jobs, and of the submissions in a second.
#[test]
fn a_namespace_cannot_shut_out_another() {
    let mut bench = Bench::new(&["a"]);
    let policy = &mut bench.fleet.policy;
    (policy.jobs_max, policy.namespace_jobs_max) = (5, 3);
    (policy.submits_per_second, policy.submits_burst) = (1, 4);
    let submit = |bench: &mut Bench, namespace: &str, job: &str, validate_only: bool| {
        let (name, spec) = submission_in(namespace, job);
        bench.request(Request::Submit {
            name,
            spec,
            uid: format!("{namespace}-{job}").into(),
            request_id: String::new(),
            validate_only,
        })
    };
    let refused = |answer: Answer| match answer {
        Answer::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    let taken = |answer: &Answer| matches!(answer, Answer::Job { .. } | Answer::Planned { .. });
    for job in ["a", "b", "c"] {
        assert!(taken(&submit(&mut bench, "red", job, false)));
    }
    let full = "namespace red has 3 jobs, and one namespace may have 3 (--namespace-jobs-max of the coordinator); 0 of them are over: delete \
                those (muster delete job NAME), and give jobs ttlSecondsAfterFinished";
    for validate_only in [false, true] {
        let told = refused(submit(&mut bench, "red", "d", validate_only));
        assert_eq!(told, full);
    }
    // What is there already is no new job.
    assert!(taken(&submit(&mut bench, "red", "a", false)));
    assert!(taken(&submit(&mut bench, "blue", "a", false)));
    bench.request(Request::Cancel {
        name: submission_in("red", "b").0,
    });
    let told = refused(submit(&mut bench, "red", "d", false));
    assert!(told.contains("1 of them are over"), "{told}");
    // One is deleted, and there is room. The fourth of the burst is the last.
    bench.request(Request::Delete {
        name: submission_in("red", "b").0,
    });
    assert!(taken(&submit(&mut bench, "red", "d", false)));
    bench.request(Request::Cancel {
        name: submission_in("red", "d").0,
    });
    bench.request(Request::Delete {
        name: submission_in("red", "d").0,
    });
    let told = refused(submit(&mut bench, "red", "e", false));
    let often = "namespace red has submitted 4 jobs at once, and may submit 1 in a second (--submits-per-second and --submits-burst of the \
                 coordinator); try again in 1s";
    assert_eq!(told, often);
    assert!(taken(&submit(&mut bench, "blue", "b", true)));
    bench.pass(SECOND);
    assert!(taken(&submit(&mut bench, "red", "e", false)));
}

/// Submits with the request id `r1`.
fn submit_as_r1(bench: &mut Bench, namespace: &str, name: &str, uid: &str) -> Answer {
    let (name, spec) = submission_in(namespace, name);
    bench.request(Request::Submit {
        name,
        spec,
        uid: uid.into(),
        request_id: "r1".into(),
        validate_only: false,
    })
}

#[test]
fn one_request_id_in_two_namespaces_is_two_submissions() {
    let mut bench = Bench::new(&["a", "b"]);
    for (namespace, uid) in [("red", "u1"), ("blue", "u2")] {
        let first = submit_as_r1(&mut bench, namespace, "digits", uid);
        assert!(
            matches!(&first, Answer::Job { job, existed: false } if job.record.uid == uid.into()),
            "{first:?}"
        );
        let again = submit_as_r1(&mut bench, namespace, "digits", "u3");
        assert!(
            matches!(&again, Answer::Job { job, existed: true } if job.record.uid == uid.into()),
            "{again:?}"
        );
    }
    assert_eq!(bench.fleet.jobs.len(), 2);
}

#[test]
fn a_cordon_and_the_events_of_a_request_name_who_asked() {
    let mut bench = Bench::new(&["a"]);
    let unknown = |claimed: &str| Actor::Unknown {
        claimed: claimed.into(),
    };
    for (actor, by) in [
        (Actor::Local { uid: 0 }, "root"),
        (Actor::Local { uid: 1000 }, "user 1000"),
        (unknown("ann"), "ann"),
        (unknown(""), "unknown user"),
        (unknown("muster"), "unknown user"),
    ] {
        bench.actor = actor.clone();
        bench.request(Request::Cordon {
            node: "a".into(),
            reason: "fan".into(),
        });
        let view = bench.fleet.node_view(&"a".into()).unwrap();
        assert_eq!(view.record.cordon.unwrap().by, by.into());
        let event = bench.events.last().unwrap();
        assert_eq!(
            (event.reason.as_str(), &event.actor),
            ("NodeCordoned", &Some(actor))
        );
    }
    bench.actor = unknown(&"x".repeat(600));
    let refused = bench.request(Request::Cordon {
        node: "a".into(),
        reason: "fan".into(),
    });
    assert!(
        matches!(&refused, Answer::Refused(Refusal::Invalid { field, .. }) if field == "by"),
        "{refused:?}"
    );
    bench.cut("a");
    bench.pass(10 * SECOND);
    let lost = bench.events.last().unwrap();
    assert_eq!((lost.reason.as_str(), &lost.actor), ("NodeLost", &None));
}

#[test]
fn one_request_id_is_one_submission_whatever_its_name() {
    let mut bench = Bench::new(&["a"]);
    let submit =
        |bench: &mut Bench, name: &str, uid: &str| submit_as_r1(bench, "default", name, uid);
    submit(&mut bench, "digits", "u1");
    let again = submit(&mut bench, "digits", "u2");
    assert!(matches!(again, Answer::Job { existed: true, .. }));
    cancel(&mut bench, "digits");
    let late = submit(&mut bench, "digits", "u3");
    assert!(
        matches!(&late, Answer::Job { job, existed: true } if job.record.uid == "u1".into()),
        "the retry of a job that is over: {late:?}"
    );
    let renamed = submit(&mut bench, "other", "u4");
    assert!(
        matches!(&renamed, Answer::Refused(Refusal::JobExists { fields, .. }) if fields == "metadata.name"),
        "{renamed:?}"
    );
    assert_eq!(bench.fleet.jobs.len(), 1);
}

#[test]
fn cordons_beyond_the_cap_are_withheld_and_said() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    for (node, mark) in [("a", "one"), ("b", "two")] {
        for job in [mark, mark, "three"] {
            let record = &mut bench.fleet.nodes.get_mut(&node.into()).unwrap().record;
            let name = JobName {
                namespace: "default".into(),
                name: job.into(),
            };
            let (at, lasted) = (bench.now, Duration::ZERO);
            record.marks.push(Mark {
                at,
                job: job.into(),
                name,
                cause: Cause::NodeLost,
                lasted,
                standing: Standing::Node,
            });
        }
    }
    bench.submit("digits", document(2, 2, 2));
    for node in ["a", "b"] {
        bench.cut(node);
        bench.pass(6 * SECOND);
        bench.agents.get_mut(&node.into()).unwrap().boot += 1;
        bench.connect(node);
        bench.pass(2 * SECOND);
    }
    let cordoned: Vec<&str> = bench
        .stored_nodes
        .values()
        .filter(|n| n.cordon.is_some())
        .map(|n| n.name.as_str())
        .collect();
    assert_eq!(cordoned, ["a"], "one of three is a tenth already");
    assert!(
        bench
            .events
            .iter()
            .any(|event| event.reason == "CordonWithheld" && event.node == Some("b".into()))
    );
}

#[test]
fn a_suspect_node_gets_no_new_work() {
    let mut bench = Bench::new(&["a", "b"]);
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.frozen = true;
    bench.pass(4 * SECOND);
    assert_eq!(bench.fleet.node_views()[0].liveness, Liveness::Suspect);
    bench.submit("solo", document(1, 1, 1));
    assert_eq!(bench.members("solo"), ["b"]);
    bench.submit("two", document(1, 1, 1));
    assert_eq!(
        bench.job("two").message,
        "0 of at least 1 nodes available: a suspect, b occupied"
    );
}

#[test]
fn every_end_is_acknowledged_so_that_its_runner_may_go() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(1, 1, 1));
    bench.rank_exits("one", 0, Exit::Signal(11), None);
    bench.pass(SECOND);
    bench.rank_exits("one", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    bench.submit("two", document(1, 1, 1));
    cancel(&mut bench, "two");
    assert!(
        bench.agents.values().all(|agent| agent.runs.is_empty()),
        "{:?}",
        bench.agents[&"a".into()].runs
    );
}

#[test]
fn a_cordoned_node_gets_no_new_work_and_loses_none() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(1, 1, 1));
    bench.request(Request::Cordon {
        node: "a".into(),
        reason: "fan".into(),
    });
    bench.pass(SECOND);
    assert_eq!(bench.members("one"), ["a"]);
    bench.submit("two", document(1, 1, 2));
    assert_eq!(bench.members("two"), ["b"]);
    bench.rank_exits("one", 0, Exit::Code(1), None);
    bench.pass(SECOND);
    assert_eq!(
        bench.job("one").reason,
        Reason::BelowMinimum,
        "its next generation does not go back to a cordoned node"
    );
}

#[test]
fn cancel_stops_everything_and_is_for_ever() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    bench.request(Request::Cancel { name });
    assert_eq!(bench.job("digits").phase, Phase::Cancelled);
    bench.pass(60 * SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Cancelled);
    assert!(
        bench
            .agents
            .values()
            .all(|agent| agent.runs.values().all(|run| run.phase.is_over()))
    );
}

#[test]
fn an_old_store_is_refused_by_an_agent_that_has_seen_a_newer_term() {
    let mut bench = Bench::new(&[]);
    let hello = Hello {
        node: "a".into(),
        boot_id: "boot".into(),
        uptime: None,
        incarnation: 1,
        speaks: Speaks::OURS,
        term_seen: Term(5),
        epoch_seen: NodeEpoch(1),
        jobs_seen: BTreeMap::new(),
        report: NodeReport::default(),
        runs: Vec::new(),
    };
    let effects = bench.input(Input::Connected {
        session: SessionId(9),
        hello,
    });
    assert!(
        matches!(&effects[..], [Effect::Refuse { why, .. }] if why.contains("--min-term 6")),
        "{effects:?}"
    );
    assert_eq!(bench.fleet.node_views().len(), 0);
}

#[test]
fn nodes_are_shown_as_the_registry_judges_them() {
    let mut bench = Bench::new(&["a"]);
    bench.cut("a");
    assert_eq!(bench.fleet.node_views()[0].liveness, Liveness::Suspect);
    bench.pass(6 * SECOND);
    assert_eq!(bench.fleet.node_views()[0].liveness, Liveness::Lost);
}

#[test]
fn a_job_of_an_object_is_changed_by_its_object_only() {
    let (ann, object) = (Actor::Local { uid: 1000 }, Actor::Object);
    let mut bench = Bench::new(&["a", "b"]);
    bench.fleet.policy.follows_jobs = true;
    bench.actor = object.clone();
    bench.submit("digits", document(1, 1, 2));
    let uid = bench.job("digits").uid.clone();
    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    let scale = || Request::Scale {
        name: name.clone(),
        nodes: 2,
    };
    let delete = || Request::Delete { name: name.clone() };
    let refused = |bench: &mut Bench, request: Request| {
        bench.actor = ann.clone();
        match bench.request(request) {
            Answer::Refused(Refusal::Precondition(why)) => why,
            answer => panic!("{answer:?}"),
        }
    };
    assert_eq!(
        refused(&mut bench, scale()),
        "job default/digits belongs to a MusterJob object, so change the object: kubectl scale mj/digits --replicas=2 -n default"
    );
    assert_eq!(bench.job("digits").replicas, 1);
    bench.actor = object.clone();
    bench.request(scale());
    assert_eq!(bench.job("digits").replicas, 2);
    let scaled = bench.events.iter().find(|event| event.reason == "Scaled");
    assert_eq!(scaled.unwrap().actor, Some(object.clone()));
    // To end it contradicts nothing that the object says.
    bench.actor = ann.clone();
    cancel(&mut bench, "digits");
    assert_eq!(bench.job("digits").phase, Phase::Cancelled);
    let why = refused(&mut bench, delete());
    assert!(
        why.ends_with("kubectl delete mj/digits -n default"),
        "{why}"
    );
    // A coordinator that follows no objects must leave its users a way.
    bench.fleet.policy.follows_jobs = false;
    bench.actor = ann;
    assert_eq!(bench.request(delete()), Answer::Done);

    // The same object again: nodes know how far its uid came.
    bench.actor = object;
    let (name, spec) = submission("digits");
    let again = bench.request(Request::Submit {
        name,
        spec,
        uid,
        request_id: String::new(),
        validate_only: false,
    });
    assert!(
        matches!(&again, Answer::Refused(Refusal::Precondition(why)) if why.contains("was deleted in Muster")),
        "{again:?}"
    );
}
