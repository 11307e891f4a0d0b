//! Jobs with roles: their processes are told of each other, find each other, and keep their roles when
//! one of them or a node is lost. The program needs no framework.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, pids};
use rustix::process::Signal;
use serde_json::Value;

/// Listens at its own address, asks every other member for its name, and then makes steps until it is
/// told to end. A parameter server makes none, and never ends.
const MEMBER: &str = r#"
import json, os, socket, sys, threading, time

config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
assert cluster == json.loads(os.environ["MUSTER_MEMBERS"])
name = f'{task["type"]}-{task["index"]}'
assert name == f'{os.environ["MUSTER_ROLE"]}-{os.environ["MUSTER_ROLE_INDEX"]}'
assert sys.argv[1] == task["type"], sys.argv
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
print("found", json.dumps({role: len(members) for role, members in cluster.items()}, sort_keys=True), flush=True)
if task["type"] == "ps":
    threading.Event().wait()
step = 0
while not os.path.exists(sys.argv[2]):
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
"#;

/// The job as a file of Kubeflow's operator.
const JOB: &str = r#"
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: roles}
spec:
  tfReplicaSpecs:
    Chief:
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python3, DIR/member.py, chief, DIR/end]}]}}
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python3, DIR/member.py, worker, DIR/end]}]}}
    PS:
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: tensorflow, image: x, command: [python3, DIR/member.py, ps, DIR/end]}]}}
"#;

/// Each member's role and its node.
fn roles(status: &Value) -> Vec<(String, String)> {
    let members = status["members"].as_array().unwrap().iter();
    let text = |member: &Value, field: &str| member[field].as_str().unwrap().to_owned();
    members
        .map(|member| (text(member, "role"), text(member, "node")))
        .collect()
}

/// Waits until this generation's four processes run. A parameter server shows no step.
fn runs(cluster: &Cluster, generation: u64) -> Value {
    let what = format!("running as generation {generation}");
    cluster.wait("roles", &what, |status| {
        status["generation"] == generation
            && status["phase"] == "Running"
            && pids(status).len() == 4
            && pids(status).iter().all(|pid| *pid > 0)
    })
}

#[test]
fn processes_with_roles_find_each_other_and_keep_their_roles() {
    let cluster = Cluster::up(5);
    fs::write(cluster.path("member.py"), MEMBER).unwrap();
    let dir = cluster.path("");
    let job = JOB.replace("DIR", dir.to_str().unwrap().trim_end_matches('/'));
    fs::write(cluster.path("job.yaml"), job).unwrap();
    cluster.muster(["submit", "-f", cluster.path("job.yaml").to_str().unwrap()]);
    let first = runs(&cluster, 1);
    let before = roles(&first);
    let names: Vec<&str> = before.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(names, ["chief-0", "worker-0", "worker-1", "ps-0"]);
    let state = || {
        let shown = cluster.muster(["get", "tfjob", "roles", "-o", "json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let conditions = shown["status"]["conditions"].as_array().unwrap().clone();
        let last = conditions.last().unwrap();
        (
            last["type"].as_str().unwrap().to_owned(),
            shown["status"]["replicaStatuses"].clone(),
        )
    };
    let all =
        serde_json::json!({"Chief": {"active": 1}, "Worker": {"active": 2}, "PS": {"active": 1}});
    assert_eq!(state(), ("Running".to_owned(), all.clone()));
    let found = |generation: u64| {
        let generation = generation.to_string();
        muster_drills::until(|| {
            let log =
                cluster.try_muster(["logs", "roles", "--rank", "3", "--generation", &generation]);
            let log = String::from_utf8_lossy(&log.stdout).into_owned();
            log.contains(r#"found {"chief": 1, "ps": 1, "worker": 2}"#)
                .then_some(())
        })
        .unwrap_or_else(|| panic!("{}", cluster.muster(["logs", "roles", "--rank", "3"])));
    };
    found(1);

    // The parameter server is killed. All start again, with new ports, in the same roles.
    kill(pids(&first)[3], Signal::KILL);
    let second = runs(&cluster, 2);
    assert_eq!(roles(&second), before);
    found(2);
    assert_eq!(state(), ("Running".to_owned(), all));

    // The chief's node is cut. The spare node becomes the chief; nobody else changes its role.
    cluster.muster(["local", "kill-node", &before[0].1]);
    let third = runs(&cluster, 3);
    let after = roles(&third);
    assert_eq!(after[1..], before[1..]);
    assert_ne!(after[0], before[0]);
    found(3);

    // A member is found by its name in every generation, wherever it was.
    for generation in ["1", "3"] {
        let log = ["logs", "roles-worker-1", "--generation", generation];
        let steps = || cluster.muster(log).contains("step 1\n").then_some(());
        muster_drills::until(steps).unwrap_or_else(|| panic!("{}", cluster.muster(log)));
    }
    assert!(
        !cluster
            .muster(["logs", "roles", "--member", "ps"])
            .contains("step")
    );
    let unknown = cluster.try_muster(["logs", "roles-worker-7"]);
    let error = String::from_utf8_lossy(&unknown.stderr).into_owned();
    let named = "is worker-7, generation 3 has chief-0, worker-0, worker-1, ps-0";
    assert!(error.contains(named), "{error}");

    // The chief ends well. The workers only serve it beside a parameter server, so the job is over.
    fs::write(cluster.path("end"), "").unwrap();
    cluster.muster(["wait", "roles", "--for=complete", "--timeout", "60s"]);
    assert_eq!(state().0, "Succeeded");
    let described = cluster.muster(["describe", "job", "roles"]);
    assert!(described.contains("Framework:"), "{described}");
}
