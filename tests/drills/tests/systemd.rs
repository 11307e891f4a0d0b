//! The daemons as services of a real systemd, on a machine of namespaces: one life of a host, by the commands
//! of docs/cluster.md.

use std::fs;

use muster_drills::{python, scripts, systemd::Systemd, until};
use serde_json::Value;

const STATE: &str = "/var/lib/muster-coordinator";
const URL: &str = "https://127.0.0.1:7070";

fn coordinator(machine: &Systemd, line: &str) -> String {
    let line =
        format!("runuser -u muster-coordinator -- muster-coordinator {line} --state-dir {STATE}");
    machine.ran(&line, "").trim().to_owned()
}

fn main_pid(machine: &Systemd, unit: &str) -> String {
    let line = format!("systemctl show {unit} --property=MainPID,ActiveState --value");
    machine.ran(&line, "")
}

fn json(machine: &Systemd, line: &str) -> Value {
    let output = machine.ran(&format!("muster {line} -o json"), "");
    serde_json::from_str(&output).expect("-o json prints JSON")
}

#[test]
fn a_host_comes_changes_and_goes_while_its_workers_go_on() {
    let (python, script) = (python(), scripts().join("allreduce.py"));
    // What an environment links to must be reachable, too.
    let interpreter = fs::canonicalize(&python).expect("it is there");
    let reachable = [
        &python,
        interpreter.to_str().expect("UTF-8"),
        script.to_str().expect("UTF-8"),
    ];
    let Some(machine) = Systemd::boot(&reachable.map(|path| path as &str)) else {
        return;
    };
    let init = "muster-coordinator init --name 127.0.0.1 --service";
    let plan = machine.ran(&format!("{init} --dry-run"), "");
    assert!(
        plan.contains("systemctl start muster-coordinator.service"),
        "{plan}"
    );
    assert!(plan.contains("+ User=muster-coordinator"), "{plan}");
    machine.refused(&format!("ls {STATE}"));
    let said = machine.ran(init, "");
    assert!(said.contains("muster-coordinator.service runs."), "{said}");
    let before = main_pid(&machine, "muster-coordinator");
    let said = machine.ran(init, "");
    assert!(said.starts_with("Nothing to do: "), "{said}");
    assert_eq!(main_pid(&machine, "muster-coordinator"), before);

    let pin = coordinator(&machine, "pin");
    let token = coordinator(&machine, "token create --host");
    let join = format!("muster-agent join {URL} --ca-pin {pin} --node-name n1 --service");
    let said = machine.ran(&format!("{join} --token-file - -- --no-prove"), &token);
    assert!(said.contains("muster-agent.service runs."), "{said}");
    // The token is used up, and nobody asks for another.
    let said = machine.ran(&join, "");
    assert!(said.starts_with("Nothing to do: "), "{said}");

    let token = coordinator(
        &machine,
        "token create --user ann --role admin --all-namespaces",
    );
    machine.ran(
        &format!("muster login {URL} --ca-pin {pin} --token-file -"),
        &token,
    );
    let node = || {
        let nodes = json(&machine, "nodes");
        let ready = nodes["items"]
            .as_array()?
            .iter()
            .find(|node| node["status"]["state"] == "Ready")?;
        Some(ready.clone())
    };
    let ready = until(node).expect("the node is ready");
    assert_eq!(ready["metadata"]["name"], "n1");

    machine.ran(
        &format!(
            "muster run --name digits --nnodes 1 --nproc-per-node 1 --python {python} -- {} --steps 1000000 --state \
             /tmp/digits.step",
            script.display()
        ),
        "",
    );
    let rank = || {
        let job = json(&machine, "get job digits");
        let rank = &job["status"]["ranks"][0];
        rank["lastStep"].as_u64()?;
        rank["pid"].as_u64()
    };
    let pid = until(rank)
        .unwrap_or_else(|| panic!("no step: {}", machine.ran("muster explain digits", "")));

    // A changed setting is shown and applied, and the worker does not notice.
    let agent = main_pid(&machine, "muster-agent");
    let said = machine.ran(&format!("{join} -- --label rack=r7"), "");
    assert!(said.contains("    + MUSTER_LABELS=rack=r7\n"), "{said}");
    assert!(
        said.contains("it runs without MUSTER_LABELS); workers go on\n"),
        "{said}"
    );
    assert_ne!(main_pid(&machine, "muster-agent"), agent);
    until(|| node().filter(|node| node["metadata"]["labels"]["rack"] == "r7"))
        .expect("the label is there");
    assert_eq!(until(rank), Some(pid), "the worker goes on");
    assert_eq!(json(&machine, "get job digits")["status"]["generation"], 1);
    // One that the agent refuses leaves it as it is.
    let agent = main_pid(&machine, "muster-agent");
    let why = machine.refused(&format!("{join} -- --slots 99"));
    assert!(
        why.contains("--slots: is 99, at most 32 are allowed"),
        "{why}"
    );
    assert_eq!(main_pid(&machine, "muster-agent"), agent);

    // Neither goes while it is in use.
    let why = machine.refused("muster-agent leave --service");
    assert!(
        why.contains("workers run here: ") && why.contains("-g1"),
        "{why}"
    );
    let why = machine.refused("muster-coordinator remove --service");
    assert!(
        why.contains("of nodes and users are open") || why.contains("1 connection"),
        "{why}"
    );
    machine.ran(&format!("kill -0 {pid}"), "");
    machine.ran("muster-agent leave --service --force", "");
    machine.refused(&format!("kill -0 {pid}"));
    machine.refused("systemctl cat muster-agent.service");
    let said = machine.ran("muster-agent leave --service", "");
    assert!(said.starts_with("Nothing to do: "), "{said}");

    // The state has stayed, so the node comes back under its name and goes on with its job.
    let said = machine.ran(&join, "");
    assert!(said.contains("muster-agent.service runs."), "{said}");
    until(|| rank().filter(|new| *new != pid)).expect("the job goes on");
    machine.ran("muster cancel digits", "");
    until(|| {
        let left = machine.run(&["muster-agent", "leave", "--service", "--purge"], "");
        left.status.success().then_some(())
    })
    .expect("no worker is left");
    machine.refused("ls /var/lib/muster-agent");
    machine.refused("ls /etc/muster/agent.env");
    until(|| {
        let line = ["muster-coordinator", "remove", "--service", "--purge"];
        machine.run(&line, "").status.success().then_some(())
    })
    .expect("nobody is connected");
    machine.refused(&format!("ls {STATE}"));
}
