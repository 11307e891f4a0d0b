//! The operator's queues, as users ask for them: `muster-coordinator --queues`.

use muster_core::fleet::{
    Policy,
    queues::{Queue, Queues},
};
use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::FakeAgent,
    metrics::until,
    server::{Server, phase, reference, spec, within},
};

fn queues() -> Queues {
    let below = |name: &str, quota| Queue {
        name: name.into(),
        parent: Some(0),
        quota: Some(quota),
        namespaces: ["default".to_owned()].into(),
        ..Queue::default()
    };
    let top = Queue {
        name: "all".into(),
        ..Queue::default()
    };
    let night = Queue {
        borrowing_limit: Some(0),
        max_priority: Some(3),
        ..below("night", 0)
    };
    Queues::new(vec![top, below("day", 2), night]).unwrap()
}

fn job(queue: Option<&str>) -> v1::JobSpec {
    v1::JobSpec {
        gpus_per_node: Some(1),
        queue: queue.map(str::to_owned),
        ..spec(1)
    }
}

async fn list(server: &Server) -> Vec<v1::Queue> {
    let answer = within(server.queues().list(v1::ListQueuesRequest::default())).await;
    answer.unwrap().into_inner().queues
}

#[tokio::test]
async fn a_job_waits_in_the_queue_that_it_names_and_the_list_counts_it_there() {
    let policy = Policy {
        queues: queues(),
        ..Policy::default()
    };
    let (server, metrics) = Server::start_with_metrics(policy).await;
    let _agent = FakeAgent::with_gpu(&server, "node-a", "13.2").await;
    server.submit("first", job(None)).await;
    let begins = |job: &v1::Job| phase(job) != v1::JobPhase::Pending;
    server.until_job("first", begins).await;
    let waits = server.submit("second", job(Some("night"))).await;
    assert_eq!(phase(&waits), v1::JobPhase::Pending);
    let told = waits.status.unwrap();
    assert!(
        told.message.contains("queue night has a quota of 0 GPUs"),
        "{}",
        told.message
    );
    assert_eq!(waits.spec.unwrap().queue.as_deref(), Some("night"));

    let seen: Vec<_> = list(&server)
        .await
        .into_iter()
        .map(|one| {
            let counted = (one.quota, one.held, one.available, one.jobs, one.waiting);
            (one.name, one.parent, counted)
        })
        .collect();
    let row = |name: &str, parent: &str, counted| (name.to_owned(), parent.to_owned(), counted);
    assert_eq!(
        seen,
        [
            row("all", "", (2, 1, None, 1, 1)),
            row("day", "all", (2, 1, Some(1), 1, 0)),
            row("night", "all", (0, 0, Some(0), 0, 1)),
        ]
    );
    let (_, page) = until(metrics, |page| {
        page.names().contains("muster_queue_held_gpus")
    })
    .await;
    for (name, labels, value) in [
        ("quota_gpus", [("queue", "all")].as_slice(), 2.0),
        ("held_gpus", &[("queue", "all")], 1.0),
        ("held_gpus", &[("queue", "night")], 0.0),
        ("available_gpus", &[("queue", "day")], 1.0),
        ("jobs", &[("queue", "day"), ("state", "holding")], 1.0),
        ("jobs", &[("queue", "night"), ("state", "waiting")], 1.0),
    ] {
        assert_eq!(page.one(&format!("muster_queue_{name}"), labels), value);
    }

    let request = v1::SubmitRequest {
        r#ref: Some(reference("third")),
        spec: Some(job(Some("week"))),
        ..v1::SubmitRequest::default()
    };
    let refused = within(server.jobs().submit(request)).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::InvalidArgument,
            "spec.queue: there is no queue week (--queues of the coordinator)"
        )
    );
    server.stop().await;
}

#[tokio::test]
async fn without_a_file_there_are_none() {
    let server = Server::start().await;
    assert_eq!(list(&server).await, []);
    server.stop().await;
}
