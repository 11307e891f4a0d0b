//! The coordinator's certificate in a cluster: made by itself, and its authority where agents find it.

use std::fs;

use muster_coordinator::trust;
use muster_rpc::{
    Bearer,
    channel::Tokens,
    dial,
    dial::Options,
    tls::{ClientTls, Trust},
};
use serde_json::Value;

use crate::{
    cluster::{Cluster, Fault, Holder},
    process::Running,
    server::within,
    tokens::{beside, mint, whoami},
};

fn place() -> (String, String) {
    ("muster-system".into(), "muster-ca-bundle".into())
}

fn published(cluster: &Cluster) -> Value {
    cluster.change(|state| state.config_maps[&place()]["data"]["ca.crt"].clone())
}

#[tokio::test]
async fn the_program_makes_its_authority_and_agents_find_it_in_a_config_map() {
    let (cluster, directory) = (Cluster::start().await, tempfile::tempdir().unwrap());
    // The first attempts fail; it is tried again.
    cluster.change(|state| state.faults.insert("configmaps", Fault::Away));
    let kubeconfig = directory.path().join("kubeconfig");
    fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let start = async |names: &str| {
        Running::start_with(directory.path(), |command| {
            command
                .args(["--kubernetes-agents", "muster-system/muster-agent"])
                .args(["--server-names", names])
                .env("KUBECONFIG", &kubeconfig);
        })
        .await
    };
    let running = start("muster-coordinator.muster-system.svc,127.0.0.1").await;
    cluster
        .until(|state| state.asked.get("configmaps") > Some(&1))
        .await;
    cluster.change(|state| state.faults.clear());
    cluster
        .until(|state| state.config_maps.contains_key(&place()))
        .await;
    let authorities = published(&cluster);
    let authorities = authorities.as_str().unwrap();
    let token = mint(&cluster, Holder::agent("n1"));
    let port = running.endpoint.rsplit(':').next().unwrap();
    let agent = async |server_name: Option<&str>| {
        let trusted = Trust::Authorities(authorities.to_owned());
        let options = Options {
            tls: Some(ClientTls::new(&trusted, None).unwrap()),
            server_name: server_name.map(str::to_owned),
            tokens: Some(Tokens::one(Bearer::parse(&token).unwrap())),
            ..Options::default()
        };
        let address = format!("https://127.0.0.1:{port}").parse().unwrap();
        within(dial(&address, options))
            .await
            .map_err(|e| e.explain())
    };
    for name in [None, Some("muster-coordinator.muster-system.svc")] {
        let clients = agent(name).await.unwrap();
        assert_eq!(whoami(&clients).await.unwrap(), "host/n1");
    }
    let why = agent(Some("muster-coordinator.evil.svc"))
        .await
        .unwrap_err();
    assert!(why.unwrap().contains("not for this name or address"));
    drop(running);

    // At the next start it is the same authority, with one name more.
    let before = fs::read_to_string(directory.path().join("state/trust/authority.pem"));
    let _running = start("127.0.0.1,another.example").await;
    let authority = trust::authorities(&directory.path().join("state")).unwrap();
    assert_eq!(authority.bundle(), before.unwrap());
    let names = [
        "muster-coordinator.muster-system.svc",
        "127.0.0.1",
        "another.example",
    ];
    assert_eq!(authority.names(), names);
}

#[tokio::test]
async fn what_others_do_to_the_config_map_does_not_stop_the_coordinator() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.forbidden.insert("patch configmaps"));
    let secure = beside(&cluster).await;
    cluster
        .until(|state| state.asked.get("configmaps") > Some(&0))
        .await;
    let token = mint(&cluster, Holder::agent("n1"));
    let clients = secure.with_token(&token).await;
    assert_eq!(whoami(&clients).await.unwrap(), "host/n1");
    cluster.change(|state| state.forbidden.clear());
    cluster
        .until(|state| {
            state
                .config_maps
                .keys()
                .any(|(_, name)| name == "muster-ca-bundle")
        })
        .await;
}
