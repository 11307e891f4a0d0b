//! Jobs whose members share nodes: real processes with ranks, ports and logs of their own, a killed rank
//! and a node that is cut.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, pids, python, scripts};
use rustix::process::Signal;
use serde_json::Value;

/// Asks every other member for its name at the address that it was told of, and then makes steps until
/// it is told to end. A parameter server makes none, and never ends.
const MEMBER: &str = r#"
import json, os, socket, sys, threading, time

config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
name = f'{task["type"]}-{task["index"]}'
assert name == f'{os.environ["MUSTER_ROLE"]}-{os.environ["MUSTER_ROLE_INDEX"]}'
assert os.environ["LOCAL_RANK"] == "0" and os.environ["LOCAL_WORLD_SIZE"] == "1"
addresses = sum(cluster.values(), [])
assert len(set(addresses)) == 4, addresses
host, port = cluster[task["type"]][task["index"]].rsplit(":", 1)
server = socket.create_server((host, int(port)))

def serve():
    while True:
        peer, _ = server.accept()
        with peer:
            peer.sendall(name.encode())

threading.Thread(target=serve, daemon=True).start()

def ask(address):
    host, port = address.rsplit(":", 1)
    for _ in range(1000):
        try:
            with socket.create_connection((host, int(port)), timeout=5) as peer:
                return peer.recv(100).decode()
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"nobody at {address}")

for role, addresses in cluster.items():
    for index, address in enumerate(addresses):
        assert ask(address) == f"{role}-{index}"
print("found all as", name, flush=True)
if task["type"] == "ps":
    threading.Event().wait()
step = 0
while not os.path.exists(sys.argv[1]):
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
"#;

/// The job as a file of Kubeflow's operator.
const TF_JOB: &str = r#"
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: shared}
spec:
  tfReplicaSpecs:
    Chief:
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python3, DIR/member.py, DIR/end]}]}}
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python3, DIR/member.py, DIR/end]}]}}
    PS:
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python3, DIR/member.py, DIR/end]}]}}
"#;

const PYTORCH_JOB: &str = r#"
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: shared}
spec:
  pytorchReplicaSpecs:
    Master:
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, image: x, command: [PYTHON, SCRIPT, --steps, "100000", --delay-ms, "20", --state, DIR/step]}]}}
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, image: x, command: [PYTHON, SCRIPT, --steps, "100000", --delay-ms, "20", --state, DIR/step]}]}}
"#;

/// Each member's name and its node.
fn members(status: &Value) -> Vec<(String, String)> {
    let members = status["members"].as_array().unwrap().iter();
    let text = |member: &Value, field: &str| member[field].as_str().unwrap().to_owned();
    members
        .map(|member| (text(member, "role"), text(member, "node")))
        .collect()
}

/// How many nodes hold the members.
fn nodes(status: &Value) -> usize {
    let all: std::collections::BTreeSet<String> =
        members(status).into_iter().map(|(_, node)| node).collect();
    all.len()
}

/// A cluster of these nodes, each with two slots, and the job of this file in it.
fn submitted(count: usize, job: &str) -> Cluster {
    let cluster = Cluster::up_with(count, &["--slots", "2"], &[]);
    fs::write(cluster.path("member.py"), MEMBER).unwrap();
    let dir = cluster.path("");
    let job = job
        .replace("DIR", dir.to_str().unwrap().trim_end_matches('/'))
        .replace("SCRIPT", scripts().join("allreduce.py").to_str().unwrap())
        .replace("PYTHON", &python());
    fs::write(cluster.path("job.yaml"), job).unwrap();
    cluster.muster(["submit", "-f", cluster.path("job.yaml").to_str().unwrap()]);
    cluster
}

/// Waits until this generation's four processes run.
fn runs(cluster: &Cluster, generation: u64) -> Value {
    let what = format!("running as generation {generation}");
    cluster.wait("shared", &what, |status| {
        status["generation"] == generation
            && status["phase"] == "Running"
            && pids(status).len() == 4
            && pids(status).iter().all(|pid| *pid > 0)
    })
}

/// The newest incident: its cause, its culprit, and who is charged.
fn newest(cluster: &Cluster) -> (String, String, String) {
    let story = cluster.json(["explain", "shared"]);
    let incident = story["incidents"].as_array().unwrap().last().unwrap();
    let text = |field: &str| incident[field].as_str().unwrap_or_default().to_owned();
    (text("cause"), text("culprit"), text("charged"))
}

#[test]
fn four_members_of_tensorflow_on_two_nodes() {
    let cluster = submitted(3, TF_JOB);
    let first = runs(&cluster, 1);
    assert_eq!(nodes(&first), 2, "{first:#}");
    let before = members(&first);
    let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["chief-0", "worker-0", "worker-1", "ps-0"]);
    let found = |generation: u64| {
        let generation = generation.to_string();
        for name in ["chief-0", "worker-0", "worker-1", "ps-0"] {
            let log = [
                "logs",
                "shared",
                "--member",
                name,
                "--generation",
                &generation,
            ];
            let told = || {
                let log = cluster.try_muster(log);
                let text = String::from_utf8_lossy(&log.stdout).into_owned();
                // The log of this member, and not that of the other on its node.
                let others = text.matches("found all as").count();
                (text.contains(&format!("found all as {name}")) && others == 1).then_some(())
            };
            muster_drills::until(told).unwrap_or_else(|| panic!("{}", cluster.muster(log)));
        }
    };
    found(1);

    // A worker beside a parameter server is killed. It alone is started again, at its address.
    let killed = pids(&first)[1];
    kill(killed, Signal::KILL);
    let second = cluster.wait("shared", "worker-0 back", |status| {
        let now = pids(status);
        now.len() == 4 && now[1] > 0 && now[1] != killed
    });
    let others = |status: &Value| [0, 2, 3].map(|rank| pids(status)[rank]);
    assert_eq!(others(&second), others(&first), "nobody else was touched");
    assert_eq!(
        (&second["generation"], members(&second)),
        (&first["generation"], before.clone())
    );
    let culprit = format!("rank 1 (worker-0) on {}", before[1].1);
    assert_eq!(
        newest(&cluster),
        ("WorkerKilled".into(), culprit, "job".into())
    );
    let log = ["logs", "shared", "--member", "worker-0"];
    let both = || (cluster.muster(log).matches("found all as worker-0").count() == 2).then_some(());
    muster_drills::until(both).unwrap_or_else(|| panic!("{}", cluster.muster(log)));
    let again = ["explain", "shared", "-o", "json"];
    let story: Value = serde_json::from_str(&cluster.muster(again)).unwrap();
    let receipt = story["incidents"].as_array().unwrap().last().unwrap();
    assert_eq!(
        receipt["restartedRanks"],
        serde_json::json!([1]),
        "{receipt:#}"
    );
    assert!(receipt["totalMs"].as_f64().unwrap() > 0.0, "{receipt:#}");

    // The parameter server is killed, and what it held with it: all start again.
    kill(pids(&second)[3], Signal::KILL);
    let second = runs(&cluster, 2);
    assert_eq!(members(&second), before, "everybody stays");
    let culprit = format!("rank 3 (ps-0) on {}", before[3].1);
    assert_eq!(newest(&cluster).1, culprit);
    found(2);

    // A node with two members is cut. The third node takes them in.
    let cut = before[0].1.clone();
    cluster.muster(["local", "kill-node", &cut]);
    let third = runs(&cluster, 3);
    assert_eq!(nodes(&third), 2);
    assert!(
        members(&third).iter().all(|(_, node)| *node != cut),
        "{third:#}"
    );
    assert_eq!(newest(&cluster), ("NodeLost".into(), cut, "node".into()));
    found(3);

    // The chief ends well, and so the job does, beside a parameter server on the same node.
    fs::write(cluster.path("end"), "").unwrap();
    cluster.muster(["wait", "shared", "--for=complete", "--timeout", "60s"]);
}

#[test]
fn four_members_of_torch_on_two_nodes() {
    let cluster = submitted(3, PYTORCH_JOB);
    let trains = |generation: u64| cluster.trains("shared", generation, 4);
    let first = trains(1);
    assert_eq!(nodes(&first), 2, "{first:#}");
    let lanes: Vec<&str> = first["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["lane"].as_str().unwrap())
        .collect();
    assert_eq!(lanes, ["direct"; 4]);
    let before = members(&first);
    assert_eq!(before[3].0, "worker-2");

    kill(pids(&first)[3], Signal::KILL);
    let second = trains(2);
    assert_eq!(members(&second), before);
    let culprit = format!("rank 3 (worker-2) on {}", before[3].1);
    assert_eq!(
        newest(&cluster),
        ("WorkerKilled".into(), culprit, "job".into())
    );

    let cut = before[0].1.clone();
    cluster.muster(["local", "kill-node", &cut]);
    let third = trains(3);
    assert_eq!(nodes(&third), 2);
    assert_eq!(newest(&cluster), ("NodeLost".into(), cut, "node".into()));
}
