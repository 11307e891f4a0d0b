//! Who sees the values of a job's environment: the same answer by every method that tells of it.

use muster_coordinator::trust::Role;
use muster_proto::v1::{self, agent_message::Message as FromAgent};
use muster_rpc::Clients;
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    access::Secure,
    agent::{hello, say},
    server::within,
};

fn reference() -> Option<v1::JobRef> {
    Some(v1::JobRef {
        namespace: "team-a".into(),
        name: "digits".into(),
    })
}

fn value(job: Option<v1::Job>) -> String {
    let job = job.unwrap();
    assert_eq!(job.owner, "ann");
    job.spec.unwrap().env[0].value.clone()
}

/// The value of ANSWER, by each method.
async fn told(of: &Clients) -> Vec<(&'static str, String)> {
    let r#ref = reference();
    let get = v1::GetJobRequest {
        r#ref: r#ref.clone(),
    };
    let got = within(of.jobs().get(get)).await.unwrap().into_inner();
    let list = v1::ListJobsRequest {
        namespace: "team-a".into(),
        ..v1::ListJobsRequest::default()
    };
    let listed = within(of.jobs().list(list)).await.unwrap().into_inner();
    let explain = v1::ExplainRequest {
        r#ref: r#ref.clone(),
    };
    let explained = within(of.jobs().explain(explain)).await.unwrap();
    let environment = v1::EnvironmentRequest { r#ref };
    let environment = within(of.jobs().environment(environment)).await.unwrap();
    let variables = environment.into_inner().variables;
    let ours = variables.into_iter().find(|one| one.name == "ANSWER");
    vec![
        ("get", value(got.job)),
        ("list", value(listed.jobs.into_iter().next())),
        ("explain", value(explained.into_inner().job)),
        ("environment", ours.unwrap().value.unwrap()),
    ]
}

#[tokio::test]
async fn the_values_are_the_owners_and_the_admins() {
    let secure = Secure::start().await;
    let n1 = secure.host("n1").await;
    let n1 = secure.as_whom(&n1).await;
    let (up, messages) = tokio::sync::mpsc::channel(8);
    up.send(say(FromAgent::Hello(hello("n1")))).await.unwrap();
    let mut agents = n1.agents();
    let session = agents.session(ReceiverStream::new(messages));
    let mut down = within(session).await.unwrap().into_inner();
    assert!(within(down.message()).await.unwrap().is_some(), "welcome");

    let user = async |name: &str, role| {
        let user = secure.user(name, Some((role, &["team-a"]))).await;
        secure.as_whom(&user).await
    };
    let ann = user("ann", Role::Submitter).await;
    let spec = v1::JobSpec {
        env: vec![v1::EnvVar {
            file: String::new(),
            name: "ANSWER".into(),
            value: "42".into(),
        }],
        ..crate::server::spec(1)
    };
    let submit = v1::SubmitRequest {
        r#ref: reference(),
        spec: Some(spec),
        ..v1::SubmitRequest::default()
    };
    within(ann.jobs().submit(submit)).await.unwrap();
    // A generation is opened, and so the environment is decided.
    let request = v1::WatchJobsRequest {
        namespace: "team-a".into(),
        name: "digits".into(),
    };
    let mut watch = within(ann.jobs().watch(request))
        .await
        .unwrap()
        .into_inner();
    within(async {
        loop {
            let seen = watch.message().await.unwrap().unwrap();
            if seen.job.unwrap().status.unwrap().generation > 0 {
                return;
            }
        }
    })
    .await;

    for (method, value) in told(&ann).await {
        assert_eq!(value, "42", "ann by {method}");
    }
    let others = [
        ("dan", Role::Submitter, "<hidden>"),
        ("eve", Role::Operator, "<hidden>"),
        ("fay", Role::Admin, "42"),
    ];
    for (name, role, sees) in others {
        for (method, value) in told(&user(name, role).await).await {
            assert_eq!(value, sees, "{name} by {method}");
        }
    }
}
