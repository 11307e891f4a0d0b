//! Each step of the order, by two records that need it.

use super::*;
use crate::{
    fleet::{
        job::{GenerationRecord, Member, tests as jobs},
        node_record::{Cordon, Halt},
    },
    id::NodeEpoch,
    time::Timestamp,
};

fn job(uid: &str) -> JobRecord {
    JobRecord {
        uid: uid.into(),
        ..jobs::record()
    }
}

fn on(mut job: JobRecord, number: u64, nodes: &[&str]) -> JobRecord {
    let members: Vec<Member> = nodes
        .iter()
        .map(|node| Member {
            node: (*node).into(),
            boot_id: "boot".into(),
            gpus: Vec::new(),
            addresses: Vec::new(),
            seats: Vec::new(),
        })
        .collect();
    job.current = Some(GenerationRecord {
        members: members.into(),
        ..jobs::generation(number)
    });
    job.last_generation = Generation(number);
    job
}

/// The job after all members of its generation have died.
fn bereft(mut job: JobRecord) -> JobRecord {
    let mut generation = job.current.take().unwrap();
    let nodes = generation.members.iter().map(|member| member.node.clone());
    generation.dead = nodes.collect();
    job.retiring.push(generation);
    job.keep_proven_as_history();
    job
}

fn node(name: &str) -> NodeRecord {
    NodeRecord {
        name: name.into(),
        epoch: NodeEpoch(1),
        boot_id: "boot".into(),
        first_seen: Timestamp(1),
        gone: false,
        gone_since: None,
        cordon: None,
        pod_of: None,
        hold_off: None,
        ended: None,
        overruled: None,
        told_excluded: None,
        halt: None,
        marks: Vec::new(),
    }
}

fn changed_job(before: JobRecord, after: JobRecord) -> Altered {
    Altered::Job {
        before: Some(before),
        after: Box::new(after),
    }
}

fn changed_node(after: NodeRecord) -> Altered {
    Altered::Node {
        before: Some(node(after.name.as_str())),
        after: Box::new(after),
    }
}

/// What is written, in order, in short.
fn written(altered: Vec<Altered>) -> Vec<String> {
    let short = |change: &Change| match change {
        Change::PutJob(job) => match &job.current {
            Some(current) => format!("{} g{}", job.uid, current.number),
            None => job.uid.to_string(),
        },
        Change::DeleteJob(uid) => format!("-{uid}"),
        Change::PutNode(node) => node.name.to_string(),
        Change::DeleteNode(name) => format!("-{name}"),
        Change::PutTombstone(tombstone) => format!("+{}", tombstone.run.job),
        Change::DeleteTombstone(uid) => format!("-tombstone {uid}"),
        Change::PutHistory(record) => format!("left of {}", record.uid),
        Change::DropHistory(number) => format!("-history {number}"),
        Change::PutOutbox(_) => "outbox".to_owned(),
        Change::Event(event) => format!("event {}", event.sequence),
    };
    in_order(altered).iter().map(short).collect()
}

#[test]
fn who_gives_a_node_up_is_written_before_who_takes_it() {
    let (ends, opens) = (on(job("z"), 1, &["n1"]), on(job("a"), 1, &["n1"]));
    let altered = vec![
        changed_job(job("a"), opens),
        changed_job(ends.clone(), bereft(ends)),
    ];
    assert_eq!(written(altered), ["z", "a g1"]);
}

#[test]
fn jobs_that_change_places_give_up_before_they_take() {
    let (a, b) = (on(job("a"), 1, &["n1"]), on(job("b"), 1, &["n2"]));
    let (moved_a, moved_b) = (
        on(bereft(a.clone()), 2, &["n2"]),
        on(bereft(b.clone()), 2, &["n1"]),
    );
    let altered = vec![changed_job(a.clone(), moved_a), changed_job(b, moved_b)];
    let changes = in_order(altered);
    let Change::PutJob(first) = &changes[0] else {
        panic!("{changes:?}")
    };
    let mut dead = a;
    let generation = dead.current.as_mut().unwrap();
    generation.dead.insert("n1".into());
    assert_eq!(**first, dead, "the deaths, and nothing else");
    let numbers: Vec<_> = changes
        .iter()
        .map(|change| match change {
            Change::PutJob(job) => (job.uid.as_str(), job.last_generation.0),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, [("a", 1), ("b", 1), ("a", 2), ("b", 2)]);
}

#[test]
fn a_job_that_keeps_its_place_is_written_once() {
    let a = on(job("a"), 1, &["n1"]);
    let again = on(bereft(a.clone()), 2, &["n1"]);
    let b = on(job("b"), 1, &["n2"]);
    let altered = vec![changed_job(a, again), changed_job(job("b"), b)];
    assert_eq!(written(altered), ["a g2", "b g1"]);
}

#[test]
fn a_node_comes_before_jobs_with_its_boot_or_halt_and_after_them_with_the_rest() {
    let event = Event {
        sequence: 7,
        at: Timestamp(1),
        warning: false,
        reason: "Deleted".into(),
        message: String::new(),
        job: None,
        node: None,
        generation: None,
        actor: None,
    };
    let (mut halted, mut cordoned, mut met) = (node("halted"), node("cordoned"), node("met"));
    let mut rebooted = node("rebooted");
    rebooted.boot_id = "another".into();
    halted.halt = Some(Halt {
        at: Timestamp(1),
        why: String::new(),
    });
    cordoned.cordon = Some(Cordon {
        by: "muster".into(),
        reason: String::new(),
        at: Timestamp(1),
        jobs: Vec::new(),
    });
    met.epoch = NodeEpoch(2);
    let altered = vec![
        Altered::Event(event),
        Altered::JobDeleted("old".into()),
        Altered::HistoryDropped(3),
        Altered::Outbox(Arc::default()),
        Altered::History(Arc::new(HistoryRecord::of(&job("old"), &[]))),
        Altered::Tombstone(Tombstone {
            run: on(job("old"), 1, &[]).current.unwrap().run(&"old".into()),
            nodes: Vec::new(),
            deleted: Timestamp(1),
        }),
        changed_node(cordoned),
        Altered::NodeDeleted("gone".into()),
        changed_node(met),
        changed_node(rebooted),
        changed_job(job("a"), on(job("a"), 1, &["new"])),
        changed_node(halted),
        Altered::Node {
            before: None,
            after: Box::new(node("new")),
        },
    ];
    let expected = [
        "rebooted",
        "halted",
        "new",
        "a g1",
        "met",
        "-gone",
        "cordoned",
        "outbox",
        "left of old",
        "+old",
        "-old",
        "-history 3",
        "event 7",
    ];
    assert_eq!(written(altered), expected);
}

#[test]
fn a_node_with_a_new_boot_and_a_mark_is_written_twice() {
    let mut after = node("n");
    after.boot_id = "another".into();
    after.cordon = Some(Cordon {
        by: "muster".into(),
        reason: String::new(),
        at: Timestamp(1),
        jobs: Vec::new(),
    });
    let job = changed_job(job("a"), on(job("a"), 1, &["n"]));
    let changes = in_order(vec![job, changed_node(after.clone())]);
    let [
        Change::PutNode(first),
        Change::PutJob(_),
        Change::PutNode(second),
    ] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!(**second, after);
    after.cordon = None;
    assert_eq!(**first, after, "the boot, and nothing else");
}
