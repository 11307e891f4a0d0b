//! The engine's order: it tells nobody before it has stored, ends when it cannot store, and ticks
//! when no input comes.

use std::{
    io,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc as std_mpsc,
    },
    time::Duration,
};

use muster_core::{
    fleet::{Actor, Change, Request, commit::Write},
    hello::Hello,
    node_report::NodeReport,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
};
use muster_handle::handle::NoAnswer;

use super::*;
use crate::store::{Lead, Leadership, memory::MemoryStore};

/// Reports every commit and waits for permission to go on. Fails the commits that are refused.
struct GuardedStore {
    inner: MemoryStore,
    deposed: Arc<AtomicBool>,
    commits: std_mpsc::Sender<Vec<Write>>,
    leave: std_mpsc::Receiver<bool>,
}

impl Leadership for GuardedStore {
    fn lead(&self) -> Lead {
        let deposed = self.deposed.clone();
        Lead::new(move || !deposed.load(Ordering::SeqCst))
    }
}

impl Store for GuardedStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.inner.load()
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        self.inner.next_term(at_least)
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.commits.send(writes.to_vec()).unwrap();
        if self.leave.recv().unwrap() {
            return self.inner.commit(writes);
        }
        Err(StoreError::Write {
            store: "store file /state/muster.redb".into(),
            source: Box::new(io::Error::from(io::ErrorKind::StorageFull)),
        })
    }

    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError> {
        self.inner.keep_reports(reports)
    }
}

struct Guard {
    deposed: Arc<AtomicBool>,
    commits: std_mpsc::Receiver<Vec<Write>>,
    leave: std_mpsc::Sender<bool>,
}

fn guarded() -> (GuardedStore, Guard) {
    let (commits, seen) = std_mpsc::channel();
    let (give, leave) = std_mpsc::channel();
    let deposed = Arc::new(AtomicBool::new(false));
    (
        GuardedStore {
            inner: MemoryStore::default(),
            deposed: deposed.clone(),
            commits,
            leave,
        },
        Guard {
            deposed,
            commits: seen,
            leave: give,
        },
    )
}

const ROOT: Actor = Actor::Local { uid: 0 };

fn submit(name: &str) -> Request {
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: name.into(),
            namespace: None,
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        },
    };
    let (job, spec) = document.check().unwrap();
    Request::Submit {
        name: job,
        spec,
        uid: JobUid::from(format!("uid-of-{name}")),
        request_id: String::new(),
        validate_only: false,
    }
}

/// The caller gets no answer, and may ask the coordinator that decides now.
#[tokio::test]
async fn a_coordinator_that_was_deposed_commits_and_answers_nothing() {
    for amid_commit in [false, true] {
        let (store, guard) = guarded();
        let shutdown = CancellationToken::new();
        let started = start(
            Box::new(store),
            Policy::default(),
            Term(0),
            shutdown.clone(),
        )
        .unwrap();
        guard.deposed.store(!amid_commit, Ordering::SeqCst);
        let other_takes_over = tokio::task::spawn_blocking(move || {
            // In the other case a commit would find nobody.
            if amid_commit {
                guard.commits.recv().unwrap();
                guard.deposed.store(true, Ordering::SeqCst);
                guard.leave.send(true).unwrap();
            }
        });
        let asked = started.handle.request(ROOT, submit("one"));
        let (refused, _) = tokio::join!(asked, other_takes_over);
        let ended = tokio::task::spawn_blocking(|| started.thread.join().unwrap());
        let ended = ended.await.unwrap().unwrap_err();
        assert!(matches!(ended, StoreError::Deposed), "{ended}");
        assert_eq!(refused, Err(NoAnswer::Ended));
    }
}

#[tokio::test]
async fn nobody_hears_of_a_decision_before_it_is_stored() {
    let (store, guard) = guarded();
    let shutdown = CancellationToken::new();
    let started = start(
        Box::new(store),
        Policy::default(),
        Term(0),
        shutdown.clone(),
    )
    .unwrap();
    let mut answer = Box::pin(started.handle.request(ROOT, submit("one")));
    assert!(
        tokio::time::timeout(Duration::from_millis(1), &mut answer)
            .await
            .is_err()
    );
    let changes = guard.commits.recv().unwrap();
    assert!(
        changes
            .iter()
            .any(|write| matches!(&write.change, Change::PutJob(job) if job.name.name == "one"))
    );
    // The engine waits in the commit: no answer, no view, no event.
    assert!(
        tokio::time::timeout(Duration::from_millis(20), &mut answer)
            .await
            .is_err()
    );
    assert_eq!(started.handle.jobs().borrow().after(None).count(), 0);
    assert_eq!(started.handle.events().borrow().last(), 0);

    guard.leave.send(true).unwrap();
    assert!(matches!(
        answer.await,
        Ok(Answer::Job { existed: false, .. })
    ));
    assert_eq!(
        started.handle.jobs().borrow().after(None).count(),
        1,
        "a caller that got an answer finds the job in a list"
    );
    shutdown.cancel();
    // Permits the commit that may be next.
    let _ = guard.leave.send(true);
    started.ended.await.unwrap_err();
}

fn hello(node: &str) -> Hello {
    Hello {
        node: node.into(),
        boot_id: "boot".into(),
        uptime: None,
        incarnation: 1,
        speaks: muster_core::protocol::Speaks::OURS,
        term_seen: Term(0),
        epoch_seen: muster_core::id::NodeEpoch(0),
        jobs_seen: std::collections::BTreeMap::new(),
        report: NodeReport::default(),
        runs: Vec::new(),
    }
}

#[tokio::test]
async fn a_burst_is_one_decision_and_one_commit_up_to_a_request() {
    let (store, guard) = guarded();
    let shutdown = CancellationToken::new();
    let started = start(
        Box::new(store),
        Policy::default(),
        Term(0),
        shutdown.clone(),
    )
    .unwrap();
    let mut first = Box::pin(started.handle.request(ROOT, submit("one")));
    assert!(
        tokio::time::timeout(Duration::from_millis(1), &mut first)
            .await
            .is_err()
    );
    guard.commits.recv().unwrap();
    // The engine waits in that commit. Behind it wait four nodes, a request and a fifth node.
    let mut nodes: Vec<_> = (1..=4)
        .map(|n| Box::pin(started.handle.connect(hello(&format!("node-{n}")))))
        .collect();
    for node in &mut nodes {
        assert!(
            tokio::time::timeout(Duration::from_millis(1), node)
                .await
                .is_err()
        );
    }
    let mut second = Box::pin(started.handle.request(ROOT, submit("two")));
    assert!(
        tokio::time::timeout(Duration::from_millis(1), &mut second)
            .await
            .is_err()
    );
    let mut fifth = Box::pin(started.handle.connect(hello("node-5")));
    assert!(
        tokio::time::timeout(Duration::from_millis(1), &mut fifth)
            .await
            .is_err()
    );

    guard.leave.send(true).unwrap();
    let burst = guard.commits.recv().unwrap();
    let stored = |changes: &[Write], name: &str| {
        changes.iter().any(
            |write| matches!(&write.change, Change::PutNode(node) if node.name.as_str() == name),
        )
    };
    assert!(
        (1..=4).all(|n| stored(&burst, &format!("node-{n}"))),
        "one commit for all that waited"
    );
    assert!(
        burst
            .iter()
            .any(|write| matches!(&write.change, Change::PutJob(job) if job.name.name == "two"))
    );
    assert!(
        !stored(&burst, "node-5"),
        "what came after a request is not part of its answer"
    );
    guard.leave.send(true).unwrap();
    assert!(stored(&guard.commits.recv().unwrap(), "node-5"));
    shutdown.cancel();
    for _ in 0..8 {
        let _ = guard.leave.send(true);
    }
    started.ended.await.unwrap_err();
}

#[tokio::test]
async fn a_commit_that_fails_ends_the_engine_and_is_answered_to_nobody() {
    let (store, guard) = guarded();
    let started = start(
        Box::new(store),
        Policy::default(),
        Term(0),
        CancellationToken::new(),
    )
    .unwrap();
    guard.leave.send(false).unwrap();
    let answer = started.handle.request(ROOT, submit("one")).await;
    assert_eq!(answer, Err(muster_handle::handle::NoAnswer::Ended));
    let error = started.thread.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "write to store file /state/muster.redb");
    assert_eq!(started.handle.jobs().borrow().after(None).count(), 0);
    assert_eq!(
        started.handle.request(ROOT, submit("two")).await,
        Err(muster_handle::handle::NoAnswer::Ended)
    );
}

#[tokio::test]
async fn a_shutdown_ends_it_with_its_record_whole() {
    let shutdown = CancellationToken::new();
    let started = start(
        Box::new(MemoryStore::default()),
        Policy::default(),
        Term(7),
        shutdown.clone(),
    )
    .unwrap();
    assert_eq!(started.term, Term(7));
    shutdown.cancel();
    started.ended.await.unwrap_err();
    started.thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn time_passes_when_nothing_comes() {
    let policy = Policy {
        heartbeat: Duration::from_millis(20),
        tick: Duration::from_millis(10),
        ..Policy::default()
    };
    let shutdown = CancellationToken::new();
    let started = start(
        Box::new(MemoryStore::default()),
        policy,
        Term(0),
        shutdown.clone(),
    )
    .unwrap();
    let (_, _orders) = started.handle.connect(hello("node-a")).await.unwrap();
    // The node sends nothing more, so only ticks can make it Lost.
    let mut nodes = started.handle.nodes();
    let lost = nodes.wait_for(|nodes| {
        nodes
            .get(&"node-a".into())
            .is_some_and(|node| node.liveness == muster_core::fleet::view::Liveness::Lost)
    });
    tokio::time::timeout(Duration::from_secs(30), lost)
        .await
        .unwrap()
        .unwrap();
    shutdown.cancel();
    started.thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn every_turn_that_did_something_is_counted() {
    let shutdown = CancellationToken::new();
    let mut started = start(
        Box::new(MemoryStore::default()),
        Policy::default(),
        Term(0),
        shutdown.clone(),
    )
    .unwrap();
    started.handle.request(ROOT, submit("one")).await.unwrap();
    let stats = loop {
        let stats = started.turns.recv().await.unwrap();
        assert!(!stats.is_idle(), "{stats:?}");
        if stats.events.contains_key("Submitted") {
            break stats;
        }
    };
    // The job, the event, the answer and what users see.
    assert!(stats.inputs >= 1 && stats.changes >= 2 && stats.effects >= 2);
    assert!(stats.done_us.0 > 0);
    shutdown.cancel();
    started.thread.join().unwrap().unwrap();
    while started.turns.recv().await.is_ok() {}
}

#[test]
fn a_deleted_job_gives_its_events_up_though_nothing_is_told_of_it() {
    use crate::store::tests as stores;
    use muster_handle::kept::FLEET_MAX;
    let job = stores::job(1);
    let event = |sequence, job| {
        let event = muster_core::fleet::Event {
            job,
            ..stores::event(sequence)
        };
        Change::Event(Box::new(event))
    };
    let mut versions = Versions::loaded(Term(1), []);
    let board = watch::Sender::new(Events::default());
    let of_job = event(1, Some((job.uid.clone(), job.name.clone())));
    publish_events(
        &board,
        versions.writes(vec![stores::put(job.clone()), of_job]),
    );
    publish_events(&board, versions.writes(vec![Change::DeleteJob(job.uid)]));
    let many = (2..).take(FLEET_MAX).map(|sequence| event(sequence, None));
    publish_events(&board, versions.writes(many.collect()));
    let oldest = board.borrow().after(0).next().map(|event| event.sequence);
    assert_eq!(oldest, Some(2), "the oldest made room");
}

/// Takes no record of the job `large`, or only of its end.
struct SmallStore {
    inner: MemoryStore,
    takes_the_end: bool,
}

impl SmallStore {
    fn refuses(&self, write: &Write) -> bool {
        let Change::PutJob(job) = &write.change else {
            return false;
        };
        let ends = job.ending.is_some() || job.phase.is_over();
        job.name.name == "large" && !(self.takes_the_end && ends)
    }
}

impl Leadership for SmallStore {
    fn lead(&self) -> Lead {
        Lead::for_life()
    }
}

impl Store for SmallStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.inner.load()
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        self.inner.next_term(at_least)
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let Some(at) = writes.iter().position(|write| self.refuses(write)) else {
            return self.inner.commit(writes);
        };
        let is_event = |write: &&Write| matches!(write.change, Change::Event(_));
        let before = writes[..at].iter().filter(|write| !is_event(write));
        self.inner.commit(&before.cloned().collect::<Vec<_>>())?;
        let Change::PutJob(job) = &writes[at].change else {
            unreachable!("nothing else is refused");
        };
        Err(StoreError::TooLarge {
            store: "the store".into(),
            job: job.uid.clone(),
            version: writes[at].becomes,
            source: "so many bytes".into(),
        })
    }

    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError> {
        self.inner.keep_reports(reports)
    }
}

#[tokio::test]
async fn a_job_whose_record_is_too_large_ends_and_nobody_else() {
    for takes_the_end in [true, false] {
        let store = SmallStore {
            inner: MemoryStore::default(),
            takes_the_end,
        };
        let shutdown = CancellationToken::new();
        let policy = Policy::default();
        let started = start(Box::new(store), policy, Term(0), shutdown.clone()).unwrap();
        for name in ["small", "large", "small-too"] {
            let answer = started.handle.request(ROOT, submit(name)).await;
            assert!(
                matches!(answer, Ok(Answer::Job { .. })),
                "{name}: {answer:?}"
            );
        }
        let mut jobs = started.handle.jobs();
        let is_over = |jobs: &muster_handle::board::Jobs| {
            let mut all = jobs.after(None);
            all.any(|(name, view)| name.name == "large" && view.record.phase.is_over())
        };
        let waiting = jobs.wait_for(is_over);
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        drop(waited.expect("it ends").unwrap());
        let told: Vec<(String, String)> = {
            let jobs = started.handle.jobs();
            let jobs = jobs.borrow();
            let all = jobs.after(None);
            all.map(|(name, view)| (name.name.clone(), view.record.reason.to_string()))
                .collect()
        };
        let reason = |name: &str| &told.iter().find(|(of, _)| of == name).unwrap().1;
        assert_eq!(reason("large"), "RecordTooLarge");
        assert_ne!(reason("small"), "RecordTooLarge");
        // What it tells of others is stored and told as ever, also after that.
        let after = started.handle.request(ROOT, submit("later")).await;
        assert!(matches!(after, Ok(Answer::Job { .. })), "{after:?}");
        shutdown.cancel();
        let ended = tokio::task::spawn_blocking(|| started.thread.join().unwrap());
        ended.await.unwrap().unwrap();
    }
}
