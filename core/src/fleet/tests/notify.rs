//! People who are not looking are told.

use std::collections::BTreeSet;

use super::*;
use crate::{
    exit::Exit,
    fleet::notify::{
        Addressee, Answered, BYTES_MAX, Dispatch, KEPT_FOR, Kind, Message, NOTICES_MAX, Next,
        Notice, Outbox, RECEIVER_MAX, Rule, Rules, Sent,
    },
    spec::RestartPolicyDocument,
};

pub(super) fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

pub(super) fn rules(on: &[Kind]) -> Rules {
    Rules {
        receivers: names(&["chat"]),
        rules: vec![Rule {
            on: on.iter().copied().collect(),
            namespaces: BTreeSet::new(),
            receivers: names(&["chat"]),
        }],
        waiting: 60 * SECOND,
        ..Rules::default()
    }
}

impl Bench {
    fn tells(nodes: &[&str], on: &[Kind]) -> Self {
        let mut bench = Bench::new(nodes);
        bench.fleet.policy.notify = rules(on);
        bench
    }

    /// The coordinator dies and starts again, with the same rules.
    pub(super) fn starts_again(&mut self) {
        let rules = self.fleet.policy.notify.clone();
        self.restart_coordinator();
        self.fleet.policy.notify = rules;
        let nodes: Vec<NodeName> = self.agents.keys().cloned().collect();
        nodes.iter().for_each(|node| self.connect(node.as_str()));
    }

    pub(super) fn waiting(&self) -> Vec<Message> {
        assert_eq!(**self.fleet.outbox(), *self.stored_outbox, "it is stored");
        self.stored_outbox.messages.clone()
    }

    pub(super) fn notices(&self) -> Vec<Notice> {
        let messages = self.waiting().into_iter();
        messages.flat_map(|message| message.notices).collect()
    }
}

/// A job of one node that has no restart left and fails.
pub(super) fn fails(bench: &mut Bench, name: &str, error: &str) {
    let spec = SpecDocument {
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(0),
            window: None,
            max_same_failures: None,
        }),
        ..document(1, 1, 1)
    };
    bench.submit(name, spec);
    bench.rank_exits(name, 0, Exit::Code(3), Some(error));
    bench.pass(SECOND);
    assert_eq!(bench.job(name).phase, Phase::Failed);
}

#[test]
fn a_failed_job_is_told_with_rank_cause_and_error() {
    let mut bench = Bench::tells(&["a"], &[Kind::JobFailed, Kind::JobSucceeded]);
    fails(&mut bench, "digits", "ValueError: no such shard");
    let notices = bench.notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    let notice = &notices[0];
    assert_eq!(
        (notice.kind, notice.subject()),
        (Kind::JobFailed, "default/digits".into())
    );
    assert_eq!(
        (
            notice.culprit.as_deref(),
            notice.cause.as_deref(),
            notice.error.as_deref()
        ),
        (
            Some("rank 0 on a"),
            Some("WorkerFailed"),
            Some("ValueError: no such shard")
        )
    );
    assert!(notice.message.contains("rank 0 on a"), "{}", notice.message);

    // It is told once, also by the next coordinator.
    bench.starts_again();
    bench.pass(60 * SECOND);
    assert_eq!(bench.notices(), notices);
    let message = &bench.waiting()[0];
    let sent = Sent {
        number: message.number,
        count: 1,
        dropped: 0,
    };
    bench.input(Input::Notified(sent));
    assert!(bench.waiting().is_empty());
    bench.starts_again();
    bench.pass(SECOND);
    assert!(bench.waiting().is_empty());
}

#[test]
fn an_end_is_told_by_the_next_coordinator_if_the_store_has_only_a_part_of_the_commit() {
    let mut bench = Bench::tells(&["a"], &[Kind::JobFailed]);
    fails(&mut bench, "digits", "ValueError");
    let outbox = bench.stored_outbox.clone();
    // The store has the job, and neither what was to be told nor what is left of it.
    bench.stored_outbox = Arc::default();
    bench.stored_history.clear();
    bench.starts_again();
    assert_eq!(bench.notices(), outbox.messages[0].notices);
    // The store has what was to be told.
    bench.stored_outbox = outbox;
    bench.stored_history.clear();
    bench.starts_again();
    assert_eq!(bench.notices().len(), 1, "it is not told twice");
    assert_eq!(bench.stored_history.len(), 1);
}

#[test]
fn nobody_is_told_of_what_no_rule_names() {
    let mut bench = Bench::tells(&["a"], &[Kind::JobSucceeded]);
    bench.fleet.policy.notify.rules[0].namespaces = names(&["team-b"]);
    bench.submit("digits", document(1, 1, 1));
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    fails(&mut bench, "other", "ValueError");
    assert!(bench.waiting().is_empty());
    bench.fleet.policy.notify.rules[0].namespaces = names(&["default"]);
    bench.fleet.policy.notify.shows_errors = false;
    bench.fleet.policy.notify.rules[0]
        .on
        .insert(Kind::JobFailed);
    fails(&mut bench, "third", "ValueError");
    assert_eq!(
        bench.notices()[0].error,
        None,
        "the operator wants no errors"
    );
    bench.submit("fourth", document(1, 1, 1));
    cancel(&mut bench, "fourth");
    assert_eq!(bench.notices().len(), 1, "who cancels knows");
}

#[test]
fn half_of_the_restarts_is_told_once_and_a_node_that_fails_as_often_as_it_does() {
    let mut bench = Bench::tells(&["a", "b", "c"], &[Kind::RestartBudgetHalfSpent]);
    let spec = SpecDocument {
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(4),
            window: None,
            max_same_failures: None,
        }),
        ..document(1, 1, 1)
    };
    bench.submit("digits", spec);
    for failure in 1..=3 {
        bench.pass(20 * SECOND);
        bench.rank_exits("digits", 0, Exit::Code(1), Some("ValueError"));
        bench.pass(20 * SECOND);
        assert_eq!(bench.notices().len(), usize::from(failure >= 2));
    }
    let message = &bench.notices()[0].message;
    assert!(message.contains("spent 2 of the 4 restarts"), "{message}");

    bench.fleet.policy.notify = rules(&[Kind::NodeFailed]);
    bench.submit("second", document(1, 1, 1));
    bench.pass(SECOND);
    let node = bench.members("second")[0].to_owned();
    bench.cut(&node);
    bench.pass(20 * SECOND);
    let failed = bench.notices();
    let failed = failed.iter().find(|notice| notice.kind == Kind::NodeFailed);
    let failed = failed.expect("the node was charged");
    assert_eq!(failed.node, Some(node.as_str().into()));
    assert_eq!(failed.cause.as_deref(), Some("NodeLost"));
}

#[test]
fn a_cordon_is_told_whoever_it_is_from() {
    let mut bench = Bench::tells(&["a"], &[Kind::NodeCordoned]);
    for reason in ["fan", "another fan"] {
        let node = NodeName::from("a");
        let reason = reason.to_owned();
        bench.request(Request::Cordon { node, reason });
    }
    let notices = bench.notices();
    assert_eq!(notices.len(), 1, "it was cordoned already: {notices:?}");
    assert!(notices[0].message.ends_with(": fan"), "{notices:?}");
    assert_eq!(notices[0].subject(), "a");
}

#[test]
fn a_job_that_waits_too_long_is_told_once_a_wait() {
    let mut bench = Bench::tells(&["a"], &[Kind::JobWaiting]);
    bench.submit("big", document(2, 2, 2));
    bench.pass(59 * SECOND);
    assert!(bench.waiting().is_empty());
    bench.pass(2 * SECOND);
    let told = bench.notices();
    assert_eq!(told.len(), 1);
    assert!(told[0].message.contains("has waited for 1m"), "{told:?}");
    bench.pass(200 * SECOND);
    bench.starts_again();
    bench.pass(100 * SECOND);
    assert_eq!(bench.notices(), told, "also over a restart");
    let events = bench.events.iter();
    assert_eq!(
        events.filter(|event| event.reason == "JobWaiting").count(),
        1
    );

    // A job that a user holds back waits for nobody.
    let suspended = SpecDocument {
        suspend: Some(true),
        ..document(1, 1, 1)
    };
    bench.submit("held", suspended);
    bench.pass(200 * SECOND);
    assert_eq!(bench.notices().len(), 1);
}

#[test]
fn a_message_gathers_and_what_comes_while_it_is_sent_is_one_of_its_own() {
    let mut bench = Bench::tells(&["a"], &[Kind::JobFailed]);
    fails(&mut bench, "one", "ValueError");
    fails(&mut bench, "two", "ValueError");
    let message = bench.waiting()[0].clone();
    assert_eq!((bench.waiting().len(), message.count), (1, 2));
    fails(&mut bench, "three", "ValueError");
    let sent = Sent {
        number: message.number,
        count: message.count,
        dropped: 0,
    };
    bench.input(Input::Notified(sent));
    let left = bench.waiting();
    assert_eq!((left.len(), left[0].count), (1, 1));
    assert_eq!(left[0].notices[0].subject(), "default/three");
    assert_ne!(left[0].id(), message.id());
}

fn notice(at: Timestamp, number: u64) -> Notice {
    Notice {
        node: Some(format!("node-{number}").into()),
        ..Notice::new(
            Kind::NodeCordoned,
            at,
            &format!("node-{number} was cordoned"),
        )
    }
}

/// An outbox, and who sends what is in it.
struct Post {
    outbox: Outbox,
    last_due: Option<Timestamp>,
    dispatch: Dispatch,
    now: Timestamp,
    attempts: Vec<Timestamp>,
    /// Notices that were delivered, and messages.
    delivered: (u32, u32),
}

impl Post {
    fn new() -> Self {
        Self {
            outbox: Outbox::default(),
            last_due: None,
            dispatch: Dispatch::default(),
            now: Timestamp(1_000_000_000),
            attempts: Vec::new(),
            delivered: (0, 0),
        }
    }

    fn add(&mut self, number: u64) {
        let notice = notice(self.now, number);
        let chat = Addressee::of_operator("chat");
        let (outbox, due) = (&mut self.outbox, &mut self.last_due);
        let is_new = outbox.add(&chat, &notice, 10 * SECOND, due, self.now);
        assert!(is_new);
        self.outbox.drop_surplus(&rules(&[]), self.now);
    }

    /// Time passes, second by second.
    fn pass(&mut self, seconds: u64, answer: impl Fn(&Message) -> Answered) {
        for _ in 0..seconds {
            self.now = self.now + SECOND;
            while let Next::Send(message) =
                self.dispatch.next(self.outbox.of("chat", false), self.now)
            {
                let (number, count) = (message.number, message.count);
                self.attempts.push(self.now);
                let answered = answer(message);
                self.dispatch.answered(number, answered, self.now);
                if answered == Answered::Delivered {
                    let dropped = self.outbox.dropped.get("chat").copied().unwrap_or_default();
                    self.delivered = (self.delivered.0 + count, self.delivered.1 + 1);
                    self.outbox.sent(Sent {
                        number,
                        count,
                        dropped,
                    });
                }
            }
        }
    }
}

#[test]
fn a_storm_is_one_message_and_a_long_one_is_one_a_minute() {
    let mut post = Post::new();
    (0..1_000).for_each(|number| post.add(number));
    post.pass(30, |_| Answered::Delivered);
    assert_eq!(post.delivered, (1_000, 1));
    for number in 1_000..1_300 {
        post.add(number);
        post.pass(1, |message| {
            assert!(message.notices.len() <= NOTICES_MAX);
            Answered::Delivered
        });
    }
    post.pass(100, |_| Answered::Delivered);
    assert_eq!(post.delivered.0, 1_300, "all are counted");
    assert!((6..=7).contains(&post.delivered.1), "{:?}", post.delivered);
}

#[test]
fn a_receiver_that_is_dead_for_an_hour_loses_nothing_and_is_not_hammered() {
    let mut post = Post::new();
    for number in 0..60 {
        post.add(number);
        post.pass(60, |_| Answered::NotNow(None));
    }
    let attempts = post.attempts.len();
    assert!(
        (10..=20).contains(&attempts),
        "{attempts} attempts in an hour"
    );
    post.pass(310, |_| Answered::Delivered);
    assert_eq!(post.delivered, (60, 60));
    assert!(post.outbox.messages.is_empty() && post.outbox.dropped.is_empty());
}

#[test]
fn a_receiver_says_for_how_long_it_takes_nothing() {
    let mut post = Post::new();
    post.add(1);
    post.pass(11, |_| Answered::NotNow(Some(900 * SECOND)));
    assert_eq!(post.attempts.len(), 1);
    post.pass(895, |_| Answered::Delivered);
    assert_eq!(post.attempts.len(), 1, "it is left alone");
    post.pass(10, |_| Answered::Delivered);
    assert_eq!(post.delivered.0, 1);
}

#[test]
fn a_message_that_is_refused_holds_up_no_other() {
    let mut post = Post::new();
    for number in 0..3 {
        post.add(number);
        post.pass(61, |message| {
            match message.notices[0].node.as_ref().map(NodeName::as_str) {
                Some("node-0") => Answered::Refused,
                _ => Answered::Delivered,
            }
        });
    }
    assert_eq!(post.delivered.0, 2);
    assert_eq!(post.outbox.messages.len(), 1);
    // Somebody mends the receiver.
    post.pass(300, |_| Answered::Delivered);
    assert_eq!(post.delivered.0, 3);
}

#[test]
fn a_message_that_breaks_its_receiver_is_not_always_the_next() {
    let mut post = Post::new();
    (0..2).for_each(|number| {
        post.add(number);
        post.now = post.now + 61 * SECOND;
    });
    post.pass(60, |message| {
        match message.notices[0].node.as_ref().map(NodeName::as_str) {
            Some("node-0") => Answered::NotNow(None),
            _ => Answered::Delivered,
        }
    });
    assert_eq!(post.delivered.0, 1);
}

#[test]
fn what_waits_is_bounded_in_number_bytes_and_time_and_the_dropped_are_counted() {
    let mut post = Post::new();
    for number in 0..RECEIVER_MAX as u64 + 50 {
        post.add(number);
        post.now = post.now + 61 * SECOND;
    }
    assert_eq!(post.outbox.messages.len(), RECEIVER_MAX);
    assert_eq!(post.outbox.dropped["chat"], 50);
    let oldest = post.outbox.messages[0].notices[0].node.clone();
    assert_eq!(oldest, Some("node-50".into()));
    post.pass(301, |_| Answered::Delivered);
    assert!(post.outbox.dropped.is_empty(), "the receiver was told");

    let (mut post, chat) = (Post::new(), Addressee::of_operator("chat"));
    for number in 0..1_000 {
        let long = Notice {
            error: Some("x".repeat(2_000)),
            ..notice(post.now, number)
        };
        (0..10).for_each(|more| {
            let one = Notice {
                uid: Some(format!("{more}").into()),
                ..long.clone()
            };
            post.outbox
                .add(&chat, &one, 10 * SECOND, &mut post.last_due, post.now);
        });
        post.outbox.drop_surplus(&rules(&[]), post.now);
        post.now = post.now + 61 * SECOND;
    }
    let stored = serde_json::to_string(&post.outbox).unwrap();
    assert!(stored.len() < BYTES_MAX + 10_000, "{}", stored.len());
    assert!(post.outbox.messages.len() > 20);

    post.now = post.now + KEPT_FOR + SECOND;
    assert!(post.outbox.drop_surplus(&rules(&[]), post.now));
    assert!(post.outbox.messages.is_empty());
    assert_eq!(post.outbox.dropped["chat"], 10_000);
    let nobody = Rules::default();
    post.add(1);
    assert!(post.outbox.drop_surplus(&nobody, post.now));
    assert!(post.outbox.messages.is_empty() && post.outbox.dropped.is_empty());
}
