//! Jobs of MPI without MPI: a stand-in for `mpirun` starts a stand-in for its daemon on every host, by
//! the program for remote starts that it is told, and believes that all is well when a daemon is gone,
//! as Open MPI 5 does. Ranks, nodes and the launcher are killed.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs;

use muster_drills::{Cluster, kill, pids};
use rustix::process::Signal;
use serde_json::Value;

/// Starts a daemon on each host of the hostfile, passes their output on, and ends well whatever becomes
/// of them, unless a rank has ended with a code of its own.
const MPIRUN: &str = r#"
import os, subprocess, sys, threading

agent = os.environ["OMPI_MCA_plm_rsh_agent"]
assert agent == os.environ["PRTE_MCA_plm_ssh_agent"] == os.environ["HYDRA_LAUNCHER_EXEC"]
lines = open(os.environ["OMPI_MCA_orte_default_hostfile"]).read().split("\n")[:-1]
hydra = open(os.environ["HYDRA_HOST_FILE"]).read().split("\n")[:-1]
hosts = [(host, int(slots.removeprefix("slots="))) for host, slots in (line.split() for line in lines)]
assert [f"{host}:{slots}" for host, slots in hosts] == hydra, hydra
print("hosts", hosts, "launcher", os.uname().nodename, flush=True)
daemons, first = [], 0
for host, slots in hosts:
    words = [agent, host, "exec", sys.executable, f"{sys.path[0]}/daemon.py", str(first), str(slots)]
    daemons.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
    first += slots
codes = [daemon.wait() for daemon in daemons]
print("daemons have ended with", codes, flush=True)
sys.exit(7 if 7 in codes else 0)
"#;

/// Starts the ranks of one host, and reaps them.
const DAEMON: &str = r#"
import os, subprocess, sys

first, slots = int(sys.argv[1]), int(sys.argv[2])
ranks = []
for rank in range(first, first + slots):
    env = dict(os.environ, OMPI_COMM_WORLD_RANK=str(rank))
    ranks.append(subprocess.Popen([sys.executable, f"{sys.path[0]}/rank.py"], env=env))
codes = [rank.wait() for rank in ranks]
sys.exit(next((code for code in codes if code > 0), 0))
"#;

/// A rank: says where it is, and makes steps until it is told to end, with the code that it is told.
const RANK: &str = r#"
import os, sys, time

rank, here = os.environ["OMPI_COMM_WORLD_RANK"], sys.path[0]
assert "WORLD_SIZE" not in os.environ and "MASTER_ADDR" not in os.environ
# In one write each: all ranks of a host have one pipe.
say = lambda text: os.write(1, f"{text}\n".encode())
say(f'rank {rank} on {os.uname().nodename} as {os.environ["MUSTER_ROLE"]} pid {os.getpid()}')
step = 0
while not os.path.exists(f"{here}/end"):
    step += 1
    if rank == "0":
        say(f"step {step}")
    time.sleep(0.05)
    if rank == "3" and os.path.exists(f"{here}/fail"):
        os.rename(f"{here}/fail", f"{here}/failed")
        print("rank 3 fails", file=sys.stderr, flush=True)
        sys.exit(7)
say(f"rank {rank} ends")
"#;

const JOB: &str = r#"
apiVersion: muster.dev/v1alpha1
kind: MusterJob
metadata: {name: pi}
spec:
  framework: mpi
  command: [python3]
  args: [DIR/mpirun.py]
  restartPolicy: {maxRestarts: 9}
  roles:
  - {name: launcher}
  - {name: worker, replicas: 2, procPerNode: 2}
"#;

/// The launcher's log of a generation.
fn log(cluster: &Cluster, generation: u64) -> String {
    let generation = generation.to_string();
    let log = cluster.try_muster(["logs", "pi", "--rank", "0", "--generation", &generation]);
    String::from_utf8_lossy(&log.stdout).into_owned()
}

/// Waits until all four ranks of this generation run. Returns the status, and their pids.
fn runs(cluster: &Cluster, generation: u64) -> (Value, Vec<u64>) {
    let status = cluster.wait(
        "pi",
        &format!("running as generation {generation}"),
        |status| {
            let steps = status["ranks"][0]["lastStep"].as_u64();
            status["generation"] == generation && status["phase"] == "Running" && steps > Some(2)
        },
    );
    let pid_of = |rank: usize| {
        let log = log(cluster, generation);
        let line = log
            .lines()
            .find(|line| line.contains(&format!("rank {rank} on ")))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let all = || (0..4).map(pid_of).collect::<Option<Vec<u64>>>();
    let ranks = muster_drills::until(all).unwrap_or_else(|| panic!("{}", log(cluster, generation)));
    (status, ranks)
}

/// The nodes of the launcher and of both workers.
fn nodes(status: &Value) -> Vec<String> {
    let members = status["members"].as_array().unwrap().iter();
    members
        .map(|member| member["node"].as_str().unwrap().to_owned())
        .collect()
}

/// What `explain` says of the break that this generation answered.
fn why(cluster: &Cluster, generation: u64) -> Value {
    let explained = cluster.json(["explain", "pi"]);
    let incidents = explained["incidents"].as_array().unwrap().iter();
    let mut of = incidents.filter(|incident| incident["toGeneration"] == generation);
    of.next().unwrap_or_else(|| panic!("{explained:#}")).clone()
}

/// The process of the launcher that holds a command on this host.
fn remote_start(status: &Value, host: &str) -> u64 {
    let launcher = pids(status)[0];
    let children = format!("/proc/{launcher}/task/{launcher}/children");
    let children = fs::read_to_string(children).unwrap();
    let on_host = |pid: &&str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|word| word == host.as_bytes())
    };
    let found = children.split_whitespace().find(on_host);
    found
        .unwrap_or_else(|| panic!("{children}"))
        .parse()
        .unwrap()
}

#[test]
fn an_mpirun_that_refuses_its_own_words_ends_the_job() {
    let cluster = Cluster::up(3);
    let mpirun = cluster.path("mpirun");
    fs::write(
        &mpirun,
        "#!/bin/sh\necho 'mpirun: Error: unknown option -bind-to' >&2\nexit 213\n",
    )
    .unwrap();
    fs::set_permissions(&mpirun, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let dir = cluster.path("");
    let job = JOB.replace(
        "args: [DIR/mpirun.py]",
        "args: [-np, '4', -bind-to, none, hostname]",
    );
    let job = job
        .replace("[python3]", "[DIR/mpirun]")
        .replace("DIR", dir.to_str().unwrap().trim_end_matches('/'));
    fs::write(cluster.path("job.yaml"), job).unwrap();
    cluster.muster(["submit", "-f", cluster.path("job.yaml").to_str().unwrap()]);
    let status = cluster.wait("pi", "failed", |status| status["phase"] == "Failed");
    assert_eq!(status["reason"], "CannotStart", "{status:#}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("no rank began: mpirun: Error: unknown option"),
        "{message}"
    );
    assert_eq!(status["restarts"], 1, "{status:#}");
}

#[test]
fn mpirun_reaches_its_hosts_and_is_believed_only_if_nothing_fell() {
    let cluster = Cluster::up(4);
    for (name, text) in [
        ("mpirun.py", MPIRUN),
        ("daemon.py", DAEMON),
        ("rank.py", RANK),
    ] {
        fs::write(cluster.path(name), text).unwrap();
    }
    let dir = cluster.path("");
    let job = JOB.replace("DIR", dir.to_str().unwrap().trim_end_matches('/'));
    fs::write(cluster.path("job.yaml"), job).unwrap();
    cluster.muster(["submit", "-f", cluster.path("job.yaml").to_str().unwrap()]);

    let (first, ranks) = runs(&cluster, 1);
    let said = log(&cluster, 1);
    for words in [
        "hosts [('pi-worker-0', 2), ('pi-worker-1', 2)] launcher pi-launcher-0",
        "rank 0 on pi-worker-0 as worker",
        "rank 3 on pi-worker-1 as worker",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }

    // A rank is killed. mpirun ends well, and the world is formed anew all the same.
    kill(ranks[2], Signal::KILL);
    let (second, ranks) = runs(&cluster, 2);
    assert_eq!(nodes(&second), nodes(&first));
    let killed = why(&cluster, 2);
    let message = killed["message"].as_str().unwrap();
    let expected = format!(
        "rank 2 on {} ended with signal 9 (SIGKILL): muster-lend: Open MPI rank 2 (pid ",
        nodes(&first)[2]
    );
    assert!(message.starts_with(&expected), "{killed:#}");

    // A rank ends with a code of its own.
    fs::write(cluster.path("fail"), "").unwrap();
    let (third, _) = runs(&cluster, 3);
    let failed = why(&cluster, 3);
    let message = failed["message"].as_str().unwrap();
    let expected = format!(
        "rank 2 on {} ended with exit code 7: muster-lend: Open MPI rank 3 (pid ",
        nodes(&second)[2]
    );
    assert!(message.starts_with(&expected), "{failed:#}");
    for pid in ranks {
        assert!(
            !muster_drills::lives(pid),
            "rank {pid} of an earlier generation"
        );
    }

    // The launcher is killed.
    kill(pids(&third)[0], Signal::KILL);
    let (fourth, _) = runs(&cluster, 4);
    let killed = why(&cluster, 4);
    let expected = format!(
        "rank 0 on {} ended with signal 9 (SIGKILL)",
        nodes(&third)[0]
    );
    assert_eq!(killed["message"].as_str(), Some(&*expected), "{killed:#}");

    // The connection breaks by which the launcher holds its second daemon. mpirun does not mind, and its
    // success would not be the job's. Nobody is known to be at fault.
    kill(remote_start(&fourth, "pi-worker-1"), Signal::KILL);
    let (fifth, _) = runs(&cluster, 5);
    assert_eq!(nodes(&fifth), nodes(&fourth));
    let broke = why(&cluster, 5);
    let message = broke["message"].as_str().unwrap();
    assert!(
        message.contains(": muster-lend: the launcher's connection broke above Open MPI rank "),
        "{broke:#}"
    );
    assert_eq!(broke["charged"].as_str(), Some("nobody"), "{broke:#}");

    // A worker's node is cut: its daemon and its ranks are gone, and mpirun ends well at once. The spare
    // node takes its place, and the launcher keeps its own.
    let lost = nodes(&fifth)[1].clone();
    cluster.muster(["local", "kill-node", &lost]);
    let (sixth, _) = runs(&cluster, 6);
    assert!(!nodes(&sixth).contains(&lost), "{:?}", nodes(&sixth));
    assert_eq!(nodes(&sixth)[0], nodes(&fifth)[0]);
    let cut = why(&cluster, 6);
    assert_eq!(cut["culprit"].as_str(), Some(&*lost), "{cut:#}");

    // Everything ends well.
    fs::write(cluster.path("end"), "").unwrap();
    cluster.muster(["wait", "pi", "--for=complete", "--timeout", "60s"]);
    let said = log(&cluster, 6);
    assert!(
        said.contains("rank 3 ends") && said.contains("daemons have ended with [0, 0]"),
        "{said}"
    );
}
