//! Nodes as users see and cordon them.

use muster_coordinator::trust::Role;
use muster_core::exit::Exit;
use muster_proto::v1::{
    self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent,
};
use muster_rpc::Clients;
use tonic::Code;

use crate::{
    access::Secure,
    agent::{FakeAgent, Order, RawSession, hello, say},
    server::{Server, phase, spec, within},
};

/// This process's user, as the coordinator names it.
fn own_name() -> String {
    let uid = muster_rpc::peer::own_user();
    muster_core::fleet::Actor::Local { uid }.to_string()
}

#[tokio::test]
async fn a_node_is_listed_cordoned_and_forgotten() {
    let server = Server::start().await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let _other = FakeAgent::start(&server, "node-b", &[], true).await;
    let node = server
        .until_node("node-a", |node| node.state() == v1::NodeState::Ready)
        .await;
    assert_eq!(
        (node.slots, node.slots_free, node.boot_id.as_str()),
        (1, 1, "boot-of-node-a")
    );

    // Heartbeats change only this time, and watchers are not told of it.
    within(async {
        let get = || v1::GetNodeRequest {
            name: "node-a".into(),
        };
        while server
            .nodes()
            .get(get())
            .await
            .unwrap()
            .into_inner()
            .node
            .unwrap()
            .last_heard_unix_us
            <= node.last_heard_unix_us
        {}
    })
    .await;

    let page = server
        .nodes()
        .list(v1::ListNodesRequest {
            page_size: 1,
            ..v1::ListNodesRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (page.nodes[0].name.as_str(), page.next_page_token.as_str()),
        ("node-a", "node-a")
    );
    let rest = v1::ListNodesRequest {
        page_size: 1,
        page_token: page.next_page_token,
        search: None,
    };
    assert_eq!(
        server.nodes().list(rest).await.unwrap().into_inner().nodes[0].name,
        "node-b"
    );

    let cordon = v1::CordonRequest {
        name: "node-a".into(),
        reason: "fan".into(),
        by: "ann".into(),
    };
    let cordoned = server
        .nodes()
        .cordon(cordon)
        .await
        .unwrap()
        .into_inner()
        .node
        .unwrap()
        .cordon
        .unwrap();
    assert_eq!(
        (cordoned.by.as_str(), cordoned.reason.as_str()),
        (own_name().as_str(), "fan"),
        "the caller is known, and the name in the message is not asked"
    );
    let shown = server
        .nodes()
        .get(v1::GetNodeRequest {
            name: "node-a".into(),
        })
        .await
        .unwrap()
        .into_inner()
        .node
        .unwrap();
    assert_eq!(shown.cordon, Some(cordoned));
    let free = server
        .nodes()
        .uncordon(v1::UncordonRequest {
            name: "node-a".into(),
        })
        .await
        .unwrap()
        .into_inner()
        .node
        .unwrap();
    assert_eq!(free.cordon, None);

    let delete = || v1::DeleteNodeRequest {
        name: "node-a".into(),
    };
    let refused = server.nodes().delete(delete()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::FailedPrecondition,
            "node-a is connected; stop its agent first"
        )
    );
    let mut watch = server
        .nodes()
        .watch(v1::WatchNodesRequest {
            name: "node-a".into(),
        })
        .await
        .unwrap()
        .into_inner();
    drop(agent);
    server
        .until_node("node-a", |node| node.state() == v1::NodeState::Suspect)
        .await;
    server.nodes().delete(delete()).await.unwrap();
    within(async { while !watch.message().await.unwrap().unwrap().deleted {} }).await;
    assert_eq!(
        server
            .nodes()
            .get(v1::GetNodeRequest {
                name: "node-a".into()
            })
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn a_node_s_usage_is_shown_with_its_time_and_told_to_nobody() {
    let server = Server::start().await;
    let mut session = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    assert!(matches!(session.next().await.unwrap(), ToAgent::Welcome(_)));
    let node = server
        .until_node("node-a", |node| node.state() == v1::NodeState::Ready)
        .await;
    assert_eq!(
        (node.usage, node.usage_unix_us),
        (None, 0),
        "not known is not 0"
    );
    let mut watch = server
        .nodes()
        .watch(v1::WatchNodesRequest {
            name: "node-a".into(),
        })
        .await
        .unwrap()
        .into_inner();
    assert!(watch.message().await.unwrap().is_some());

    let usage = v1::Usage {
        memory: Some(v1::Space {
            available: 3,
            total: 16 << 30,
        }),
        processes: Some(7),
        ..v1::Usage::default()
    };
    session
        .up
        .send(say(FromAgent::Usage(usage.clone())))
        .await
        .unwrap();
    let shown = server
        .until_node("node-a", |node| node.usage.is_some())
        .await;
    assert_eq!(shown.usage.as_ref(), Some(&usage));
    assert!(shown.usage_unix_us >= node.first_seen_unix_us);
    let page = server
        .nodes()
        .list(v1::ListNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(page.nodes[0].usage.as_ref(), Some(&usage));

    // A usage is no change of the node, so the next message of the watch is the cordon.
    let cordon = v1::CordonRequest {
        name: "node-a".into(),
        reason: "fan".into(),
        by: "ann".into(),
    };
    server.nodes().cordon(cordon).await.unwrap();
    let heard = within(watch.message())
        .await
        .unwrap()
        .unwrap()
        .node
        .unwrap();
    assert!(heard.cordon.is_some() && heard.usage.is_some());

    let wrong = v1::Usage {
        disks: vec![v1::DiskUsage::default()],
        ..v1::Usage::default()
    };
    session.up.send(say(FromAgent::Usage(wrong))).await.unwrap();
    let ended = loop {
        match session.next().await {
            Ok(_) => {}
            Err(ended) => break ended,
        }
    };
    assert_eq!(
        (ended.code(), ended.message()),
        (
            Code::InvalidArgument,
            "usage.disks[0].role: is 0, which is none"
        )
    );
    let shown = server
        .until_node("node-a", |node| node.state() != v1::NodeState::Ready)
        .await;
    assert_eq!(
        shown.usage,
        Some(usage),
        "the last one stays, with its time"
    );
}

#[tokio::test]
async fn every_service_is_healthy() {
    let server = Server::start().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(server.clients.channel());
    for service in [
        "",
        "muster.v1.JobService",
        "muster.v1.NodeService",
        "muster.v1.EventService",
        "muster.v1.AgentService",
        "muster.v1.AccessService",
        "muster.v1.AuditService",
        "muster.v1.HistoryService",
        "muster.v1.NotificationService",
        "muster.v1.QueueService",
    ] {
        let request = tonic_health::pb::HealthCheckRequest {
            service: service.into(),
        };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(
            status,
            tonic_health::pb::health_check_response::ServingStatus::Serving,
            "{service}"
        );
    }
    let unknown = tonic_health::pb::HealthCheckRequest {
        service: "muster.v1.None".into(),
    };
    assert_eq!(
        health.check(unknown).await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn which_job_holds_which_gpu_is_told() {
    let server = Server::start().await;
    let agent = FakeAgent::with_gpu(&server, "node-a", "13.0").await;
    let wanted = v1::JobSpec {
        gpus_per_node: Some(1),
        ..spec(1)
    };
    server.submit("digits", wanted).await;
    let running = |job: &v1::Job| phase(job) == v1::JobPhase::Running;
    let job = server.until_job("digits", running).await;
    assert_eq!(job.status.unwrap().members[0].gpus, ["GPU-of-node-a"]);
    let node = server
        .until_node("node-a", |node| !node.runs.is_empty())
        .await;
    let run = &node.runs[0];
    assert_eq!(
        (run.job.as_str(), &*run.gpus),
        ("digits", &["GPU-of-node-a".to_owned()][..])
    );

    agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    let holds = |node: &v1::Node| node.runs.iter().any(|run| !run.gpus.is_empty());
    server.until_node("node-a", |node| !holds(node)).await;
}

/// The names of what is found, and how many match.
async fn found(clients: &Clients, text: &str, skip: u32, page_size: u32) -> (Vec<String>, u32) {
    let request = v1::ListNodesRequest {
        page_size,
        search: Some(v1::NodeSearch {
            text: text.into(),
            skip,
        }),
        ..v1::ListNodesRequest::default()
    };
    let answer = clients.nodes().list(request).await.unwrap().into_inner();
    assert_eq!(answer.next_page_token, "", "skip leads to the next page");
    let names = answer.nodes.into_iter().map(|node| node.name);
    (names.collect(), answer.sums.unwrap().matching)
}

#[tokio::test]
async fn nodes_are_searched_with_trouble_first_and_page_by_page() {
    let server = Server::start().await;
    let _a = FakeAgent::with_gpu(&server, "node-a", "13.0").await;
    let _b = FakeAgent::start(&server, "node-b", &[], true).await;
    let _c = FakeAgent::start(&server, "node-c", &[], true).await;
    let cordon = v1::CordonRequest {
        name: "node-c".into(),
        ..v1::CordonRequest::default()
    };
    server.nodes().cordon(cordon).await.unwrap();
    let clients = &server.clients;
    within(async { while found(clients, "cordoned", 0, 0).await.1 == 0 {} }).await;

    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    for (text, skip, most, expected, matching) in [
        ("", 0, 0, names(&["node-c", "node-a", "node-b"]), 3),
        ("", 1, 1, names(&["node-a"]), 3),
        ("", 3, 1, names(&[]), 3),
        ("NODE-", u32::MAX, 0, names(&[]), 3),
        ("h100", 0, 0, names(&["node-a"]), 1),
        ("ready, cordoned", 0, 0, names(&["node-c"]), 1),
        ("<script>", 0, 0, names(&[]), 0),
    ] {
        let answer: (Vec<String>, u32) = found(clients, text, skip, most).await;
        assert_eq!(answer, (expected, matching), "{text:?} {skip} {most}");
    }
    let search = v1::ListNodesRequest {
        search: Some(v1::NodeSearch {
            text: "node-b".into(),
            skip: 0,
        }),
        ..v1::ListNodesRequest::default()
    };
    let answer = server.nodes().list(search).await.unwrap().into_inner();
    let expected = v1::NodeSums {
        matching: 1,
        nodes: 3,
        ready: 3,
        cordoned: 1,
        gpus: 1,
        ..v1::NodeSums::default()
    };
    assert_eq!(answer.sums, Some(expected), "all nodes are counted");
    let plain = server.nodes().list(v1::ListNodesRequest::default()).await;
    let plain = plain.unwrap().into_inner();
    assert_eq!((plain.nodes.len(), plain.sums), (3, None));
}

#[tokio::test]
async fn nobody_finds_a_node_by_a_job_that_he_may_not_see() {
    let secure = Secure::start().await;
    let own = secure.host("n1").await;
    let _agent = FakeAgent::over(&secure.as_whom(&own).await, "n1").await;
    let viewer = async |name: &str, namespaces: &[&str]| {
        let user = secure.user(name, Some((Role::Viewer, namespaces))).await;
        secure.as_whom(&user).await
    };
    let everybody = secure.user("root", Some((Role::Operator, &[]))).await;
    let root = secure.as_whom(&everybody).await;
    let submit = v1::SubmitRequest {
        r#ref: Some(v1::JobRef {
            namespace: "team-b".into(),
            name: "secret".into(),
        }),
        spec: Some(spec(1)),
        ..v1::SubmitRequest::default()
    };
    within(root.jobs().submit(submit)).await.unwrap();
    within(async { while found(&root, "secret", 0, 0).await.1 == 0 {} }).await;
    let theirs = viewer("bob", &["team-b"]).await;
    let ours = viewer("ann", &["team-a"]).await;
    assert_eq!(found(&theirs, "secret", 0, 0).await.1, 1);
    assert_eq!(found(&ours, "secret", 0, 0).await.1, 0);
    assert_eq!(
        found(&ours, "n1", 0, 0).await.1,
        1,
        "the node itself is no secret"
    );
}
