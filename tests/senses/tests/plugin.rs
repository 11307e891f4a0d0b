//! The device plugin of `tests/e2e` says to a kubelet what NVML says to the agent.

use muster_fake_nvml::machine;
use muster_senses::{
    kubelet::Registrar,
    plugin::{
        self, RESOURCE,
        api::{AllocateRequest, ContainerAllocateRequest, Empty},
    },
};
use tempfile::TempDir;
use tonic::Code;

fn asked(uuids: &[&String]) -> AllocateRequest {
    let devices_ids = uuids.iter().map(|uuid| (*uuid).clone()).collect();
    AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids }],
    }
}

#[tokio::test]
async fn gpus_are_offered_by_uuid_also_to_a_kubelet_that_starts_anew() {
    let home = TempDir::new().expect("a directory");
    let (there, plugins) = (home.path().join("machine"), home.path().join("plugins"));
    std::fs::create_dir(&plugins).expect("the directory is ours");
    machine::make(&there, "4xl40s", "node-1", None).expect("a machine");
    let uuids = plugin::gpus_of(&there).expect("its GPUs");
    assert_eq!(uuids.len(), 4);

    let mut kubelet = Registrar::start(&plugins);
    let offered = {
        let (uuids, plugins) = (uuids.clone(), plugins.clone());
        tokio::spawn(async move { plugin::offer(uuids, &plugins).await })
    };
    for _ in 0..2 {
        let (said, mut client) = kubelet.registered().await;
        assert_eq!(
            (&*said.version, &*said.resource_name),
            ("v1beta1", RESOURCE)
        );
        let mut devices = client
            .list_and_watch(Empty {})
            .await
            .expect("a stream")
            .into_inner();
        let devices = devices
            .message()
            .await
            .expect("an answer")
            .expect("one message");
        let ids: Vec<String> = devices.devices.iter().map(|one| one.id.clone()).collect();
        assert_eq!(ids, uuids);
        assert!(devices.devices.iter().all(|one| one.health == "Healthy"));

        let given = client.allocate(asked(&[&uuids[2], &uuids[0]])).await;
        let given = given
            .expect("they are ours")
            .into_inner()
            .container_responses;
        let visible = format!("{},{}", uuids[2], uuids[0]);
        assert_eq!(given[0].envs["NVIDIA_VISIBLE_DEVICES"], visible);
        let refused = client
            .allocate(asked(&[&"GPU-of-another".to_owned()]))
            .await;
        assert_eq!(refused.expect_err("no such GPU").code(), Code::NotFound);

        drop(kubelet);
        kubelet = Registrar::start(&plugins);
    }
    offered.abort();
}
