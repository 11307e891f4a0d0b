//! Objects of namespaces are listed and followed through one type, in which each namespace has a share of what
//! is kept. So nobody takes a reader away from others by making very many.

use muster_architecture::{expect_none, sources};

/// The type, which is not there without shares.
const FOLLOWER: &str = "operator/src/follow.rs";
/// These ask for objects of Muster's own namespace alone: its records, and the pod that leads.
const OWN: [&str; 2] = [
    "coordinator/src/kubernetes/leader.rs",
    "coordinator/src/store/kubernetes/client.rs",
];
/// What asks an API server for many objects.
const LISTS: [&str; 6] = [
    "ListParams",
    "WatchParams",
    "ListMeta",
    "limit=",
    "labelSelector=",
    "watch=",
];

#[test]
fn every_list_of_an_api_server_has_shares() {
    let (mut wrong, mut found) = (Vec::new(), Vec::new());
    for source in sources() {
        let asks = ["coordinator/src/", "operator/src/"]
            .iter()
            .any(|room| source.path.starts_with(room));
        for (at, line) in source.production() {
            if !asks || !LISTS.iter().any(|word| line.contains(word)) {
                continue;
            }
            match source.path.as_str() {
                FOLLOWER => found.push(FOLLOWER),
                path if OWN.contains(&path) => {}
                path => wrong.push(format!("{path}:{at}")),
            }
        }
    }
    assert!(
        !found.is_empty(),
        "nothing lists objects: this test looks in the wrong place"
    );
    expect_none(
        &wrong,
        "follow the objects with `muster_operator`'s `follow::Follower`, whose `Reader` names namespace and bytes of each",
    );
}
