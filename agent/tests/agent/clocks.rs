//! A coordinator whose clock differs from the node's.

use std::fs;

use muster_core::health::{Finding, Severity};

use crate::rig::{Coordinator, Node, Session};

fn skew(session: &Session) -> Option<&Finding> {
    session
        .findings
        .iter()
        .find(|finding| finding.check == "clock-skew")
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_are_warned_of_until_they_agree() {
    let mut coordinator = Coordinator::start().await;
    let mut node = Node::new("n1");
    // This rule applies at once, so that the test need not wait.
    fs::write(node.path("rules"), "clock-skew warn none above=1000\n").unwrap();
    node.flags = vec![
        "--health-rules".into(),
        node.path("rules").to_str().unwrap().into(),
    ];
    node.start(&coordinator.url());
    let mut session = coordinator.welcome(1, 1).await;
    session.clock_ahead = Some(3_600);
    session
        .until("a node that says it is behind", |s| {
            skew(s).is_some_and(|found| found.reason.contains("is behind the"))
        })
        .await;
    let found = skew(&session).unwrap();
    let said: u64 = found
        .reason
        .split(": ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    // The agent may subtract the time that the answer took.
    assert!(
        found.severity == Severity::Warn && (3_000_000..=3_600_000).contains(&said),
        "{}",
        found.reason
    );
    session.clock_ahead = Some(-3_600);
    session
        .until("a node that says it is ahead", |s| {
            skew(s).is_some_and(|found| found.reason.contains("is ahead of the"))
        })
        .await;
    // A coordinator of another version does not tell its clock. The known skew stays.
    session.clock_ahead = None;
    session.settle().await;
    assert!(skew(&session).is_some());
    session.clock_ahead = Some(0);
    session
        .until("a node that says nothing", |s| skew(s).is_none())
        .await;
}
