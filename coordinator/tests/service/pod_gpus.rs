//! The GPUs that pods hold, as the agents of their hosts report them: what follows for jobs, and who sees
//! what of it.

use muster_core::{
    health::{Finding, Health, Remedy, Severity, Subject},
    node_report::{
        Gpu, NodeReport,
        holders::{Holder as PodOf, Holders},
    },
};
use muster_proto::v1;

use crate::{
    access::Secure,
    agent::{FakeAgent, Order},
    cluster::{Cluster, Holder},
    kubectl::NAMESPACE,
    server::within,
    tokens::mint,
    worker_pods::{World, job, runs_on},
};
use muster_coordinator::trust::Role;

/// Two GPUs, `GPU-0` and `GPU-1`, held by these pods as `NAMESPACE/POD`.
fn host(holders: [&str; 2], sick: &[usize]) -> Box<NodeReport> {
    let uuid = |index: usize| format!("GPU-{index}");
    let gpu = |index: usize| Gpu {
        uuid: uuid(index),
        index: index as u32,
        ..Gpu::default()
    };
    let held = holders.iter().enumerate().map(|(index, pod)| {
        let (namespace, pod) = pod.split_once('/').unwrap();
        PodOf {
            gpu: uuid(index),
            namespace: namespace.into(),
            pod: pod.into(),
        }
    });
    let finding = |index: &usize| Finding {
        check: "xid:48".into(),
        subject: Subject::Gpu(uuid(*index)),
        severity: Severity::FailNow,
        remedy: Remedy::GpuReset,
        reason: "XID 48".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    };
    Box::new(NodeReport {
        gpus: (0..2).map(gpu).collect(),
        holders: Holders::Known(held.collect()),
        health: Health {
            findings: sick.iter().map(finding).collect(),
        },
        senses_only: true,
        ..NodeReport::default()
    })
}

async fn agent_of(secure: &Secure, cluster: &Cluster, node: &str) -> FakeAgent {
    let token = mint(cluster, Holder::agent(node));
    let clients = secure.with_token(&token).await;
    FakeAgent::over(&clients, node).await
}

#[tokio::test]
async fn a_job_leaves_the_pod_whose_gpu_fails_and_gets_another_elsewhere() {
    let mut world = World::start().await;
    world.kubectl.apply("digits", job()).await.unwrap();
    let pods = world.pods(2).await;
    world.runs(&pods[0], "gpu-1").await;
    world.runs(&pods[1], "gpu-2").await;
    let before = world.until(runs_on("2/2")).await;
    let generation = |object: &serde_json::Value| object["status"]["jobGeneration"].as_u64();
    let agent = agent_of(&world.secure, &world.cluster, "gpu-2").await;
    let says = |sick: &[usize]| {
        let own = format!("{NAMESPACE}/{}", pods[1]);
        Order::Report(host([&own, "team-x/notebook-0"], sick))
    };
    // A GPU of somebody else on that host breaks, and nothing happens. Then one of the pod does.
    agent.orders.send(says(&[1])).await.unwrap();
    agent.orders.send(says(&[0, 1])).await.unwrap();
    world.until(runs_on("1/2")).await;
    let now = world.pods(2).await;
    assert!(now.contains(&pods[0]) && !now.contains(&pods[1]), "{now:?}");
    let new = now.iter().find(|pod| !pods.contains(pod)).unwrap().clone();
    let place = (NAMESPACE.to_owned(), new.clone());
    let pod = world.cluster.change(|state| state.pods[&place].clone());
    let affinity = pod["spec"]["affinity"].to_string();
    let kept_from = r#"{"key":"metadata.name","operator":"NotIn","values":["gpu-2"]}"#;
    assert!(affinity.contains(kept_from), "{affinity}");
    world.runs(&new, "gpu-3").await;
    let object = world.until(runs_on("2/2")).await;
    // One without the pod and one with the other, and none for the neighbour's GPU.
    let more = generation(&before).map(|number| number + 2);
    assert_eq!(generation(&object), more, "{object:#}");

    let admin = world.secure.user("root", Some((Role::Admin, &[]))).await;
    let admin = world.secure.as_whom(&admin).await;
    let events = v1::ListEventsRequest {
        namespace: NAMESPACE.into(),
        job: "digits".into(),
        ..v1::ListEventsRequest::default()
    };
    let events = within(admin.events().list(events)).await.unwrap();
    let events = events.into_inner().events;
    let xids: Vec<&str> = events
        .iter()
        .filter(|event| event.reason == "Xid")
        .map(|event| event.message.as_str())
        .collect();
    let said = format!(
        "{}.{NAMESPACE}.pod: xid:48: XID 48 (GPU-0 on gpu-2)",
        pods[1]
    );
    assert_eq!(xids, [said]);
}

#[tokio::test]
async fn pods_are_named_to_those_who_may_look_into_their_namespace() {
    let secure = Secure::start().await;
    let own = secure.host("n1").await;
    let agent = FakeAgent::over(&secure.as_whom(&own).await, "n1").await;
    let report = host(["team-a/train-0", "team-b/notebook-0"], &[]);
    agent.orders.send(Order::Report(report)).await.unwrap();
    let node = async |name: &str, namespaces: &[&str]| {
        let user = secure.user(name, Some((Role::Viewer, namespaces))).await;
        let clients = secure.as_whom(&user).await;
        within(async {
            loop {
                let get = v1::GetNodeRequest { name: "n1".into() };
                let node = clients.nodes().get(get).await.unwrap().into_inner();
                match node.node.unwrap() {
                    node if node.gpu_holders.is_some() => return node,
                    _ => tokio::task::yield_now().await,
                }
            }
        })
        .await
    };
    let pods = |node: &v1::Node| -> Vec<(String, String)> {
        let holders = &node.gpu_holders.as_ref().unwrap().holders;
        let one = |holder: &v1::GpuHolder| (holder.gpu.clone(), holder.pod.clone());
        holders.iter().map(one).collect()
    };
    let pair = |gpu: &str, pod: &str| (gpu.to_owned(), pod.to_owned());
    let all = node("bob", &[]).await;
    assert!(all.senses_only);
    assert_eq!(
        pods(&all),
        [pair("GPU-0", "train-0"), pair("GPU-1", "notebook-0")]
    );
    let some = node("ann", &["team-a"]).await;
    assert_eq!(pods(&some), [pair("GPU-0", "train-0"), pair("GPU-1", "")]);
    assert_eq!(some.gpu_holders.unwrap().holders[1].namespace, "");
}
