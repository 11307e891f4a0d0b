//! The store in an API server: the suite of all stores, and what only it can meet.

use std::{fs, time::Duration};

use muster_coordinator::store::{
    Leadership, Loaded, Store, StoreError,
    kubernetes::{Candidate, KubernetesStore, LeaseTimes},
};
use muster_core::{
    fleet::{
        Change, NodeRecord,
        job::{JobRecord, Member},
    },
    id::NodeEpoch,
};
use muster_handle::kept::FLEET_MAX;
use serde_json::json;

use muster_proto::v1;
use rustix::process::Signal;

use crate::{
    cluster::{Cluster, Fault, State},
    process::Running,
    server::{reference, spec, within},
};

#[path = "../../src/store/tests/suite.rs"]
pub(crate) mod suite;

use suite::{Writer, job, leave, node, put};

/// A test has no time to wait for a Lease of the usual length.
const TIMES: LeaseTimes = LeaseTimes {
    lasts: Duration::from_secs(1),
    margin: Duration::from_millis(300),
    renewed_every: Duration::from_millis(100),
    looked_at_every: Duration::from_millis(20),
};

/// For tests that are not about the Lease: on a busy machine the short one can run out.
const LONG: LeaseTimes = LeaseTimes {
    lasts: Duration::from_secs(120),
    ..TIMES
};

pub(crate) async fn store(configuration: &kube::Config, name: &str) -> KubernetesStore {
    store_for(configuration, name, TIMES).await
}

async fn store_for(configuration: &kube::Config, name: &str, times: LeaseTimes) -> KubernetesStore {
    let candidate = Candidate::start(configuration, name, times).unwrap();
    within(candidate.lead()).await
}

/// Stores block, and their requests must be answered meanwhile.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The suite of all stores. `reopen` waits for nobody: a store gives its Lease back.
pub(crate) async fn keeps_the_contract(configuration: kube::Config) {
    let first = store_for(&configuration, "first", LONG).await;
    let runtime = tokio::runtime::Handle::current();
    blocking(move || {
        suite::suite(first, |ended| {
            drop(ended);
            runtime.block_on(store_for(&configuration, "next", LONG))
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_keeps_the_contract_of_a_store() {
    let cluster = Cluster::start().await;
    keeps_the_contract(cluster.configuration()).await;
}

async fn until_deposed(store: &KubernetesStore) {
    within(async {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        while store.still_holds() {
            look.tick().await;
        }
    })
    .await;
}

/// Who holds the Lease, without what tells two starts of a process apart.
fn holder(cluster: &Cluster) -> String {
    let lease = cluster.change(|state| state.kept("leases", "muster-coordinator").cloned());
    let spec = &lease.unwrap()["spec"];
    let identity = spec["holderIdentity"].as_str().unwrap_or_default();
    identity.split('_').next().unwrap().to_owned()
}

/// A store into which the suite's writer has put a job.
async fn with_a_job(store: KubernetesStore) -> Writer<KubernetesStore> {
    blocking(move || {
        let mut writer = Writer::new(store);
        writer.commit(&[put(job(1))]).unwrap();
        writer
    })
    .await
}

async fn commit(
    mut writer: Writer<KubernetesStore>,
    changes: Vec<Change>,
) -> (Writer<KubernetesStore>, Result<(), StoreError>) {
    blocking(move || {
        let done = writer.commit(&changes);
        (writer, done)
    })
    .await
}

async fn load(mut store: KubernetesStore) -> (KubernetesStore, Result<Loaded, StoreError>) {
    blocking(move || {
        let loaded = store.load();
        (store, loaded)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_decides_at_a_time() {
    let cluster = Cluster::start().await;
    let configuration = cluster.configuration();
    let first = with_a_job(store(&configuration, "first").await).await;
    let second = Candidate::start(&configuration, "second", TIMES).unwrap();
    let second = tokio::spawn(second.lead());
    assert_eq!(holder(&cluster), "first");

    // Nobody can renew the Lease. Its holder ends before another may take it.
    cluster.change(|state| state.faults.insert("leases", Fault::Away));
    until_deposed(&first.store).await;
    cluster.change(|state| state.faults.remove("leases"));
    let second = within(second).await.unwrap();
    assert_eq!(holder(&cluster), "second");
    let (first, told) = commit(first, vec![put(job(2))]).await;
    assert!(matches!(told, Err(StoreError::Deposed)), "{told:?}");
    // Its end does not take the Lease away from the other.
    blocking(move || drop(first)).await;
    assert_eq!(holder(&cluster), "second");
    let (second, loaded) = load(second).await;
    assert_eq!(loaded.unwrap().fleet.jobs, [job(1)]);

    // One that ends in order is followed at once.
    let third = Candidate::start(&configuration, "third", TIMES).unwrap();
    blocking(move || drop(second)).await;
    let third = within(third.lead()).await;
    let (_third, loaded) = load(third).await;
    assert_eq!(loaded.unwrap().fleet.jobs, [job(1)]);
    // One that waits can be told to end.
    let fourth = Candidate::start(&configuration, "fourth", TIMES).unwrap();
    blocking(move || drop(fourth)).await;
    assert_eq!(holder(&cluster), "third");
}

/// A renewal that is still on its way as the holder ends makes the conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_given_back_although_the_first_try_fails() {
    let cluster = Cluster::start().await;
    let configuration = cluster.configuration();
    let asked = |state: &State| state.asked["leases"];
    for fault in [Fault::Overtaken, Fault::Away, Fault::Busy, Fault::Cut] {
        let store = store_for(&configuration, "first", LONG).await;
        let before = cluster.change(|state| {
            state.faults.insert("leases", fault);
            asked(state)
        });
        let ending = tokio::spawn(blocking(move || drop(store)));
        // More than the requests of a renewal and of one try.
        cluster.until(|state| asked(state) >= before + 5).await;
        cluster.change(|state| state.faults.remove("leases"));
        within(ending).await.unwrap();
        assert_eq!(holder(&cluster), "", "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_deleted_deposes_its_holder_and_is_not_taken_at_once() {
    let cluster = Cluster::start().await;
    let configuration = cluster.configuration();
    let first = with_a_job(store(&configuration, "first").await).await;
    let second = Candidate::start(&configuration, "second", TIMES).unwrap();
    let second = tokio::spawn(second.lead());
    cluster.change(|state| state.meddle("leases", "muster-coordinator", None));
    until_deposed(&first.store).await;
    assert!(!second.is_finished(), "the first may not have noticed yet");
    let _second = within(second).await.unwrap();
    assert_eq!(holder(&cluster), "second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_an_answer_is_made_once() {
    let cluster = Cluster::start().await;
    let mut writer = with_a_job(store_for(&cluster.configuration(), "first", LONG).await).await;
    let asked = |state: &State| state.asked["musterrecords"];
    let faults = [Fault::Cut, Fault::Away, Fault::Busy, Fault::Nonsense];
    for (fault, number) in faults.into_iter().zip(2..) {
        let before = cluster.change(|state| {
            state.faults.insert("musterrecords", fault);
            asked(state)
        });
        // A new object, and one that takes the place of another.
        let mut changed = job(1);
        changed.message = format!("{fault:?}");
        let changes = vec![put(job(number)), put(changed.clone())];
        let committing = tokio::spawn(commit(writer, changes));
        cluster.until(|state| asked(state) >= before + 2).await;
        cluster.change(|state| state.faults.remove("musterrecords"));
        let done;
        (writer, done) = within(committing).await.unwrap();
        done.unwrap();
        let store;
        let loaded;
        (store, loaded) = load(writer.store).await;
        let jobs = loaded.unwrap().fleet.jobs;
        assert!(
            jobs.contains(&changed) && jobs.len() as u64 == number,
            "{fault:?}"
        );
        writer = Writer { store, ..writer };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_has_written_is_not_overwritten() {
    let cluster = Cluster::start().await;
    let writer = with_a_job(store_for(&cluster.configuration(), "first", LONG).await).await;
    let theirs = json!({ "metadata": { "labels": { "by": "somebody" } } });
    let name = format!("job-{}", job(1).uid);
    cluster.change(|state| state.meddle("musterrecords", &name, Some(theirs)));
    let (_writer, told) = commit(writer, vec![put(job(1))]).await;
    let expected = format!(
        "job {} was written by another coordinator; this one says nothing more",
        job(1).uid
    );
    assert_eq!(told.unwrap_err().to_string(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_nodes_that_come_back_are_few_writes() {
    let cluster = Cluster::start().await;
    let writer = with_a_job(store_for(&cluster.configuration(), "first", LONG).await).await;
    let fleet = |epoch: u64| -> Vec<Change> {
        let plain = |number: u32| NodeRecord {
            epoch: NodeEpoch(epoch),
            cordon: None,
            ..node(&format!("n{number:05}"))
        };
        (0..1_000)
            .map(|number| Change::PutNode(Box::new(plain(number))))
            .collect()
    };
    let (writer, done) = commit(writer, fleet(1)).await;
    done.unwrap();
    let asked = |cluster: &Cluster| cluster.change(|state| state.asked["musterrecords"]);
    let before = asked(&cluster);
    let (writer, done) = commit(writer, fleet(2)).await;
    done.unwrap();
    assert_eq!(asked(&cluster) - before, 1);
    // More than are in one answer of a list.
    let (_store, loaded) = load(writer.store).await;
    let nodes = loaded.unwrap().fleet.nodes;
    assert!(nodes.len() == 1_000 && nodes.iter().all(|node| node.epoch == NodeEpoch(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_many_jobs_is_few_objects() {
    let cluster = Cluster::start().await;
    let writer = with_a_job(store_for(&cluster.configuration(), "first", LONG).await).await;
    let objects = |state: &State| state.kept_names("musterrecords", "history-");
    let asked = |cluster: &Cluster| cluster.change(|state| state.asked["musterrecords"]);
    let before = asked(&cluster);
    let (writer, done) = commit(writer, leave(1..=500)).await;
    done.unwrap();
    let many = cluster.change(|state| objects(state).len());
    assert_eq!(
        (many, asked(&cluster) - before),
        (8, 8),
        "64 in each, and one write for each"
    );
    let (writer, done) = commit(writer, leave(501..=501)).await;
    done.unwrap();
    assert_eq!(
        cluster.change(|state| objects(state).len()),
        8,
        "the newest had room"
    );
    // The next coordinator goes on in the newest, and drops what is old.
    let (store, loaded) = load(writer.store).await;
    assert_eq!(loaded.unwrap().fleet.history.len(), 501);
    let writer = blocking(move || Writer::new(store)).await;
    let (writer, done) = commit(writer, leave(502..=502)).await;
    done.unwrap();
    let (_writer, done) = commit(writer, vec![Change::DropHistory(130)]).await;
    done.unwrap();
    let left = cluster.change(|state| objects(state));
    assert_eq!(left.len(), 6, "{left:?}");
}

/// A job of the largest size, on nodes of eight GPUs, whose generation is replaced.
fn of_4096_nodes(number: u64) -> JobRecord {
    let mut random = number;
    let mut id = || {
        let mut word = || {
            // A step of splitmix64: nothing in these names repeats, as in real ones.
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        uuid::Uuid::from_u64_pair(word(), word()).to_string()
    };
    let members: Vec<Member> = (0..4_096u16)
        .map(|n| Member {
            node: format!("gpu-{n:04}").into(),
            boot_id: id(),
            gpus: (0..8).map(|_| format!("GPU-{}", id())).collect(),
            addresses: vec![std::net::Ipv4Addr::from(0x0a00_0000 + u32::from(n)).into()],
            seats: Vec::new(),
        })
        .collect();
    let generation = |number: u64| {
        let (members, nobody) = (json!(members), json!([]));
        let value = json!({
            "number": number, "cause": "NodeLost", "members": members, "procPerNode": 8,
            "restartCount": 0, "storeHost": "gpu-0000", "store": null, "rendezvous": "r",
            "opened": 0, "started": true, "startedAt": null, "previousGrace": "0s",
            "stopping": null, "dead": nobody,
        });
        serde_json::from_value(value).unwrap()
    };
    let mut record = job(number);
    record.retiring = vec![generation(1)];
    record.current = Some(generation(2));
    record
}

/// A server may take so little that a record does not fit in parts either. That is said of this one job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_does_not_fit_in_parts_is_refused_by_name() {
    let cluster = Cluster::start().await;
    let configuration = cluster.configuration();
    let writer = with_a_job(store_for(&configuration, "first", LONG).await).await;
    cluster.change(|state| state.object_max = Some(12 << 10));
    let (writer, done) = commit(writer, vec![put(of_4096_nodes(2))]).await;
    let why = done.unwrap_err();
    let large = job(2).uid;
    assert!(
        matches!(&why, StoreError::TooLarge { job, .. } if *job == large),
        "{why:?}"
    );
    // Its parts go, and the records of others can be written.
    let parts = |state: &State| state.kept_names("musterrecords", "part-");
    cluster.until(|state| parts(state).is_empty()).await;
    let (writer, done) = commit(writer, vec![put(job(3))]).await;
    done.unwrap();
    let (_store, loaded) = load(writer.store).await;
    assert_eq!(loaded.unwrap().fleet.jobs, [job(1), job(3)]);
}

/// No job is too large for etcd: its record has parts, which are made before it and deleted after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_larger_than_an_object_is_stored_in_parts() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.made_at = Some("2026-01-01T00:00:00Z".into()));
    let configuration = cluster.configuration();
    let writer = with_a_job(store_for(&configuration, "first", LONG).await).await;
    let parts = |state: &State| state.kept_names("musterrecords", "part-");
    let large = of_4096_nodes(2);
    let (writer, done) = commit(writer, vec![put(large.clone())]).await;
    done.unwrap();
    let (first, largest) = cluster.change(|state| (parts(state), state.largest));
    println!("{} parts, the largest object {largest} bytes", first.len());
    assert!(first.len() >= 2 && largest < 1 << 20, "{largest} bytes");

    // Written again, it has other parts, and those before are deleted.
    let again = JobRecord {
        message: "again".into(),
        ..large
    };
    let (writer, done) = commit(writer, vec![put(again.clone())]).await;
    done.unwrap();
    let others = |state: &State| parts(state).is_disjoint(&first);
    cluster.until(others).await;
    let (store, loaded) = load(writer.store).await;
    assert_eq!(loaded.unwrap().fleet.jobs, [job(1), again.clone()]);
    blocking(move || drop(store)).await;

    // A part that nobody names was left by a coordinator that died.
    let orphan = json!({ "metadata": { "name": "part-orphan" }, "spec": { "about": "Part", "of": "orphan", "data": "" } });
    cluster.change(|state| {
        let name = parts(state).pop_first().unwrap();
        state.keep_copy("musterrecords", &name, orphan);
    });
    let (store, loaded) = load(store_for(&configuration, "second", LONG).await).await;
    let loaded = loaded.unwrap();
    assert_eq!(loaded.fleet.jobs, [job(1), again.clone()]);
    cluster
        .until(|state| !parts(state).contains("part-orphan"))
        .await;

    // The job is deleted with its parts.
    let writer = blocking(move || Writer::new(store)).await;
    let (_writer, done) = commit(writer, vec![Change::DeleteJob(again.uid.clone())]).await;
    done.unwrap();
    cluster.until(|state| parts(state).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_takes_less_gets_smaller_parts() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.object_max = Some(200 << 10));
    let writer = with_a_job(store_for(&cluster.configuration(), "first", LONG).await).await;
    let large = of_4096_nodes(2);
    let (writer, done) = commit(writer, vec![put(large.clone())]).await;
    done.unwrap();
    let (_store, loaded) = load(writer.store).await;
    assert_eq!(loaded.unwrap().fleet.jobs, [job(1), large]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_without_one_of_its_parts_is_refused() {
    let cluster = Cluster::start().await;
    let writer = with_a_job(store_for(&cluster.configuration(), "first", LONG).await).await;
    let (writer, done) = commit(writer, vec![put(of_4096_nodes(2))]).await;
    done.unwrap();
    cluster.change(|state| {
        let name = state
            .kept_names("musterrecords", "part-")
            .pop_first()
            .unwrap();
        state.meddle("musterrecords", &name, None);
    });
    let (_store, told) = load(writer.store).await;
    let expected = format!(
        "namespace muster-system: MusterRecord job-{} cannot be read by this build",
        job(2).uid
    );
    assert_eq!(told.unwrap_err().to_string(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_cannot_be_believed_are_refused() {
    let cluster = Cluster::start().await;
    let configuration = cluster.configuration();
    let writer = with_a_job(store(&configuration, "first").await).await;
    let (writer, done) = commit(writer, vec![Change::PutNode(Box::new(node("a")))]).await;
    done.unwrap();
    let name = format!("job-{}", job(1).uid);
    cluster.change(|state| {
        state.meddle(
            "musterrecords",
            &name,
            Some(json!({ "spec": { "data": "????" } })),
        )
    });
    let (store, told) = load(writer.store).await;
    let expected =
        format!("namespace muster-system: MusterRecord {name} cannot be read by this build");
    assert_eq!(told.unwrap_err().to_string(), expected);
    cluster.change(|state| {
        state.meddle("musterrecords", "sessions", None);
        state.meddle("musterrecords", &name, None);
    });
    let (_store, told) = load(store).await;
    let told = told.unwrap_err().to_string();
    assert!(
        told.starts_with("the object `sessions` has no entry for the object node-a"),
        "{told}"
    );
}

/// Two processes, each with a state directory of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_coordinator_goes_on_where_another_was_killed() {
    let cluster = Cluster::start().await;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |number: usize| {
        let folder = folders[number].path();
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
        Running::start_with(folder, move |command| {
            command.env("KUBECONFIG", &kubeconfig);
            let pod = format!("--pod-name=muster-coordinator-{number}");
            command.args(["--store=kubernetes", "--lease=3s", &pod]);
        })
    };
    cluster.change(|state| {
        for number in 0..2 {
            let (name, uid) = (format!("muster-coordinator-{number}"), number.to_string());
            state.put_pod("muster-system", &name, &uid, "n1");
        }
    });
    let first = start(0).await;
    // Whatever a command changes in the trust folder.
    let trust = folders
        .each_ref()
        .map(|folder| folder.path().join("state/trust"));
    let secret = |state: &State| state.kept("secrets", "muster-coordinator-trust").cloned();
    let before = cluster.change(|state| secret(state)).unwrap();
    fs::create_dir_all(&trust[0]).unwrap();
    fs::write(trust[0].join("access.json"), "{}").unwrap();
    cluster
        .until(|state| secret(state).unwrap() != before)
        .await;
    let request = v1::SubmitRequest {
        r#ref: Some(reference("train")),
        spec: Some(spec(1)),
        ..v1::SubmitRequest::default()
    };
    within(first.jobs().await.submit(request)).await.unwrap();
    let leads = |state: &State, number: u32| {
        let place = (
            "muster-system".into(),
            format!("muster-coordinator-{number}"),
        );
        state.pods[&place]["metadata"]["labels"]["muster.dev/leader"] == "true"
    };
    cluster.until(|state| leads(state, 0)).await;

    let ((), second) = tokio::join!(async { first.signal(Signal::KILL) }, start(1));
    let listed = within(second.jobs().await.list(v1::ListJobsRequest::default()))
        .await
        .unwrap();
    let jobs = listed.into_inner().jobs.into_iter();
    let names: Vec<String> = jobs.map(|job| job.r#ref.unwrap().name).collect();
    assert_eq!(names, ["train"]);
    cluster
        .until(|state| leads(state, 1) && !leads(state, 0))
        .await;
    assert_eq!(
        fs::read_to_string(trust[1].join("access.json")).unwrap(),
        "{}"
    );

    // An end in order: callers and the next coordinator need not wait.
    second.signal(Signal::TERM);
    cluster.until(|state| !leads(state, 1)).await;
    let given_back = |state: &State| {
        let lease = state.kept("leases", "muster-coordinator").unwrap();
        lease["spec"]["holderIdentity"].is_null()
    };
    cluster.until(given_back).await;
}
