//! No death in the control plane disturbs a running worker.

use muster_drills::{Cluster, last_step, pids, until};

const LONG: [&str; 4] = ["--steps", "100000", "--delay-ms", "20"];

#[test]
fn coordinator_and_agents_are_killed_and_no_worker_notices() {
    let cluster = Cluster::up(3);
    cluster.train("job", "2:3", &LONG);
    let before = cluster.trains("job", 1, 3);
    let step_file = cluster.path("job.step");
    let step = || {
        std::fs::read_to_string(&step_file)
            .ok()?
            .parse::<u64>()
            .ok()
    };

    cluster.muster(["local", "kill-coordinator"]);
    let at = step().expect("a step is recorded");
    until(|| step().filter(|now| *now > at + 5)).expect("training goes on without a coordinator");
    cluster.muster(["local", "start-coordinator"]);
    let after = cluster.wait("job", "known again", |status| {
        status["nodesRunning"] == 3 && last_step(status) > at
    });
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(&before)),
        "same workers after the coordinator's death"
    );

    let agent = cluster.node_of(&before, 1);
    cluster.muster(["local", "kill-agent", &agent]);
    let at = step().expect("a step is recorded");
    until(|| step().filter(|now| *now > at + 5)).expect("training goes on without an agent");
    cluster.muster(["local", "start-agent", &agent]);
    let after = cluster.wait("job", "known again", |status| {
        status["nodesRunning"] == 3 && last_step(status) > at + 5
    });
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(&before)),
        "same workers after the agent's death"
    );

    // Both die at once, and the workers end unwatched. Their end is still known afterwards.
    cluster.muster(["cancel", "job"]);
    cluster.wait("job", "cancelled", |status| status["phase"] == "Cancelled");
}

#[test]
fn accepted_jobs_survive_a_coordinator_killed_at_any_moment() {
    let cluster = Cluster::up(1);
    let mut accepted = Vec::new();
    for round in 0..5 {
        for i in 0..4 {
            let name = format!("job-{round}-{i}");
            cluster.train(&name, "4", &[]);
            accepted.push(name);
        }
        cluster.muster(["local", "kill-coordinator"]);
        cluster.muster(["local", "start-coordinator"]);
    }
    let jobs = cluster.json(["get", "jobs"]);
    let mut names: Vec<String> = jobs["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["metadata"]["name"].as_str().unwrap().into())
        .collect();
    names.sort();
    accepted.sort();
    assert_eq!(names, accepted, "none lost, none doubled");
}

#[test]
fn a_job_that_ends_while_the_coordinator_is_away_is_known_to_have_ended() {
    let cluster = Cluster::up(1);
    cluster.train("job", "1", &["--steps", "200", "--delay-ms", "50"]);
    cluster.trains("job", 1, 1);
    cluster.muster(["local", "kill-coordinator"]);
    until(|| {
        std::fs::read_to_string(cluster.path("job.step"))
            .ok()
            .filter(|step| step == "200")
    })
    .expect("the job ends by itself");
    cluster.muster(["local", "start-coordinator"]);
    cluster.wait("job", "succeeded", |status| status["phase"] == "Succeeded");
}
