//! Jobs choose their nodes, and a plan says what would happen to them.

use muster_drills::{Cluster, nodes, python, scripts};
use serde_json::json;

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

#[test]
fn a_job_gets_the_nodes_that_it_names_and_a_plan_said_so() {
    let cluster = Cluster::up(3);
    let script = scripts().join("allreduce.py");
    let (python, script) = (python(), script.to_str().unwrap().to_owned());
    let dry = |flags: &[&str]| {
        let mut line = vec!["run", "--dry-run=client", "-o", "yaml", "--name", "planned"];
        line.extend(flags);
        line.extend(["--python", &python, "--", &script]);
        let file = cluster.path("job.yaml");
        std::fs::write(&file, cluster.muster(line)).unwrap();
        let line = ["plan", "-o", "json", "-f", file.to_str().unwrap()];
        let output = cluster.try_muster(line);
        let said = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        let said = said.unwrap_or_else(|_| panic!("no document: {output:?}"));
        (output.status.code(), said)
    };
    let flags = ["--nodelist", "node-[2-3]", "--exclude", "node-3"];
    let (code, plan) = dry(&flags);
    assert_eq!((code, &plan["starts"]), (Some(0), &json!(true)), "{plan:#}");
    assert_eq!(plan["nodes"][0]["node"], "node-2", "{plan:#}");
    cluster.train_with("job", "1", &flags, &LONG);
    assert_eq!(nodes(&cluster.trains("job", 1, 1)), ["node-2"]);

    let label = "kubernetes.io/hostname,kubernetes.io/os=linux,!nothing";
    let (code, plan) = dry(&["--nnodes", "2", "--node-selector", label]);
    assert_eq!(code, Some(0), "what a node says of itself: {plan:#}");
    let (code, plan) = dry(&["--nnodes", "2", "--node-selector", "pool=train"]);
    let wait = &plan["wait"];
    assert_eq!(
        (code, &wait["reason"], &wait["have"], &wait["passes"]),
        (
            Some(7),
            &json!("SelectorMatchesTooFew"),
            &json!(0),
            &json!(false)
        ),
        "{plan:#}"
    );
    assert_eq!(wait["excluded"][0]["message"], "has no label pool");
    assert_eq!(
        cluster.json(["get", "jobs"])["items"]
            .as_array()
            .unwrap()
            .len(),
        1,
        "nothing was submitted"
    );
}
