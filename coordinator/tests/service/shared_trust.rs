//! The trust folder in a Secret: whatever somebody was told is known to the coordinator that decides next.

use std::{fs, path::Path, process::Command};

use muster_coordinator::{store::kubernetes::SharedTrust, trust};
use muster_rpc::identity::Kind;
use tempfile::TempDir;

use crate::{
    access::Secure,
    cluster::{Cluster, Fault},
};

/// A coordinator whose trust folder is kept in a Secret.
async fn start(cluster: &Cluster) -> Secure {
    let secure = Secure::start().await;
    let path = secure.path().to_owned();
    let stopped = secure.stop().await;
    let mut shared = SharedTrust::fetch(&cluster.configuration(), path)
        .await
        .unwrap();
    shared.keep().await.unwrap();
    Box::pin(stopped.start_with(|settings| settings.shared = Some(shared))).await
}

/// What a coordinator has that takes over now.
async fn next(cluster: &Cluster) -> TempDir {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().to_owned();
    SharedTrust::fetch(&cluster.configuration(), path)
        .await
        .unwrap();
    state
}

#[tokio::test]
async fn a_token_that_was_used_is_used_up_for_the_next_coordinator() {
    let cluster = Cluster::start().await;
    let secure = start(&cluster).await;
    let token = secure.token(Kind::Host, None, 1);
    let path = secure.path().to_owned();
    let shared = tokio::task::spawn_blocking(move || trust::until_shared(&path));
    shared.await.unwrap().unwrap();
    secure.join(&token, "n1").await.unwrap();
    let next = next(&cluster).await;
    assert_eq!(trust::tokens(next.path()).unwrap(), []);
    let issued = next.path().join("trust/issued/host-n1");
    assert!(fs::read_to_string(issued).unwrap().contains("certificates"));
}

/// Its last write may be under way while the next one reads. Then it comes to nothing, and is not told.
#[tokio::test]
async fn a_coordinator_that_was_taken_over_keeps_nothing_more() {
    let cluster = Cluster::start().await;
    let secure = start(&cluster).await;
    let token = secure.token(Kind::Host, None, 2);
    let path = secure.path().to_owned();
    let shared = tokio::task::spawn_blocking(move || trust::until_shared(&path));
    shared.await.unwrap().unwrap();
    let next = next(&cluster).await;
    let refused = secure.join(&token, "n1").await.unwrap_err().to_string();
    assert!(refused.contains("try again"), "{refused}");
    assert_eq!(trust::tokens(next.path()).unwrap()[0].uses, 2);
}

#[tokio::test]
async fn a_join_that_cannot_be_kept_gives_nothing_and_takes_nothing() {
    let cluster = Cluster::start().await;
    let secure = start(&cluster).await;
    let token = secure.token(Kind::Host, None, 2);
    cluster.change(|state| state.faults.insert("secrets", Fault::Away));
    let refused = secure.join(&token, "n1").await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("try again with the same token"), "{said}");
    let left = trust::tokens(secure.path()).unwrap();
    assert_eq!(left[0].uses, 2);
    assert!(!secure.path().join("trust/issued/host-n1").exists());
    cluster.change(|state| state.faults.clear());
    secure.join(&token, "n1").await.unwrap();
    assert_eq!(trust::tokens(secure.path()).unwrap()[0].uses, 1);
}

fn run(state: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster-coordinator"));
    command.args(arguments).arg("--state-dir").arg(state);
    command.output().unwrap().status.success()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_that_was_told_is_known_to_the_next_coordinator() {
    let cluster = Cluster::start().await;
    let secure = start(&cluster).await;
    let path = secure.path().to_owned();
    let deny = move || run(&path, &["deny", "host/n1"]);
    assert!(tokio::task::spawn_blocking(deny).await.unwrap());
    let next = next(&cluster).await;
    let grants = trust::grants(next.path()).unwrap();
    assert!(grants.is_denied(&"host/n1".parse().unwrap()));
}
