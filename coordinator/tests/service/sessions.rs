//! Agents' sessions: which agents are accepted, which session replaces which, and the effect of a
//! broken one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use muster_coordinator::store::{Lead, Leadership, Loaded, Store, StoreError, memory::MemoryStore};
use muster_core::{
    fleet::{Policy, commit::Write},
    id::{NodeName, Term},
    node_report::NodeReport,
};
use muster_proto::v1::{
    self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent,
};
use tokio::sync::mpsc;
use tonic::Code;

use crate::{
    agent::{FakeAgent, RawSession, hello, say},
    server::{Server, phase, reference, spec, within},
};

#[tokio::test]
async fn an_agent_is_welcomed_and_gets_its_whole_desired_state() {
    let server = Server::start().await;
    let mut session = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    match session.next().await.unwrap() {
        ToAgent::Welcome(welcome) => {
            assert_eq!(
                (welcome.term, welcome.epoch, welcome.heartbeat_interval_ms),
                (1, 1, 1_000)
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(session.next().await.unwrap(), ToAgent::Desired(desired) if desired.runs.is_empty())
    );

    session
        .up
        .send(say(FromAgent::Heartbeat(v1::Heartbeat { sequence: 77 })))
        .await
        .unwrap();
    let ToAgent::Heartbeat(reply) = session.next().await.unwrap() else {
        panic!("a heartbeat is answered")
    };
    assert!(reply.sequence == 77 && reply.unix_us > 0, "{reply:?}");

    let job = server.submit("one", spec(1)).await;
    match session.next().await.unwrap() {
        ToAgent::Desired(desired) => {
            assert_eq!((desired.term, desired.epoch, desired.runs.len()), (1, 1, 1));
            assert_eq!(
                (desired.runs[0].job_uid.as_str(), desired.runs[0].generation),
                (job.uid.as_str(), 1)
            );
            assert!(matches!(
                desired.runs[0].target,
                Some(v1::desired_run::Target::Ready(_))
            ));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_newer_session_of_the_same_machine_takes_over() {
    let server = Server::start().await;
    let mut first = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(matches!(first.next().await.unwrap(), ToAgent::Welcome(_)));
    assert!(matches!(first.next().await.unwrap(), ToAgent::Desired(_)));
    let mut second = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(
        matches!(second.next().await.unwrap(), ToAgent::Welcome(welcome) if welcome.epoch == 2)
    );
    let ended = first.next().await.unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (
            Code::FailedPrecondition,
            "a newer session of node-a took over"
        )
    );
    // The end of the old stream must not make the node look silent.
    second
        .up
        .send(say(FromAgent::Heartbeat(v1::Heartbeat { sequence: 1 })))
        .await
        .unwrap();
    while !matches!(second.next().await.unwrap(), ToAgent::Heartbeat(_)) {}
    let node = server
        .nodes()
        .get(v1::GetNodeRequest {
            name: "node-a".into(),
        })
        .await
        .unwrap()
        .into_inner()
        .node
        .unwrap();
    assert_eq!(node.state(), v1::NodeState::Ready);
}

#[tokio::test]
async fn another_machine_with_the_same_name_is_kept_out() {
    let server = Server::start().await;
    let mut first = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(matches!(first.next().await.unwrap(), ToAgent::Welcome(_)));
    let other = v1::Hello {
        boot_id: "another".into(),
        ..hello("node-a")
    };
    let refused = RawSession::open(&server, say(FromAgent::Hello(other)))
        .await
        .unwrap()
        .next()
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::FailedPrecondition,
            "another machine is connected as node-a: 127.0.0.1. Start the agent of this one, 127.0.0.1, with a name of its own (--node-name)"
        )
    );
}

/// The first machine's connection breaks for a moment, and its worker goes on.
#[tokio::test]
async fn another_machine_with_the_same_name_is_kept_out_after_a_broken_session() {
    let server = Server::start().await;
    let first = FakeAgent::start(&server, "node-a", &[], true).await;
    server.submit("one", spec(1)).await;
    server
        .until_job("one", |job| phase(job) == v1::JobPhase::Running)
        .await;
    drop(first);
    server
        .until_node("node-a", |node| node.state() == v1::NodeState::Suspect)
        .await;
    let other = v1::Hello {
        boot_id: "another".into(),
        uptime_us: 3_600_000_000,
        ..hello("node-a")
    };
    let refused = RawSession::open(&server, say(FromAgent::Hello(other)))
        .await
        .unwrap()
        .next()
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let told = "another machine has the name node-a and may still run generation 1 of default/one: 127.0.0.1, last heard ";
    assert!(refused.message().starts_with(told), "{}", refused.message());
    let same = v1::Hello {
        epoch_seen: 1,
        ..hello("node-a")
    };
    let mut back = RawSession::open(&server, say(FromAgent::Hello(same)))
        .await
        .unwrap();
    assert!(matches!(back.next().await.unwrap(), ToAgent::Welcome(welcome) if welcome.epoch == 2));
}

#[tokio::test]
async fn an_agent_newer_than_the_store_halts() {
    let server = Server::start().await;
    let ahead = v1::Hello {
        term_seen: 9,
        ..hello("node-a")
    };
    let refused = RawSession::open(&server, say(FromAgent::Hello(ahead)))
        .await
        .unwrap()
        .next()
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused
            .message()
            .starts_with("this coordinator's term 1 is older than term 9"),
        "{}",
        refused.message()
    );
    assert!(
        refused
            .message()
            .ends_with("or start the coordinator with --min-term 10"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn agents_of_this_version_and_of_the_one_before_are_served_and_others_told_what_to_do() {
    let server = Server::start().await;
    let open = async |node: &str, oldest: u32, newest: u32| {
        let hello = v1::Hello {
            protocol: newest,
            protocol_oldest: oldest,
            ..hello(node)
        };
        RawSession::open(&server, say(FromAgent::Hello(hello)))
            .await
            .unwrap()
            .next()
            .await
    };
    for (oldest, newest, used) in [(4, 5, 5), (0, 4, 4), (5, 6, 5)] {
        let node = format!("node-{oldest}-{newest}");
        match open(&node, oldest, newest).await.unwrap() {
            ToAgent::Welcome(welcome) => assert_eq!(welcome.protocol, used, "{oldest} to {newest}"),
            other => panic!("{other:?}"),
        }
    }
    let refused = open("node-b", 6, 7).await.unwrap_err();
    let why = "the agent speaks protocol 6 to 7, this coordinator 4 to 5: upgrade the coordinator first, then the agents (a coordinator \
               serves its own version and the one before)";
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unimplemented, why)
    );
    let nodes = server
        .nodes()
        .list(v1::ListNodesRequest::default())
        .await
        .unwrap()
        .into_inner()
        .nodes;
    assert_eq!(nodes.len(), 3, "who was refused is not a node");
}

#[tokio::test]
async fn a_broken_session_is_suspect_at_once_and_lost_in_time() {
    let policy = Policy {
        heartbeat: std::time::Duration::from_millis(100),
        ..Policy::default()
    };
    let server = Server::start_with(policy).await;
    let mut session = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(matches!(session.next().await.unwrap(), ToAgent::Welcome(_)));
    drop(session);
    server
        .until_node("node-a", |node| node.state() == v1::NodeState::Suspect)
        .await;
    server
        .until_node("node-a", |node| node.state() == v1::NodeState::Lost)
        .await;
}

#[tokio::test]
async fn a_session_that_is_not_well_formed_is_told_what_is_wrong() {
    let server = Server::start().await;
    let cases: Vec<(v1::AgentMessage, &str)> = vec![
        (
            v1::AgentMessage { message: None },
            "message: is missing: the first one of a session must be hello",
        ),
        (
            say(FromAgent::Heartbeat(v1::Heartbeat { sequence: 1 })),
            "message: the first one of a session must be hello",
        ),
        (
            say(FromAgent::Hello(v1::Hello {
                protocol: 0,
                ..hello("node-a")
            })),
            "hello.protocol: is 0, the first version is 1",
        ),
        (
            say(FromAgent::Hello(v1::Hello {
                node: String::new(),
                ..hello("node-a")
            })),
            "hello.node: must not be empty",
        ),
        (
            say(FromAgent::Hello(v1::Hello {
                node: "Node A".into(),
                ..hello("node-a")
            })),
            "hello.node: \"Node A\" has 'N': only lower-case letters, digits and '-' are allowed",
        ),
        (
            say(FromAgent::Hello(v1::Hello {
                boot_id: String::new(),
                ..hello("node-a")
            })),
            "hello.boot_id: is empty",
        ),
        (
            say(FromAgent::Hello(v1::Hello {
                report: None,
                ..hello("node-a")
            })),
            "hello.report: is missing",
        ),
        (
            say(FromAgent::Hello(v1::Hello {
                runs: None,
                ..hello("node-a")
            })),
            "hello.runs: is missing",
        ),
    ];
    for (first, expected) in cases {
        let refused = RawSession::open(&server, first)
            .await
            .unwrap()
            .next()
            .await
            .unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::InvalidArgument, expected)
        );
    }

    let mut session = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(matches!(session.next().await.unwrap(), ToAgent::Welcome(_)));
    assert!(matches!(session.next().await.unwrap(), ToAgent::Desired(_)));
    session
        .up
        .send(say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    let refused = session.next().await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::InvalidArgument,
            "message: hello comes once, at the start"
        )
    );
    let nodes = server
        .nodes()
        .list(v1::ListNodesRequest::default())
        .await
        .unwrap()
        .into_inner()
        .nodes;
    assert_eq!(nodes.len(), 1, "who was refused is not a node");
}

/// A store whose right to decide can end while it is held up in a commit, as by an API server that does
/// not answer.
struct Held {
    inner: MemoryStore,
    deposed: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    /// Told at each commit that is held up.
    commits: mpsc::UnboundedSender<()>,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl Leadership for Held {
    fn lead(&self) -> Lead {
        let deposed = self.deposed.clone();
        Lead::new(move || !deposed.load(Ordering::SeqCst))
    }
}

impl Store for Held {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.inner.load()
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        self.inner.next_term(at_least)
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        if self.hangs.load(Ordering::SeqCst) && !writes.is_empty() {
            let _ = self.commits.send(());
            let _ = self.go_on.recv();
        }
        self.inner.commit(writes)
    }

    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError> {
        self.inner.keep_reports(reports)
    }
}

/// Workers of jobs with `fenceAfter` live on the answers to heartbeats, and the next coordinator counts
/// on it that they do not.
#[tokio::test]
async fn a_coordinator_that_may_have_been_replaced_answers_no_heartbeat() {
    let (deposed, hangs) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (commits, mut committing) = mpsc::unbounded_channel();
    let (_let_go, go_on) = std::sync::mpsc::channel();
    let store = Held {
        inner: MemoryStore::default(),
        deposed: deposed.clone(),
        hangs: hangs.clone(),
        commits,
        go_on,
    };
    let state = tempfile::tempdir().unwrap();
    let settings = Server::settings(&state, Policy::default());
    let server = Server::start_on(state, settings, || Ok(Box::new(store))).await;
    let first = say(FromAgent::Hello(hello("node-a")));
    let mut session = RawSession::open(&server, first).await.unwrap();
    assert!(matches!(session.next().await.unwrap(), ToAgent::Welcome(_)));
    assert!(matches!(session.next().await.unwrap(), ToAgent::Desired(_)));

    // The engine waits for its store, and the right to decide ends meanwhile.
    hangs.store(true, Ordering::SeqCst);
    let mut jobs = server.jobs();
    let submit = v1::SubmitRequest {
        r#ref: Some(reference("one")),
        spec: Some(spec(1)),
        ..v1::SubmitRequest::default()
    };
    let submitting = tokio::spawn(async move { jobs.submit(submit).await });
    within(committing.recv()).await.unwrap();
    let beat = v1::Heartbeat { sequence: 1 };
    session
        .up
        .send(say(FromAgent::Heartbeat(beat)))
        .await
        .unwrap();
    let ToAgent::Heartbeat(reply) = session.next().await.unwrap() else {
        panic!("it is sure that it leads")
    };
    assert_eq!(reply.sequence, 1);
    deposed.store(true, Ordering::SeqCst);
    let beat = v1::Heartbeat { sequence: 2 };
    session
        .up
        .send(say(FromAgent::Heartbeat(beat)))
        .await
        .unwrap();
    let ended = session.next().await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    submitting.abort();
}
