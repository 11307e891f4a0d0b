//! What is left of jobs that are over, as users read it.

use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use muster_rpc::Clients;
use tonic::Code;

use crate::{
    access::Secure,
    agent::{FakeAgent, Order},
    server::{Server, phase, reference, spec, within},
};
use muster_coordinator::trust::Role;

async fn ask(
    clients: &Clients,
    request: v1::ListHistoryRequest,
) -> Result<v1::ListHistoryResponse, tonic::Status> {
    let answer = within(clients.history().list(request)).await;
    answer.map(tonic::Response::into_inner)
}

async fn list(server: &Server, request: v1::ListHistoryRequest) -> Vec<v1::HistoryRecord> {
    ask(&server.clients, request).await.unwrap().records
}

fn all() -> v1::ListHistoryRequest {
    v1::ListHistoryRequest::default()
}

fn names(records: &[v1::HistoryRecord]) -> Vec<&str> {
    let named = records.iter().map(|record| record.r#ref.as_ref().unwrap());
    named.map(|named| named.name.as_str()).collect()
}

async fn cancel(server: &Server, name: &str) {
    let request = v1::CancelRequest {
        r#ref: Some(reference(name)),
    };
    within(server.jobs().cancel(request)).await.unwrap();
    server
        .until_job(name, |job| phase(job) == v1::JobPhase::Cancelled)
        .await;
}

async fn delete(server: &Server, name: &str) {
    let request = v1::DeleteRequest {
        r#ref: Some(reference(name)),
    };
    within(server.jobs().delete(request)).await.unwrap();
}

#[tokio::test]
async fn a_record_outlives_its_job_and_its_coordinator() {
    let server = Server::start().await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let job = server.submit("digits", spec(1)).await;
    server
        .until_job("digits", |job| phase(job) == v1::JobPhase::Running)
        .await;
    assert!(list(&server, all()).await.is_empty(), "it is not over");
    let with_live = v1::ListHistoryRequest {
        include_live: true,
        ..all()
    };
    let live = list(&server, with_live.clone()).await;
    assert_eq!(
        (live[0].number, live[0].phase()),
        (0, v1::JobPhase::Running)
    );
    assert!(live[0].finished_unix_us == 0 && !live[0].states.is_empty());

    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    let over = server
        .until_job("digits", |job| phase(job) == v1::JobPhase::Succeeded)
        .await;
    let records = list(&server, with_live).await;
    let record = records[0].clone();
    assert_eq!(
        (records.len(), &record.uid, record.number),
        (1, &job.uid, 1)
    );
    let status = over.status.unwrap();
    assert_eq!(
        (record.phase(), &record.reason),
        (v1::JobPhase::Succeeded, &status.reason)
    );
    assert_eq!(record.finished_unix_us, status.finished_unix_us);
    assert_eq!(
        (record.nodes.as_slice(), record.generations),
        (&["node-a".to_owned()][..], 1)
    );
    let life: u64 = record.states.values().map(|sum| sum.us).sum();
    assert_eq!(life, record.finished_unix_us - record.created_unix_us);
    assert!(
        !record.owner.is_empty() && record.command.ends_with("train.py"),
        "{record:?}"
    );

    delete(&server, "digits").await;
    drop(agent);
    let again = Server::start_in(server.stop().await, Policy::default()).await;
    assert_eq!(list(&again, all()).await, [record]);
}

#[tokio::test]
async fn records_come_in_pages_the_newest_first_and_by_words() {
    let server = Server::start().await;
    for number in 0..5 {
        let name = format!("job-{number}");
        server.submit(&name, spec(1)).await;
        cancel(&server, &name).await;
        delete(&server, &name).await;
    }
    server.submit("waits", spec(1)).await;
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let request = v1::ListHistoryRequest {
            include_live: true,
            page_size: 2,
            page_token: token,
            ..all()
        };
        let page = ask(&server.clients, request).await.unwrap();
        assert!(page.records.len() <= 2);
        seen.extend(page.records);
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(
        names(&seen),
        ["waits", "job-4", "job-3", "job-2", "job-1", "job-0"]
    );
    let only = |request| list(&server, request);
    let named = v1::ListHistoryRequest {
        name: "job-3".into(),
        ..all()
    };
    assert_eq!(names(&only(named).await), ["job-3"]);
    let since = v1::ListHistoryRequest {
        since_unix_us: seen[2].finished_unix_us,
        ..all()
    };
    assert_eq!(names(&only(since).await), ["job-4", "job-3"]);
    let within_nothing = v1::ListHistoryRequest {
        within_us: 1,
        ..all()
    };
    assert!(only(within_nothing).await.is_empty());
    let failed = v1::ListHistoryRequest {
        phases: vec![v1::JobPhase::Failed.into()],
        ..all()
    };
    assert!(only(failed).await.is_empty());
    for (request, says) in [
        (
            v1::ListHistoryRequest {
                page_token: "x".into(),
                ..all()
            },
            "page_token: ",
        ),
        (
            v1::ListHistoryRequest {
                namespace: "A".into(),
                ..all()
            },
            "namespace: ",
        ),
    ] {
        let refused = ask(&server.clients, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(says), "{refused}");
    }
}

#[tokio::test]
async fn an_operator_bounds_the_history() {
    let policy = Policy {
        history_max: 2,
        ..Policy::default()
    };
    let server = Server::start_with(policy).await;
    for number in 0..4 {
        let name = format!("job-{number}");
        server.submit(&name, spec(1)).await;
        cancel(&server, &name).await;
    }
    assert_eq!(names(&list(&server, all()).await), ["job-3", "job-2"]);
    // Jobs that are still there leave no second record.
    let none = Policy {
        history_max: 0,
        ..Policy::default()
    };
    let again = Server::start_in(server.stop().await, none).await;
    again.submit("more", spec(1)).await;
    assert!(list(&again, all()).await.is_empty());
}

#[tokio::test]
async fn nobody_sees_what_is_left_of_jobs_in_other_namespaces() {
    let secure = Secure::start().await;
    let mut all_users = Vec::new();
    for (name, namespace) in [("ann", "team-a"), ("carol", "team-b")] {
        let user = secure
            .user(name, Some((Role::Submitter, &[namespace])))
            .await;
        all_users.push(secure.as_whom(&user).await);
    }
    let (ann, carol) = (&all_users[0], &all_users[1]);
    let job = || {
        Some(v1::JobRef {
            namespace: "team-a".into(),
            name: "job".into(),
        })
    };
    let submit = v1::SubmitRequest {
        r#ref: job(),
        spec: Some(spec(1)),
        ..v1::SubmitRequest::default()
    };
    within(ann.jobs().submit(submit)).await.unwrap();
    let live = v1::ListHistoryRequest {
        include_live: true,
        ..all()
    };
    assert_eq!(ask(ann, live.clone()).await.unwrap().records.len(), 1);
    assert!(ask(carol, live.clone()).await.unwrap().records.is_empty());
    let cancel = v1::CancelRequest { r#ref: job() };
    within(ann.jobs().cancel(cancel)).await.unwrap();
    let wait = v1::WaitRequest {
        r#ref: job(),
        wait_for: v1::WaitFor::Complete.into(),
        timeout_ms: 60_000,
    };
    within(ann.jobs().wait(wait)).await.unwrap();
    assert_eq!(names(&ask(ann, all()).await.unwrap().records), ["job"]);
    assert!(ask(carol, all()).await.unwrap().records.is_empty());
    let others = v1::ListHistoryRequest {
        namespace: "team-a".into(),
        ..all()
    };
    let refused = ask(carol, others).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}
