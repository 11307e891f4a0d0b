//! Nodes as users see and cordon them.

use muster_proto::v1;
use tonic::Code;

use crate::{
    agent::FakeAgent,
    server::{Server, within},
};

#[tokio::test]
async fn a_node_is_listed_cordoned_and_forgotten() {
    let server = Server::start().await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let _other = FakeAgent::start(&server, "node-b", &[], true).await;
    let node = server.until_node("node-a", |node| node.state() == v1::NodeState::Ready).await;
    assert_eq!((node.slots, node.slots_free, node.boot_id.as_str()), (1, 1, "boot-of-node-a"));

    // Heartbeats change nothing but this, and it is not told to watchers.
    within(async {
        let get = || v1::GetNodeRequest { name: "node-a".into() };
        while server.nodes().get(get()).await.unwrap().into_inner().node.unwrap().last_heard_unix_us <= node.last_heard_unix_us {}
    })
    .await;

    let page = server.nodes().list(v1::ListNodesRequest { page_size: 1, page_token: String::new() }).await.unwrap().into_inner();
    assert_eq!((page.nodes[0].name.as_str(), page.next_page_token.as_str()), ("node-a", "node-a"));
    let rest = v1::ListNodesRequest { page_size: 1, page_token: page.next_page_token };
    assert_eq!(server.nodes().list(rest).await.unwrap().into_inner().nodes[0].name, "node-b");

    let cordon = v1::CordonRequest { name: "node-a".into(), reason: "fan".into(), by: "ann".into() };
    let cordoned = server.nodes().cordon(cordon).await.unwrap().into_inner().node.unwrap().cordon.unwrap();
    assert_eq!((cordoned.by.as_str(), cordoned.reason.as_str()), ("ann", "fan"));
    let shown = server.nodes().get(v1::GetNodeRequest { name: "node-a".into() }).await.unwrap().into_inner().node.unwrap();
    assert_eq!(shown.cordon, Some(cordoned));
    let free = server.nodes().uncordon(v1::UncordonRequest { name: "node-a".into() }).await.unwrap().into_inner().node.unwrap();
    assert_eq!(free.cordon, None);

    let delete = || v1::DeleteNodeRequest { name: "node-a".into() };
    let refused = server.nodes().delete(delete()).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "node-a is connected; stop its agent first"));
    let mut watch = server.nodes().watch(v1::WatchNodesRequest { name: "node-a".into() }).await.unwrap().into_inner();
    drop(agent);
    server.until_node("node-a", |node| node.state() == v1::NodeState::Suspect).await;
    server.nodes().delete(delete()).await.unwrap();
    within(async { while !watch.message().await.unwrap().unwrap().deleted {} }).await;
    assert_eq!(server.nodes().get(v1::GetNodeRequest { name: "node-a".into() }).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn every_service_is_healthy() {
    let server = Server::start().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(server.channel.clone());
    for service in ["", "muster.v1.JobService", "muster.v1.NodeService", "muster.v1.EventService", "muster.v1.AgentService"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::Serving, "{service}");
    }
    let unknown = tonic_health::pb::HealthCheckRequest { service: "muster.v1.None".into() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), Code::NotFound);
}
