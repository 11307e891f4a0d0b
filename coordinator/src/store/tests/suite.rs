//! What every store must do, and records to do it with. It is compiled twice: beside the stores that need
//! no server, and where there is an API server, so it knows the stores by its parent only.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{
    fleet::{
        Change, Cordon, Event, NodeRecord, Tombstone,
        commit::{RecordKey, Versions},
        history::HistoryRecord,
        job::JobRecord,
        notify::Outbox,
    },
    id::{Generation, JobName, JobUid, NodeEpoch, Term},
    node_report::NodeReport,
    run::RunId,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};

use super::{FLEET_MAX, Loaded, Store, StoreError};

pub(crate) fn job(number: u64) -> JobRecord {
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: format!("job-{number}"),
            namespace: None,
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        },
    };
    let (name, spec) = document.check().unwrap();
    JobRecord::submitted(
        JobUid::from(format!("uid-{number:06}")),
        name,
        spec,
        String::new(),
        Timestamp(number),
    )
}

pub(crate) fn node(name: &str) -> NodeRecord {
    NodeRecord {
        name: name.into(),
        epoch: NodeEpoch(3),
        boot_id: "boot".into(),
        first_seen: Timestamp(1),
        gone: false,
        gone_since: None,
        cordon: Some(Cordon {
            by: "ann".into(),
            reason: "fan".into(),
            at: Timestamp(2),
            jobs: Vec::new(),
        }),
        pod_of: None,
        hold_off: None,
        ended: None,
        overruled: None,
        told_excluded: None,
        marks: Vec::new(),
        halt: None,
    }
}

pub(crate) fn event(sequence: u64) -> Event {
    Event {
        sequence,
        at: Timestamp(sequence),
        warning: false,
        reason: "Submitted".into(),
        message: format!("event {sequence}"),
        job: None,
        node: Some("a".into()),
        generation: None,
        actor: None,
    }
}

pub(crate) fn tombstone(number: u64) -> Change {
    put_tombstone(Tombstone {
        run: RunId {
            job: job(number).uid,
            generation: Generation(3),
        },
        nodes: vec!["a".into()],
        deleted: Timestamp(9),
    })
}

pub(crate) fn put_tombstone(tombstone: Tombstone) -> Change {
    Change::PutTombstone(Box::new(tombstone))
}

pub(crate) fn put(job: JobRecord) -> Change {
    Change::PutJob(Box::new(job))
}

pub(crate) fn said(sequence: u64) -> Change {
    Change::Event(Box::new(event(sequence)))
}

/// What is left of a job, under this number.
pub(crate) fn left(number: u64) -> Arc<HistoryRecord> {
    Arc::new(HistoryRecord {
        number,
        ..HistoryRecord::of(&job(number), &[])
    })
}

pub(crate) fn leave(numbers: std::ops::RangeInclusive<u64>) -> Vec<Change> {
    numbers
        .map(|number| Change::PutHistory(left(number)))
        .collect()
}

/// A store with the versions of its records, as a coordinator has them.
pub(crate) struct Writer<S> {
    pub(crate) store: S,
    pub(crate) versions: Versions,
}

impl<S: Store> Writer<S> {
    pub(crate) fn new(mut store: S) -> Self {
        let known = store.load().unwrap().versions;
        let term = store.next_term(Term(0)).unwrap();
        Self {
            store,
            versions: Versions::loaded(term, known),
        }
    }

    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let writes = self.versions.writes(changes.to_vec());
        self.store.commit(&writes)
    }
}

/// What waits to be sent to people after so many messages.
pub(crate) fn outbox(last: u64) -> Change {
    let dropped = BTreeMap::from([("chat".to_owned(), last)]);
    Change::PutOutbox(Arc::new(Outbox {
        last,
        dropped,
        ..Outbox::default()
    }))
}

/// What every store must do. `reopen` ends the store as the death of its process would, and opens
/// it again.
pub(crate) fn suite<S: Store>(mut store: S, reopen: impl Fn(S) -> S) {
    assert_eq!(
        store.load().unwrap(),
        Loaded::default(),
        "a new store is empty"
    );
    assert_eq!(store.next_term(Term(0)).unwrap(), Term(1));
    assert_eq!(store.next_term(Term(0)).unwrap(), Term(2));
    assert_eq!(store.next_term(Term(40)).unwrap(), Term(40));

    let mut writer = Writer::new(store);
    writer.commit(&[]).unwrap();
    writer
        .commit(&[
            put(job(1)),
            put(job(2)),
            Change::PutNode(Box::new(node("a"))),
            said(1),
        ])
        .unwrap();
    let mut changed = job(2);
    changed.message = "changed".into();
    writer
        .commit(&[
            tombstone(1),
            tombstone(9),
            Change::DeleteJob(job(1).uid),
            put(changed.clone()),
            Change::PutNode(Box::new(node("b"))),
            said(2),
        ])
        .unwrap();
    let report = |slots| {
        Arc::new(NodeReport {
            slots,
            ..NodeReport::default()
        })
    };
    writer
        .store
        .keep_reports(&[("a".into(), report(1)), ("b".into(), report(2))])
        .unwrap();
    writer
        .store
        .keep_reports(&[("b".into(), report(3))])
        .unwrap();
    writer
        .commit(&[
            Change::DeleteNode("a".into()),
            Change::DeleteNode("never-there".into()),
            Change::DeleteTombstone(job(9).uid),
        ])
        .unwrap();

    store = reopen(writer.store);
    let loaded = store.load().unwrap();
    assert_eq!(loaded.fleet.jobs, [changed]);
    let keys: Vec<RecordKey> = loaded.versions.into_iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        [
            RecordKey::Job(job(2).uid),
            RecordKey::Node("b".into()),
            RecordKey::Tombstone(job(1).uid)
        ]
    );
    assert_eq!(loaded.fleet.nodes, [node("b")]);
    let stored: Vec<Change> = loaded
        .fleet
        .tombstones
        .into_iter()
        .map(put_tombstone)
        .collect();
    assert_eq!(stored, [tombstone(1)]);
    assert_eq!(
        loaded.fleet.reports,
        [("b".into(), (*report(3)).clone())],
        "and none of a deleted node"
    );
    assert_eq!(loaded.fleet.last_event, 2);
    assert_eq!(loaded.events, [event(1), event(2)]);
    assert_eq!(
        store.next_term(Term(0)).unwrap(),
        Term(42),
        "terms go on over a restart"
    );

    let of_job = |sequence| {
        let named = (
            job(2).uid,
            JobName {
                namespace: "default".into(),
                name: "job".into(),
            },
        );
        Change::Event(Box::new(Event {
            job: Some(named),
            ..event(sequence)
        }))
    };
    let mut writer = Writer::new(store);
    writer.commit(&[of_job(3)]).unwrap();
    let most = FLEET_MAX as u64;
    let many: Vec<Change> = (4..=most + 6).map(said).collect();
    writer.commit(&many).unwrap();
    store = reopen(writer.store);
    let loaded = store.load().unwrap();
    let numbers: Vec<u64> = loaded.events.iter().map(|event| event.sequence).collect();
    assert_eq!(
        (numbers.len() as u64, &numbers[..2]),
        (most + 1, &[3, 7][..]),
        "the oldest of the fleet's made room, the job's did not"
    );
    assert_eq!(loaded.fleet.last_event, most + 6);
    let mut writer = Writer::new(store);
    writer
        .commit(&[Change::DeleteJob(job(2).uid), of_job(most + 7)])
        .unwrap();
    store = reopen(writer.store);
    let numbers: Vec<u64> = store
        .load()
        .unwrap()
        .events
        .iter()
        .map(|event| event.sequence)
        .collect();
    assert_eq!(
        (numbers.len() as u64, numbers[0]),
        (most, 8),
        "a deleted job's events are the fleet's, also the one that tells of it"
    );

    store = history_is_kept(store, &reopen);
    store = what_waits_to_be_sent_is_kept(store, &reopen);
    another_writer_is_noticed(store);
}

/// What is left of jobs survives the end of the process, also of the job, until it is dropped.
fn history_is_kept<S: Store>(store: S, reopen: &impl Fn(S) -> S) -> S {
    let numbers = |store: &mut S| -> Vec<u64> {
        let history = store.load().unwrap().fleet.history;
        history.iter().map(|record| record.number).collect()
    };
    let mut writer = Writer::new(store);
    let mut changes = vec![put(job(1))];
    changes.extend(leave(1..=3));
    changes.push(Change::DeleteJob(job(1).uid));
    writer.commit(&changes).unwrap();
    let mut store = reopen(writer.store);
    let history = store.load().unwrap().fleet.history;
    assert_eq!(history, [left(1), left(2), left(3)]);
    // Many at once, and each of them once.
    let mut writer = Writer::new(store);
    writer.commit(&leave(4..=200)).unwrap();
    let again = writer.commit(&leave(200..=200)).unwrap_err();
    let told = again.to_string();
    assert!(
        told.starts_with("history record 200 was written by another"),
        "{told}"
    );
    store = reopen(writer.store);
    assert_eq!(numbers(&mut store), (1..=200).collect::<Vec<_>>());
    // A store may drop some of them later, with others: the next start says so again.
    let mut writer = Writer::new(store);
    writer.commit(&[Change::DropHistory(150)]).unwrap();
    writer.commit(&leave(201..=201)).unwrap();
    store = reopen(writer.store);
    let kept = numbers(&mut store);
    assert!(
        kept.ends_with(&(151..=201).collect::<Vec<_>>()) && kept[0] > 100,
        "{kept:?}"
    );
    let mut writer = Writer::new(store);
    writer.commit(&[Change::DropHistory(201)]).unwrap();
    store = reopen(writer.store);
    assert_eq!(numbers(&mut store), [0_u64; 0]);
    store
}

/// What waits to be sent is one record, which is replaced, and which nobody else may have replaced.
fn what_waits_to_be_sent_is_kept<S: Store>(store: S, reopen: impl Fn(S) -> S) -> S {
    let mut writer = Writer::new(store);
    writer.commit(&[outbox(1), outbox(2)]).unwrap();
    let mut deposed = writer.versions.clone();
    writer.commit(&[outbox(3)]).unwrap();
    let mut store = reopen(writer.store);
    let kept = store.load().unwrap().fleet.outbox;
    assert_eq!(Change::PutOutbox(Arc::new(kept)), outbox(3));
    let late = store.commit(&deposed.writes(vec![outbox(4)]));
    let late = late.unwrap_err().to_string();
    assert!(late.starts_with("outbox was written by another"), "{late}");
    let mut writer = Writer::new(store);
    writer.commit(&[outbox(5)]).unwrap();
    writer.store
}

/// Two coordinators that both believe to decide. The second has loaded what the first wrote.
fn another_writer_is_noticed(store: impl Store) {
    let mut first = Writer::new(store);
    let put_node = || Change::PutNode(Box::new(node("c")));
    first.commit(&[put(job(7)), put_node()]).unwrap();
    let mut second = Writer {
        versions: Versions::loaded(Term(99), first.store.load().unwrap().versions),
        store: first.store,
    };
    let mut other = job(7);
    other.message = "by the second".into();
    second.commit(&[put(other.clone())]).unwrap();
    second
        .commit(&[Change::DeleteNode("c".into()), put_node()])
        .unwrap();
    first.store = second.store;

    let refused = [
        (put(job(7)), "job uid-000007", "99.1"),
        (Change::DeleteJob(job(7).uid), "job uid-000007", "99.1"),
        (put_node(), "node c", "99.3"),
    ];
    for (change, record, version) in refused {
        let mut deposed = Writer {
            versions: first.versions.clone(),
            store: first.store,
        };
        let error = deposed.commit(&[change]).unwrap_err();
        assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{record} was written by another: "))
                && text.ends_with(&format!("the store has version {version}")),
            "{text}"
        );
        first.store = deposed.store;
    }
    // A record that the first does not know, and an event that is told already.
    let last = first.store.load().unwrap().fleet.last_event;
    let mut unknown = Writer {
        versions: Versions::loaded(Term(1), []),
        store: first.store,
    };
    for change in [put(job(7)), said(last)] {
        let error = unknown.commit(&[change]).unwrap_err();
        assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
    }
    let loaded = unknown.store.load().unwrap();
    assert!(loaded.fleet.jobs.contains(&other), "nothing was changed");
}
