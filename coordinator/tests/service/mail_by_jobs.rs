//! Mail to addresses that jobs name, through a real server, and what it says of them.

use std::sync::Mutex;

use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use crate::{
    agent::{FakeAgent, Order},
    cluster::Cluster,
    kubectl::{Kubectl, condition, job_of_two},
    mail::{PLAIN, Postbox, Ways, mailing},
    notifications::{fails_and_tells, runs_once, until},
    server::{Server, reference, spec, within},
};

/// A coordinator that mails ann and bob of failures, and whom jobs name of one domain.
async fn opened(ways: Ways) -> (Server, TempDir, Postbox) {
    let postbox = Postbox::start(ways).await;
    let open = format!("{PLAIN}\njobs: {{ mail: {{ by: hook, to: ['*@users.example'] }} }}");
    let (server, folder) = mailing(&format!("smtp://{}", postbox.address), &open).await;
    (server, folder, postbox)
}

fn tells(on: &[&str], to: &str) -> Vec<v1::Notify> {
    vec![v1::Notify {
        kinds: on.iter().map(ToString::to_string).collect(),
        receivers: Vec::new(),
        mail: vec![to.to_owned()],
    }]
}

#[tokio::test]
async fn a_job_mails_to_the_address_that_it_names() {
    let (server, _folder, mut postbox) = opened(Ways::default()).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let eve = tells(&["jobStarted", "jobFailed"], "eve@users.example");
    fails_and_tells(&server, &agent, "digits", eve).await;
    let mut subjects = Vec::new();
    for _ in 0..3 {
        let got = postbox.next().await;
        let (to, subject) = (got.header("To").unwrap(), got.header("Subject").unwrap());
        let is_hers = got.to == ["eve@users.example"];
        assert!(
            is_hers || got.to == ["ann@example.org", "bob@example.org"],
            "{got:?}"
        );
        assert_eq!(to.contains("eve@"), is_hers, "{}", got.text);
        let why = "You get this because the job asks for it (spec.notify).";
        assert_eq!(got.text.contains(why), is_hers, "{}", got.text);
        subjects.push((is_hers, subject.contains("has started: ")));
    }
    subjects.sort_unstable();
    assert_eq!(subjects, [(false, false), (true, false), (true, true)]);
    let list = until(&server, |receiver| {
        (receiver.delivered, receiver.waiting) == (3, 0)
    })
    .await;
    assert_eq!(list.failed, 0);
    assert_eq!(list.open_to_jobs, ["*@users.example"]);
    let open = v1::ListOpenRequest::default();
    let open = within(server.clients.notifications().list_open(open)).await;
    let must = v1::Open {
        name: "*@users.example".into(),
        form: "mail".into(),
    };
    assert_eq!(open.unwrap().into_inner().open, [must]);

    let request = v1::SubmitRequest {
        r#ref: Some(reference("other")),
        spec: Some(v1::JobSpec {
            notify: tells(&[], "eve@evil.example"),
            ..spec(1)
        }),
        ..v1::SubmitRequest::default()
    };
    let refused = within(server.jobs().submit(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(
        refused.message(),
        "spec.notify[0].mail: mail to \"eve@evil.example\" is not open to jobs; allowed are *@users.example"
    );
}

#[tokio::test]
async fn what_a_server_says_of_such_an_address_is_no_fault_of_the_receiver() {
    let ways = Ways {
        to: Mutex::new([("gone@users.example", ["550 5.1.1 no such user"].into())].into()),
        ..Ways::default()
    };
    let (server, _folder, mut postbox) = opened(ways).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let ops = ["ann@example.org", "bob@example.org"];
    // Who does not exist is given up at once.
    let gone = tells(&["jobFailed"], "gone@users.example");
    fails_and_tells(&server, &agent, "first", gone).await;
    assert_eq!(postbox.next().await.to, ops);
    let list = until(&server, |receiver| {
        (receiver.delivered, receiver.failed) == (1, 1)
    })
    .await;
    let said = (list.last_error.as_str(), list.last_error_of_jobs.as_str());
    assert_eq!(said, ("", ""));
    // A mailbox that is full waits, and nobody with it.
    let full = || ["452 4.2.2 mailbox full"; 9].into();
    let ways = Ways {
        to: Mutex::new([("full@users.example", full())].into()),
        ..Ways::default()
    };
    let (server, _folder, mut postbox) = opened(ways).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let full = tells(&["jobStarted"], "full@users.example");
    fails_and_tells(&server, &agent, "second", full).await;
    assert_eq!(postbox.next().await.to, ops);
    let list = until(&server, |receiver| {
        receiver.failed > 0 && (receiver.delivered, receiver.waiting) == (1, 0)
    })
    .await;
    let said = (list.last_error.as_str(), list.last_error_of_jobs.as_str());
    assert_eq!(said, ("", ""), "it waits, and not for the operator");
}

#[tokio::test]
async fn a_server_that_turns_a_jobs_mail_away_has_the_operators_at_once() {
    let ways = Ways {
        to: Mutex::new([("eve@users.example", ["421 4.7.0 slow down"; 99].into())].into()),
        ..Ways::default()
    };
    let (server, _folder, mut postbox) = opened(ways).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let eve = tells(&["jobStarted"], "eve@users.example");
    runs_once(&server, "first", eve).await;
    let turned_away = until(&server, |receiver| receiver.failed > 0).await;
    assert_eq!(
        turned_away.last_error, "",
        "it is no error of the operator's"
    );
    let said = turned_away.last_error_of_jobs;
    assert!(said.starts_with("SMTP 421: 4.7.0 slow down"), "{said}");
    agent.orders.send(Order::Exit(Exit::Code(3))).await.unwrap();
    assert_eq!(
        postbox.next().await.to,
        ["ann@example.org", "bob@example.org"]
    );
    let list = until(&server, |receiver| receiver.delivered == 1).await;
    assert_eq!(list.last_error_of_jobs, said, "eve has got nothing yet");
}

#[tokio::test]
async fn an_object_that_asks_for_what_is_not_open_says_so() {
    let cluster = Cluster::start().await;
    let kubectl = Kubectl::new(cluster.configuration());
    let state = tempfile::tempdir().unwrap();
    let _server = Server::start_beside(state, Policy::default(), Some(cluster.jobs())).await;
    let mut spec = job_of_two();
    spec["notify"] = json!([{ "mail": ["ann@example.org"] }]);
    kubectl.apply("hello", spec).await.unwrap();
    let is_refused =
        |object: &serde_json::Value| condition(object, "Accepted")["status"] == "False";
    let object = kubectl.until("hello", is_refused).await;
    let accepted = condition(&object, "Accepted");
    assert_eq!(
        accepted["message"],
        "spec.notify: this coordinator tells nobody of anything: it was started without --notify",
        "{accepted:#}"
    );
}
