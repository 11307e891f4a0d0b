//! Pods of two containers, as on Kubernetes: the agent in one, the workers in the other, each with
//! a PID namespace of its own. They share one folder and nothing else. Containers are killed,
//! restarted in place, and told to leave. Real torchrun trains.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use muster_drills::{last_step, processes_of, program, python, scripts, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A container: `unshare`, whose child is the first process in new namespaces.
struct Container {
    unshare: Child,
}

impl Container {
    fn start(mut command: Command, log: &Path) -> Container {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Container {
            unshare: command.spawn().unwrap(),
        }
    }

    /// The first process in the container, as it is known outside.
    fn init(&self) -> i32 {
        let unshare = self.unshare.id();
        until(|| {
            let children = format!("/proc/{unshare}/task/{unshare}/children");
            fs::read_to_string(children).ok()?.trim().parse().ok()
        })
        .unwrap()
    }

    /// Sends a signal to the first process, and waits until the container is gone. Returns whether
    /// that process ended well.
    fn end(mut self, signal: Signal) -> bool {
        kill_process(Pid::from_raw(self.init()).unwrap(), signal).unwrap();
        self.unshare.wait().unwrap().success()
    }
}

/// In namespaces of its own, with a /proc that shows only these. As in most containers, no cgroup
/// can be made.
fn contained(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--fork", "--pid", "--mount", "--mount-proc", "--kill-child"])
        .args([
            "sh",
            "-c",
            "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"",
            "sh",
        ])
        .arg(program);
    command
}

struct Pod {
    name: String,
    home: PathBuf,
    agent: Option<Container>,
    workers: Option<Container>,
}

impl Pod {
    fn volume(&self) -> PathBuf {
        self.home.join("run")
    }

    fn start_agent(&mut self, server: &str) {
        let mut agent = contained(&program("muster-agent"));
        agent
            .args(["--allow-root-workers", "--node-name", &self.name])
            .args(["--coordinator", server, "--pod"])
            .arg(self.volume())
            .arg("--state-dir")
            .arg(self.home.join("state"));
        self.agent = Some(Container::start(agent, &self.home.join("agent.log")));
    }

    fn start_workers(&mut self) {
        let mut workers = contained(&program("muster-runner"));
        workers
            .args(["pod", "--dir"])
            .arg(self.volume())
            .env("IMAGE", "of-the-workers");
        let started = Container::start(workers, &self.home.join("workers.log"));
        self.workers = Some(started);
    }

    /// The ranks of this pod that live, by the pids of the machine.
    fn ranks(&self) -> BTreeSet<u32> {
        processes_of(&self.volume())
            .into_iter()
            .filter(|(_, line)| line.contains("allreduce.py") && !line.contains("launcher.py"))
            .map(|(pid, _)| pid)
            .collect()
    }
}

fn namespace(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap()
}

fn environment(pid: u32) -> String {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

struct Site {
    folder: tempfile::TempDir,
    coordinator: Child,
    server: String,
    pods: Vec<Pod>,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.coordinator.kill();
        let _ = self.coordinator.wait();
        for pod in &mut self.pods {
            for container in [pod.agent.take(), pod.workers.take()].into_iter().flatten() {
                container.end(Signal::KILL);
            }
        }
    }
}

impl Site {
    fn build(pods: usize) -> Site {
        let folder = tempfile::Builder::new()
            .prefix("muster-pods-")
            .tempdir()
            .unwrap();
        let ready = folder.path().join("ready.json");
        let coordinator = Command::new(program("muster-coordinator"))
            .args(["--listen", "127.0.0.1:0", "--state-dir"])
            .arg(folder.path().join("coordinator"))
            .arg("--ready-file")
            .arg(&ready)
            .args(["--storm-failures", "100000", "--backoff-first", "100ms"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("coordinator.log")).unwrap())
            .spawn()
            .unwrap();
        let server = until(|| {
            let ready: Value = serde_json::from_slice(&fs::read(&ready).ok()?).ok()?;
            Some(ready["endpoint"].as_str()?.to_owned())
        })
        .unwrap();
        let mut site = Site {
            folder,
            coordinator,
            server,
            pods: Vec::new(),
        };
        for number in 0..pods {
            let name = format!("pod-{number}");
            let home = site.folder.path().join(&name);
            fs::create_dir_all(home.join("run")).unwrap();
            site.pods.push(Pod {
                name,
                home,
                agent: None,
                workers: None,
            });
        }
        site
    }

    fn muster(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new(program("muster"))
            .args(args)
            .env("MUSTER_SERVER", &self.server)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    fn json(&self, args: &[&str]) -> Option<Value> {
        serde_json::from_str(&self.muster(&[args, &["-o", "json"]].concat()).1).ok()
    }

    /// The findings of a node and its state.
    fn node(&self, number: usize) -> Option<(String, String)> {
        let status = self.json(&["get", "node", &self.pods[number].name])?["status"].take();
        let state = status["state"].as_str()?.to_owned();
        Some((state, status["findings"].to_string()))
    }

    fn submit(&self, name: &str, replicas: usize) {
        let state = self.folder.path().join(format!("{name}.step"));
        let script = scripts().join("allreduce.py");
        let spec = json!({
            "replicas": replicas, "minReplicas": 1, "procPerNode": 1, "gpusPerNode": 0, "scaleUpCooldown": "0s", "stopGracePeriod": "2s",
            "command": [python()], "args": [script, "--state", state, "--steps", "1000000", "--delay-ms", "20"], "restartPolicy": {"maxRestarts": 20},
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        });
        let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name}, "spec": spec});
        let file = self.folder.path().join(format!("{name}.json"));
        fs::write(&file, document.to_string()).unwrap();
        let (submitted, said) = self.muster(&["submit", "-f", file.to_str().unwrap()]);
        assert!(submitted, "{said}");
    }

    /// What all agents and all workers' containers have written.
    fn logs(&self) -> String {
        let files = self.pods.iter();
        files
            .flat_map(|pod| ["agent.log", "workers.log"].map(|log| pod.home.join(log)))
            .map(|log| {
                format!(
                    "\n{}:\n{}",
                    log.display(),
                    fs::read_to_string(&log).unwrap_or_default()
                )
            })
            .collect()
    }

    fn trains(&self, job: &str, generation: u64, nodes: u64) -> Value {
        let mut last = Value::Null;
        let found = until(|| {
            last = self.json(&["get", "job", job])?["status"].take();
            let ranks = last["ranks"].as_array()?;
            (last["generation"].as_u64()? >= generation
                && last["nodes"] == nodes
                && ranks.len() as u64 == nodes
                && last["phase"] == "Running"
                && ranks.iter().all(|rank| !rank["lastStep"].is_null()))
            .then(|| last.clone())
        });
        found.unwrap_or_else(|| {
            let story = self.muster(&["explain", job]).1;
            let logs = self.muster(&["logs", job, "--tail", "20"]).1;
            let nodes = self.muster(&["describe", "node", "pod-0"]).1;
            let agents = self.logs();
            panic!("{job} does not train as generation {generation} on {nodes} nodes: {last:#}\n{story}\n{logs}\n{nodes}{agents}")
        })
    }
}

/// Whether this machine permits such containers. Says loudly if not.
fn containers_can_be_made() -> bool {
    let made = contained(Path::new("true"))
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !made {
        eprintln!(
            "\n!!! NO CONTAINERS here (they need root and `unshare`): that workers live in another container is not shown.\n"
        );
    }
    made
}

#[test]
fn workers_live_in_the_other_container_through_everything() {
    if !containers_can_be_made() {
        return;
    }
    let mut site = Site::build(2);
    let server = site.server.clone();
    for pod in &mut site.pods {
        pod.start_agent(&server);
    }
    // The node is in the fleet before its workers' container is up, and takes no work.
    let waits = |site: &Site| {
        site.node(0)
            .is_some_and(|(_, health)| health.contains("workers-container"))
    };
    until(|| waits(&site).then_some(())).expect("the missing container is found");
    for pod in &mut site.pods {
        pod.start_workers();
    }
    // The machine may have findings of its own, such as a disk that is nearly full.
    let fit = |number| {
        site.node(number).is_some_and(|(state, findings)| {
            state == "Ready" && !findings.contains("workers-container")
        })
    };
    until(|| (0..2).all(fit).then_some(())).unwrap_or_else(|| {
        let nodes: Vec<_> = (0..2).map(|number| site.node(number)).collect();
        panic!("the containers are not found: {nodes:#?}{}", site.logs())
    });
    site.submit("learn", 2);
    site.trains("learn", 1, 2);
    let (first, init) = (&site.pods[0], site.pods[0].workers.as_ref().unwrap().init());
    let ranks = first.ranks();
    assert_eq!(ranks.len(), 1, "{:?}", processes_of(&first.volume()));
    let rank = *ranks.first().unwrap();
    assert_eq!(namespace(rank), namespace(init as u32));
    let own = environment(rank);
    assert!(own.contains("IMAGE=of-the-workers"), "{own}");

    // What `kubectl logs` shows.
    let said = first.home.join("workers.log");
    let shown = || {
        fs::read_to_string(&said)
            .unwrap()
            .contains("[learn rank 0] ")
    };
    until(|| shown().then_some(())).expect("the ranks' output is the container's");

    // A rank that dies costs a generation, and no container.
    kill_process(Pid::from_raw(rank as i32).unwrap(), Signal::KILL).unwrap();
    let status = site.trains("learn", 2, 2);
    let members = status["members"].as_array().unwrap();
    assert!(
        members.iter().all(|member| member["lane"] == "fork"),
        "{members:#?}"
    );
    assert_eq!(site.pods[0].workers.as_ref().unwrap().init(), init);

    // The agent's container is killed and comes back: no worker notices.
    let before = site.pods[0].ranks();
    let killed = site.pods[0].agent.take().unwrap();
    killed.end(Signal::KILL);
    site.pods[0].start_agent(&server);
    let step = last_step(&status);
    until(|| {
        let status = site.json(&["get", "job", "learn"])?["status"].take();
        (last_step(&status) > step + 20).then_some(())
    })
    .expect("it trains on");
    let status = site.trains("learn", 2, 2);
    assert_eq!(status["generation"], 2);
    assert_eq!(site.pods[0].ranks(), before);
    // What a rank uses is told from inside.
    let used = |rank: &Value| {
        let memory = rank["memoryBytes"].as_u64().unwrap_or_default();
        memory > 10 << 20 && rank["cpuMilli"].as_u64().is_some_and(|cpu| cpu < 100_000)
    };
    until(|| {
        let status = site.json(&["get", "job", "learn"])?["status"].take();
        status["ranks"].as_array()?.iter().all(used).then_some(())
    })
    .expect("the usage of each rank is known");

    // All of the workers' container is killed, as for its memory limit, and restarted in place: the
    // agent proves by it that nothing lives, and the node is in the next worlds again.
    let killed = site.pods[0].workers.take().unwrap();
    killed.end(Signal::KILL);
    assert!(site.pods[0].ranks().is_empty());
    // Even without the runner's list of its processes: their PID namespace has ended.
    for run in fs::read_dir(site.pods[0].volume().join("runs")).unwrap() {
        let _ = fs::remove_file(run.unwrap().path().join("descendants.json"));
    }
    site.pods[0].start_workers();
    let status = site.trains("learn", 3, 2);
    assert!(status["restarts"].as_u64() <= Some(3), "{status:#}");

    // A pod that is deleted: the job goes on without it, and its first process ends in order.
    let (leaving, generation) = (
        site.pods[0].workers.take().unwrap(),
        status["generation"].as_u64().unwrap(),
    );
    assert!(leaving.end(Signal::TERM), "it ended with a failure");
    assert!(site.pods[0].ranks().is_empty());
    let status = site.trains("learn", generation + 1, 1);
    assert_eq!(status["members"][0]["node"], "pod-1");

    // A pod that is made again is another boot, with an empty volume.
    let agent = site.pods[0].agent.take().unwrap();
    agent.end(Signal::TERM);
    for folder in ["run", "state"] {
        fs::remove_dir_all(site.pods[0].home.join(folder)).unwrap();
    }
    fs::create_dir(site.pods[0].volume()).unwrap();
    site.pods[0].start_agent(&server);
    site.pods[0].start_workers();
    site.trains("learn", generation + 2, 2);
    let (done, said) = site.muster(&["cancel", "learn"]);
    assert!(done, "{said}");
    until(|| {
        site.pods
            .iter()
            .all(|pod| pod.ranks().is_empty())
            .then_some(())
    })
    .expect("nothing of the job is left");
}
