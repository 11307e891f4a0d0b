//! Users of Kubernetes: who they are, and what the cluster's rules let them do.

use std::collections::BTreeSet;

use muster_proto::v1;
use muster_rpc::Clients;
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    access::{METHODS, May, Secure, call, call_with},
    cluster::{Cluster, Fault, Grant, Holder},
    server::{spec, within},
    tokens::{mint, whoami},
};

async fn beside(cluster: &Cluster) -> Secure {
    Secure::start_with(|settings| settings.kubernetes = Some(cluster.users())).await
}

fn allow(
    cluster: &Cluster,
    who: &str,
    verb: &'static str,
    resource: &'static str,
    namespace: &'static str,
) {
    let grant = Grant {
        who: who.to_owned(),
        verb,
        resource,
        namespace,
    };
    cluster.change(|state| state.grants.push(grant));
}

async fn user(secure: &Secure, cluster: &Cluster, name: &str) -> Clients {
    let token = mint(cluster, Holder::user(name, &["system:authenticated"]));
    secure.with_token(&token).await
}

fn reference(namespace: &str) -> Option<v1::JobRef> {
    Some(v1::JobRef {
        namespace: namespace.into(),
        name: "job".into(),
    })
}

fn submit(namespace: &str) -> v1::SubmitRequest {
    let secret = v1::EnvVar {
        name: "SECRET".into(),
        value: "42".into(),
        ..v1::EnvVar::default()
    };
    v1::SubmitRequest {
        r#ref: reference(namespace),
        spec: Some(v1::JobSpec {
            env: vec![secret],
            ..spec(1)
        }),
        ..v1::SubmitRequest::default()
    }
}

/// The right that each method asks for. Written down apart from the table that it checks.
const RIGHTS: [(&str, &str, &str); 31] = [
    ("AuditService/List", "list", "musteraudits"),
    ("EventService/List", "list", "musterjobs/events"),
    ("EventService/Watch", "watch", "musterjobs/events"),
    ("HistoryService/List", "list", "musterjobs"),
    ("JobService/Cancel", "update", "musterjobs/cancel"),
    ("JobService/Delete", "delete", "musterjobs"),
    ("JobService/Environment", "get", "musterjobs/environment"),
    ("JobService/Explain", "get", "musterjobs/explain"),
    ("JobService/Get", "get", "musterjobs"),
    ("JobService/List", "list", "musterjobs"),
    ("JobService/Logs", "get", "musterjobs/log"),
    ("JobService/Resume", "update", "musterjobs/suspend"),
    ("JobService/Scale", "update", "musterjobs/scale"),
    ("JobService/Signal", "update", "musterjobs/signal"),
    ("JobService/Stacks", "get", "musterjobs/stacks"),
    ("JobService/Submit", "create", "musterjobs"),
    ("JobService/Suspend", "update", "musterjobs/suspend"),
    ("JobService/Wait", "get", "musterjobs"),
    ("JobService/Watch", "watch", "musterjobs"),
    ("NodeService/Cordon", "update", "musternodes/cordon"),
    ("NodeService/Delete", "delete", "musternodes"),
    ("NodeService/Get", "get", "musternodes"),
    ("NodeService/List", "list", "musternodes"),
    ("NodeService/Uncordon", "update", "musternodes/cordon"),
    ("NodeService/Watch", "watch", "musternodes"),
    ("NotificationService/ListOpen", "create", "musterjobs"),
    (
        "NotificationService/ListReceivers",
        "list",
        "musternotifications",
    ),
    (
        "NotificationService/TestReceiver",
        "get",
        "musternotifications/test",
    ),
    ("QueueService/List", "list", "musterqueues"),
    (
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "get",
        "musterapis",
    ),
    (
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "get",
        "musterapis",
    ),
];

/// Calls a method about the job `job` of namespace `default`, or about any node.
async fn ask(clients: &Clients, method: &str) -> Result<(), Status> {
    let channel = clients.channel();
    match method {
        "JobService/Submit" => call_with(channel, method, submit("")).await,
        "JobService/Wait" => {
            let request = v1::WaitRequest {
                r#ref: reference(""),
                wait_for: v1::WaitFor::Running.into(),
                timeout_ms: 1,
            };
            call_with(channel, method, request).await
        }
        "JobService/List" | "JobService/Watch" => call(channel, method).await,
        // Of all requests about one job, the reference is the first field.
        job if job.starts_with("JobService/") => {
            let request = v1::GetJobRequest {
                r#ref: reference(""),
            };
            call_with(channel, method, request).await
        }
        _ => call(channel, method).await,
    }
}

fn is_refused(answer: &Result<(), Status>) -> bool {
    let code = answer.as_ref().err().map(Status::code);
    matches!(code, Some(Code::PermissionDenied | Code::Unauthenticated))
}

#[tokio::test]
async fn every_method_asks_the_cluster_for_its_right() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let named: BTreeSet<&str> = RIGHTS.iter().map(|(method, ..)| *method).collect();
    let all: BTreeSet<(&str, &str)> = RIGHTS.iter().map(|(_, verb, on)| (*verb, *on)).collect();
    for (verb, resource) in &all {
        let right = format!("{verb} {resource}");
        allow(&cluster, &format!("only {right}"), verb, resource, "");
        for (other, on) in all.iter().filter(|other| **other != (verb, resource)) {
            allow(&cluster, &format!("all but {right}"), other, on, "");
        }
    }
    let nobody = user(&secure, &cluster, "nobody").await;
    let mut wrong = Vec::new();
    for (method, least) in METHODS {
        let answer = ask(&nobody, method).await;
        if is_refused(&answer) == (least == Some(May::Ask)) && method != "AccessService/Join" {
            wrong.push(format!("nobody calls {method}: {answer:?}"));
        }
        let for_users = least.is_some_and(|least| least >= May::View);
        assert_eq!(named.contains(method), for_users, "{method} in RIGHTS");
    }
    for (method, verb, resource) in RIGHTS {
        let right = format!("{verb} {resource}");
        let only = user(&secure, &cluster, &format!("only {right}")).await;
        let answer = ask(&only, method).await;
        if is_refused(&answer) {
            wrong.push(format!("with only {right}, {method}: {answer:?}"));
        }
        let others = user(&secure, &cluster, &format!("all but {right}")).await;
        let answer = ask(&others, method).await;
        let says = format!("may not {right}");
        if !answer
            .as_ref()
            .is_err_and(|status| status.message().contains(&says))
        {
            wrong.push(format!("with all but {right}, {method}: {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_right_ends_at_its_namespace_and_the_whole_user_is_asked_about() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    allow(&cluster, "group:team-a", "*", "*", "team-a");
    allow(&cluster, "root", "*", "*", "");
    let token = mint(
        &cluster,
        Holder::user("ann", &["team-a", "system:authenticated"]),
    );
    let ann = secure.with_token(&token).await;
    let root = user(&secure, &cluster, "root").await;
    within(ann.jobs().submit(submit("team-a"))).await.unwrap();
    within(root.jobs().submit(submit("team-b"))).await.unwrap();
    let refused = within(ann.jobs().submit(submit("team-b"))).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert_eq!(
        refused.message(),
        "kubernetes/ann may not create musterjobs in namespace team-b; whoever runs the Kubernetes cluster can allow it: apiGroups \
         [muster.dev], resources [musterjobs], verbs [create]"
    );
    let asked = cluster.change(|state| state.decided.clone());
    let expected = json!({
        "user": "ann",
        "uid": "uid-ann",
        "groups": ["team-a", "system:authenticated"],
        "extra": { "example.org/team": ["a", "b"] },
        "resourceAttributes": {
            "group": "muster.dev", "version": "*", "resource": "musterjobs", "verb": "create",
            "namespace": "team-b", "name": "job",
        },
    });
    assert_eq!(asked, expected);

    let list = |namespace: &str| v1::ListJobsRequest {
        namespace: namespace.into(),
        ..v1::ListJobsRequest::default()
    };
    let listed = async |clients: &Clients, namespace: &str| {
        let listed = within(clients.jobs().list(list(namespace))).await?;
        let jobs = listed.into_inner().jobs.into_iter();
        Ok::<_, Status>(
            jobs.map(|job| job.r#ref.unwrap().namespace)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(listed(&ann, "team-a").await.unwrap(), ["team-a"]);
    assert_eq!(listed(&root, "").await.unwrap(), ["team-a", "team-b"]);
    for namespace in ["", "team-b"] {
        let status = listed(&ann, namespace).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
    let can = async |clients: &Clients, method: &str, namespace: &str| {
        let request = v1::CanIRequest {
            method: method.into(),
            namespace: namespace.into(),
        };
        let answer = within(clients.access().can_i(request)).await.unwrap();
        answer.into_inner().allowed
    };
    assert!(can(&ann, "JobService/Submit", "team-a").await);
    assert!(!can(&ann, "JobService/Submit", "team-b").await);
    assert!(!can(&ann, "JobService/List", "").await);
    assert!(!can(&ann, "EventService/List", "").await);
    assert!(!can(&ann, "NodeService/Cordon", "").await);
    assert!(can(&root, "NodeService/Cordon", "").await);
}

#[tokio::test]
async fn secrets_in_the_environment_need_a_right_of_their_own() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    allow(&cluster, "root", "*", "*", "");
    allow(&cluster, "viewer", "get", "musterjobs", "team-a");
    allow(&cluster, "reader", "get", "musterjobs", "team-a");
    allow(
        &cluster,
        "reader",
        "get",
        "musterjobs/environment",
        "team-a",
    );
    let root = user(&secure, &cluster, "root").await;
    within(root.jobs().submit(submit("team-a"))).await.unwrap();
    for (name, sees) in [("root", "42"), ("reader", "42"), ("viewer", "<hidden>")] {
        let clients = user(&secure, &cluster, name).await;
        let request = v1::GetJobRequest {
            r#ref: reference("team-a"),
        };
        let job = within(clients.jobs().get(request)).await.unwrap();
        let spec = job.into_inner().job.unwrap().spec.unwrap();
        assert_eq!(spec.env[0].value, sees, "{name}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_right_to_it() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    allow(&cluster, "ann", "*", "*", "");
    let ann = user(&secure, &cluster, "ann").await;
    within(ann.jobs().submit(submit("team-a"))).await.unwrap();
    let request = v1::WatchJobsRequest {
        namespace: "team-a".into(),
        name: "job".into(),
    };
    let mut watch = within(ann.jobs().watch(request))
        .await
        .unwrap()
        .into_inner();
    assert!(within(watch.message()).await.unwrap().is_some());
    // An API server that is away for a moment ends nothing.
    cluster.change(|state| state.faults.insert("subjectaccessreviews", Fault::Away));
    let before = cluster.change(|state| state.asked["subjectaccessreviews"]);
    cluster
        .until(|state| state.asked["subjectaccessreviews"] > before)
        .await;
    cluster.change(|state| {
        state.faults.clear();
        state.grants.clear();
    });
    let ended = within(async {
        loop {
            match watch.message().await {
                Ok(message) => assert!(message.is_some(), "it ends with a reason"),
                Err(status) => return status,
            }
        }
    })
    .await;
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
    assert!(
        ended
            .message()
            .contains("may not watch musterjobs in namespace team-a"),
        "{ended}"
    );
}

#[tokio::test]
async fn without_an_answer_nothing_is_allowed() {
    for fault in [Fault::Busy, Fault::Away, Fault::Cut, Fault::Nonsense] {
        let cluster = Cluster::start().await;
        let secure = beside(&cluster).await;
        allow(&cluster, "ann", "*", "*", "");
        let ann = user(&secure, &cluster, "ann").await;
        whoami(&ann).await.unwrap();
        cluster.change(|state| state.faults.insert("subjectaccessreviews", fault));
        for method in ["JobService/List", "JobService/Submit", "NodeService/List"] {
            let status = ask(&ann, method).await.unwrap_err();
            assert_eq!(
                status.code(),
                Code::Unavailable,
                "{fault:?} {method}: {status}"
            );
            assert!(status.message().contains("cannot be asked what you may do"));
        }
    }
}

#[tokio::test]
async fn the_trail_and_the_events_name_the_user() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    allow(&cluster, "root", "*", "*", "");
    let (root, eve) = (
        user(&secure, &cluster, "root").await,
        user(&secure, &cluster, "eve").await,
    );
    let who = within(root.access().who_am_i(v1::WhoAmIRequest {})).await;
    let who = who.unwrap().into_inner();
    assert_eq!(
        (who.identity.as_str(), who.proof.as_str(), who.role.as_str()),
        ("kubernetes/root", "kubernetes-token", "")
    );
    within(root.jobs().submit(submit("team-a"))).await.unwrap();
    within(eve.jobs().submit(submit("team-a")))
        .await
        .unwrap_err();
    let cordon = v1::CordonRequest {
        name: "n1".into(),
        ..v1::CordonRequest::default()
    };
    within(eve.nodes().cordon(cordon)).await.unwrap_err();
    let expected = [
        "kubernetes/root submit job/team-a/job Allowed",
        "kubernetes/eve submit job/team-a/job Denied",
        "kubernetes/eve cordon  Denied",
    ];
    within(async {
        loop {
            let request = v1::ListAuditRequest::default();
            let mut stream = root.audit().list(request).await.unwrap().into_inner();
            let mut found = BTreeSet::new();
            while let Some(page) = stream.message().await.unwrap() {
                found.extend(page.entries.iter().map(|entry| {
                    format!(
                        "{} {} {} {}",
                        entry.who, entry.what, entry.object, entry.result
                    )
                }));
            }
            if expected.iter().all(|line| found.contains(*line)) {
                return;
            }
        }
    })
    .await;
}
