//! The agent asks a kubelet over a real socket which pods hold the GPUs that the probes see.

use muster_core::{
    health::{POD_RESOURCES, Severity, Subject},
    node_report::{NodeReport, holders::Holders},
};
use muster_senses::{Eyes, Machine, kubelet::Kubelet};

/// Rules that do not wait, so that the test need not wait either.
const AT_ONCE: &str = "pod-resources warn none\n";

/// The machine's kubelet, which does not run yet, and the agent beside it.
async fn beside(machine: &Machine, more: &[&str]) -> (Kubelet, Eyes) {
    let kubelet = Kubelet::in_dir(&machine.state_dir());
    let rules = machine.state_dir().join("rules");
    std::fs::write(&rules, AT_ONCE).expect("the directory is ours");
    let flags = [
        format!("--pod-resources={}", kubelet.socket().display()),
        format!("--health-rules={}", rules.display()),
    ];
    let flags = flags.iter().map(String::as_str).chain(more.iter().copied());
    let eyes = machine.look(&flags.collect::<Vec<_>>()).await;
    (kubelet, eyes)
}

/// Waits until exactly these hold GPUs, each as `NAMESPACE/POD` and the index of the GPU.
async fn held(eyes: &mut Eyes, expected: &[(&str, usize)]) {
    let told = |report: &NodeReport| -> Vec<(String, usize)> {
        let holders = report.holders.all().iter();
        let one = |holder: &muster_core::node_report::holders::Holder| {
            let at = report.gpus.iter().position(|gpu| gpu.has(&holder.gpu));
            let pod = format!("{}/{}", holder.namespace, holder.pod);
            (pod, at.expect("it is one of the node's"))
        };
        holders.map(one).collect()
    };
    let mut expected: Vec<(String, usize)> = expected
        .iter()
        .map(|(pod, at)| ((*pod).to_owned(), *at))
        .collect();
    expected.sort();
    let is_so = |report: &NodeReport| {
        let mut told = told(report);
        told.sort();
        matches!(report.holders, Holders::Known(_)) && told == expected
    };
    eyes.until(&format!("{expected:?} hold GPUs"), is_so).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_that_hold_gpus_are_reported() {
    let machine = Machine::new("8xh100");
    let (mut kubelet, mut eyes) = beside(&machine, &[]).await;
    let uuids: Vec<String> = eyes
        .report
        .gpus
        .iter()
        .map(|gpu| gpu.uuid.clone())
        .collect();
    kubelet.start();
    held(&mut eyes, &[]).await;
    let shared = format!("{}::2", uuids[3]);
    kubelet.says(&[
        (
            "team-a/one-bcdfg",
            "nvidia.com/gpu",
            &[&uuids[0], &uuids[1]],
        ),
        ("team-b/notebook-0", "nvidia.com/gpu.shared", &[&shared]),
        ("team-b/notebook-1", "nvidia.com/gpu", &["7"]),
        ("team-b/other", "rdma/hca", &["0"]),
    ]);
    let most = [
        ("team-a/one-bcdfg", 0),
        ("team-a/one-bcdfg", 1),
        ("team-b/notebook-0", 3),
        ("team-b/notebook-1", 7),
    ];
    held(&mut eyes, &most).await;
    let minor = eyes.report.gpus[5].minor.expect("the machine tells it");
    kubelet.says_claimed("team-c/claims", "gpu.nvidia.com", &format!("gpu-{minor}"));
    held(&mut eyes, &[("team-c/claims", 5)]).await;
    assert_eq!(eyes.report.health.worst(&Subject::Node), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_a_gpu_have_holders_of_their_own() {
    let machine = Machine::new("mig");
    let (mut kubelet, mut eyes) = beside(&machine, &[]).await;
    let cut = eyes.report.gpus.iter().find_map(|gpu| gpu.mig.clone());
    let instance = cut.expect("the machine has one").instances[0].uuid.clone();
    kubelet.start();
    kubelet.says(&[("team-a/p", "nvidia.com/mig-1g.10gb", &[&instance])]);
    let of = |report: &NodeReport| report.holders.all().iter().any(|held| held.gpu == instance);
    eyes.until("the instance is held", of).await;
    let free = eyes.report.unheld_ids(|_| true).len();
    assert_eq!(free, eyes.report.placeable().len() - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_is_away_is_told_and_nothing_is_guessed() {
    let machine = Machine::new("8xh100");
    let (mut kubelet, mut eyes) = beside(&machine, &[]).await;
    let found = eyes.finding(POD_RESOURCES).await;
    assert_eq!(
        (found.severity, found.subject),
        (Severity::Warn, Subject::Node)
    );
    for part in [
        "kubelet.sock",
        "must be mounted",
        "no GPU of this node is given",
    ] {
        assert!(found.reason.contains(part), "{part}: {}", found.reason);
    }
    assert_eq!(eyes.report.holders, Holders::Unknown);
    let uuid = eyes.report.gpus[0].uuid.clone();
    kubelet.says(&[("team-a/p", "nvidia.com/gpu", &[&uuid])]);
    kubelet.start();
    held(&mut eyes, &[("team-a/p", 0)]).await;
    eyes.no_finding(POD_RESOURCES).await;
    // What it holds it still holds while the kubelet is updated.
    kubelet.stop();
    let found = eyes.finding(POD_RESOURCES).await;
    assert!(
        found.reason.contains("is taken for true"),
        "{}",
        found.reason
    );
    held(&mut eyes, &[("team-a/p", 0)]).await;
    kubelet.says(&[]);
    kubelet.start();
    held(&mut eyes, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_api_and_a_strange_device_are_told() {
    let machine = Machine::new("8xh100");
    let (mut kubelet, mut eyes) = beside(&machine, &[]).await;
    kubelet.is_old();
    kubelet.start();
    let says = |words: &'static str| {
        move |report: &NodeReport| {
            let mut findings = report.health.findings.iter();
            findings.any(|found| found.check == POD_RESOURCES && found.reason.contains(words))
        }
    };
    eyes.until("it is too old", says("Kubernetes must be 1.20 or later"))
        .await;
    kubelet.says(&[("team-a/p", "nvidia.com/gpu", &["GPU-of-nobody"])]);
    let strange = "given GPU-of-nobody (nvidia.com/gpu) to a pod";
    eyes.until("the device is strange", says(strange)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agents_own_pod_holds_what_is_the_nodes() {
    let machine = Machine::new("8xh100");
    let (mut kubelet, mut eyes) = beside(&machine, &["--own-pod=muster-system/agent-x"]).await;
    let uuids: Vec<String> = eyes
        .report
        .gpus
        .iter()
        .map(|gpu| gpu.uuid.clone())
        .collect();
    kubelet.says(&[
        (
            "muster-system/agent-x",
            "nvidia.com/gpu",
            &[&uuids[0], &uuids[1]],
        ),
        ("team-a/p", "nvidia.com/gpu", &[&uuids[2]]),
    ]);
    kubelet.start();
    held(&mut eyes, &[("team-a/p", 2)]).await;
    assert_eq!(eyes.report.unheld_ids(|_| true).len(), 7);
}

/// A bug of one workload comes back in each of its pods, and says nothing about the GPU. Two workloads
/// with the same fault on one GPU do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_xid_counts_for_the_workload_whose_pod_holds_the_gpu() {
    let machine = Machine::new("8xh100");
    let (mut kubelet, mut eyes) = beside(&machine, &[]).await;
    kubelet.start();
    let uuid = eyes.report.gpus[3].uuid.clone();
    let pods = [
        ("team-a/one-bcdfg", false),
        ("team-a/one-hjklm", false),
        ("team-b/two-bcdfg", true),
    ];
    for (round, (pod, suspected)) in (1..).zip(pods) {
        kubelet.says(&[(pod, "nvidia.com/gpu", &[&uuid])]);
        held(&mut eyes, &[(pod, 3)]).await;
        machine.inject("gpu3", "xid=31");
        let seen = |report: &NodeReport| {
            let times = format!("{round} times");
            let is_it = |reason: &str| round == 1 || reason.contains(&times);
            let mut findings = report.health.findings.iter();
            findings.any(|found| found.check == "xid:31" && is_it(&found.reason))
        };
        eyes.until("the XID is counted", seen).await;
        let found = |report: &NodeReport| {
            let mut findings = report.health.findings.iter();
            findings.any(|found| found.check == "xid-app-repeated")
        };
        assert_eq!(found(&eyes.report), suspected, "{pod}");
    }
}
