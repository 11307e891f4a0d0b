//! When jobs that wait will start: in the list of queues if a caller asks for it, and in a plan.

use muster_core::fleet::{Policy, Rate};
use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::FakeAgent,
    server::{Server, phase, reference, spec, within},
};

fn job(deadline: Option<i64>) -> v1::JobSpec {
    v1::JobSpec {
        gpus_per_node: Some(1),
        active_deadline_seconds: deadline,
        ..spec(1)
    }
}

/// As an answer names it.
fn named(name: &str) -> v1::JobRef {
    v1::JobRef {
        namespace: "default".into(),
        name: name.into(),
    }
}

#[tokio::test]
async fn who_waits_is_told_when_it_starts_and_from_what_that_is_known() {
    let policy = Policy {
        plans: Rate {
            per_second: 1,
            burst: 2,
        },
        ..Policy::default()
    };
    let server = Server::start_with(policy).await;
    let _agent = FakeAgent::with_gpu(&server, "node-a", "13.2").await;
    let first = server.submit("first", job(Some(3_600))).await;
    let begins = |job: &v1::Job| phase(job) != v1::JobPhase::Pending;
    server.until_job("first", begins).await;
    server.submit("second", job(None)).await;
    server.submit("third", job(None)).await;

    let ask = |start_estimates| {
        let mut queues = server.queues();
        async move {
            let request = v1::ListQueuesRequest {
                start_estimates,
                ..v1::ListQueuesRequest::default()
            };
            let answer = within(queues.list(request)).await;
            answer.map(|answer| answer.into_inner().starts)
        }
    };
    assert_eq!(ask(false).await.unwrap(), [], "nobody has asked for it");
    let starts = ask(true).await.unwrap();
    let ends = first.created_unix_us + 3_600_000_000;
    let end = v1::EndBefore {
        r#ref: Some(named("first")),
        at_unix_us: ends,
        basis: "deadline".into(),
        ..v1::EndBefore::default()
    };
    let second = v1::StartEstimate {
        at_unix_us: ends,
        basis: "after job default/first (at its deadline)".into(),
        after: vec![end],
        ..v1::StartEstimate::default()
    };
    let said = |name: &str| {
        let of = |one: &&v1::JobStart| one.r#ref == Some(named(name));
        starts.iter().find(of).and_then(|one| one.start.clone())
    };
    assert_eq!((starts.len(), said("second")), (2, Some(second)));
    let third = said("third").unwrap();
    assert_eq!(
        (third.at_unix_us, third.unknown.as_str()),
        (0, "UnknownEnds")
    );
    assert_eq!(third.after[0].r#ref, Some(named("second")));

    let request = v1::SubmitRequest {
        r#ref: Some(reference("fourth")),
        spec: Some(job(None)),
        validate_only: true,
        ..v1::SubmitRequest::default()
    };
    let planned = within(server.jobs().submit(request)).await.unwrap();
    let plan = planned.into_inner().plan.unwrap();
    assert_eq!(plan.start.unwrap().unknown, "UnknownEnds");
    // An answer costs a look at many nodes, so nobody gets as many as he likes.
    let mut refused = None;
    for _ in 0..50 {
        refused = refused.or(ask(true).await.err());
    }
    assert_eq!(refused.unwrap().code(), Code::ResourceExhausted);
    server.stop().await;
}
