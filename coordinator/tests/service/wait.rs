//! `Wait` for a state that is reached already, that is reached later, and that is never reached.

use muster_core::exit::Exit;
use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::{FakeAgent, Order},
    server::{Server, phase, reference, spec, within},
};

fn wait(name: &str, wait_for: v1::WaitFor, timeout_ms: u64) -> v1::WaitRequest {
    v1::WaitRequest {
        r#ref: Some(reference(name)),
        wait_for: wait_for.into(),
        timeout_ms,
    }
}

#[tokio::test]
async fn waits_for_running_complete_and_deleted() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    let late = server
        .jobs()
        .wait(wait("one", v1::WaitFor::Running, 50))
        .await
        .unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(
        late.message()
            .starts_with("job default/one is not running after 50ms; it is Pending: "),
        "{}",
        late.message()
    );

    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let running = within(server.jobs().wait(wait("one", v1::WaitFor::Running, 0)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(phase(&running.job.unwrap()), v1::JobPhase::Running);

    let mut jobs = server.jobs();
    let complete =
        tokio::spawn(async move { jobs.wait(wait("one", v1::WaitFor::Complete, 0)).await });
    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    let complete = within(complete).await.unwrap().unwrap().into_inner();
    assert_eq!(phase(&complete.job.unwrap()), v1::JobPhase::Succeeded);
    // The job did run, so a client that waits for it a moment too late gets no error.
    within(server.jobs().wait(wait("one", v1::WaitFor::Running, 0)))
        .await
        .unwrap();

    let mut jobs = server.jobs();
    let deleted =
        tokio::spawn(async move { jobs.wait(wait("one", v1::WaitFor::Deleted, 0)).await });
    server
        .jobs()
        .delete(v1::DeleteRequest {
            r#ref: Some(reference("one")),
        })
        .await
        .unwrap();
    within(deleted).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_will_never_run_is_not_waited_for() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    server
        .jobs()
        .cancel(v1::CancelRequest {
            r#ref: Some(reference("one")),
        })
        .await
        .unwrap();
    let never = within(server.jobs().wait(wait("one", v1::WaitFor::Running, 0)))
        .await
        .unwrap_err();
    assert_eq!(
        (never.code(), never.message()),
        (
            Code::FailedPrecondition,
            "job default/one is Cancelled and will not run again: cancelled by a user"
        )
    );
    let unknown = within(server.jobs().wait(wait("two", v1::WaitFor::Complete, 0)))
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    within(server.jobs().wait(wait("two", v1::WaitFor::Deleted, 0)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_waits_and_streams_with_unavailable() {
    let server = Server::start().await;
    server.submit("one", spec(1)).await;
    let mut watch = server
        .jobs()
        .watch(v1::WatchJobsRequest::default())
        .await
        .unwrap()
        .into_inner();
    within(watch.message()).await.unwrap().unwrap();
    let mut jobs = server.jobs();
    let waiting =
        tokio::spawn(async move { jobs.wait(wait("one", v1::WaitFor::Complete, 0)).await });
    // Once a later call on the same connection is answered, the wait has reached the coordinator.
    server.job("one").await;
    server.shutdown.cancel();
    let ended = within(async {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("ended without a reason"),
                Err(status) => return status,
            }
        }
    })
    .await;
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "the coordinator is shutting down")
    );
    let ended = within(waiting).await.unwrap().unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "the coordinator is shutting down")
    );
    server.stop().await;
}
