//! `muster get -w`: rows that change, and a coordinator that goes away meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Mutex;

use coordinator::{Cardboard, muster, read, serve};
use muster_proto::v1::*;
use tonic::Status;

#[allow(dead_code, reason = "other tests ask for more of it")]
mod coordinator;

fn job(name: &str, phase: JobPhase, kind: Option<&str>) -> Job {
    Job {
        r#ref: Some(JobRef {
            namespace: "default".into(),
            name: name.into(),
        }),
        uid: format!("uid of {name}"),
        spec: Some(JobSpec {
            args: vec!["train.py".into()],
            origin: kind.map(|kind| Origin {
                api_version: "kubeflow.org/v1".into(),
                kind: kind.into(),
                ..Origin::default()
            }),
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            phase: phase.into(),
            generation: 1,
            replicas: 1,
            nodes_running: 1,
            world_size: 1,
            ..JobStatus::default()
        }),
        created_unix_us: 1_795_260_928_000_000,
        ..Job::default()
    }
}

fn is(job: Job) -> Result<WatchJobsResponse, Status> {
    Ok(WatchJobsResponse {
        job: Some(job),
        deleted: false,
    })
}

fn gone(name: &str) -> Result<WatchJobsResponse, Status> {
    let bare = Job {
        spec: None,
        status: None,
        ..job(name, JobPhase::Unspecified, None)
    };
    Ok(WatchJobsResponse {
        job: Some(bare),
        deleted: true,
    })
}

fn lost() -> Result<WatchJobsResponse, Status> {
    Err(Status::unavailable("the coordinator goes"))
}

/// This ends the command, with the exit code 5.
fn end() -> Result<WatchJobsResponse, Status> {
    Err(Status::permission_denied("end of test"))
}

/// Watches through these connections. After each but the first one, the lists have these jobs. Returns
/// the first two columns of each row and stderr without the last error.
fn watch(
    connections: Vec<Vec<Result<WatchJobsResponse, Status>>>,
    lists: Vec<Vec<Job>>,
    args: &[&str],
) -> (Vec<String>, Vec<String>) {
    let list = |jobs| {
        Ok(ListJobsResponse {
            jobs,
            ..ListJobsResponse::default()
        })
    };
    let (_runtime, _, address) = serve(Cardboard {
        watch: Mutex::new(connections.into_iter().map(Ok).collect()),
        list: Mutex::new(lists.into_iter().map(list).collect()),
        ..Cardboard::default()
    });
    let args = [args, &["-w", "--no-headers"]].concat();
    let (code, out, error) = read(muster(address, &args).output().unwrap());
    assert_eq!(code, 5, "{out}{error}");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().take(2).collect();
        cells.join(" ")
    };
    let mut said: Vec<String> = error.lines().map(str::to_owned).collect();
    assert!(said.pop().unwrap().contains("end of test"), "{error}");
    (out.lines().map(row).collect(), said)
}

const AWAY: &str =
    "the coordinator is not reachable; waiting for it to come back (the job does not need it)";
const BACK: &str = "the coordinator is back";

#[test]
fn after_a_lost_connection_only_what_changed_is_printed() {
    let runs = |name| job(name, JobPhase::Running, None);
    let (rows, said) = watch(
        vec![
            vec![is(runs("a")), is(runs("b")), is(runs("c")), lost()],
            vec![
                is(runs("a")),
                is(job("b", JobPhase::Succeeded, None)),
                is(runs("d")),
                end(),
            ],
        ],
        vec![vec![
            runs("a"),
            job("b", JobPhase::Succeeded, None),
            runs("d"),
        ]],
        &["get", "jobs"],
    );
    assert_eq!(
        rows,
        [
            "a Running",
            "b Running",
            "c Running",
            "b Succeeded",
            "d Running"
        ]
    );
    // What was deleted while nobody listened is told, too.
    assert_eq!(said, [AWAY, BACK, "job/c deleted"]);
}

#[test]
fn a_coordinator_that_goes_twice_is_said_twice() {
    let runs = || job("a", JobPhase::Running, None);
    let (rows, said) = watch(
        vec![
            vec![is(runs()), lost()],
            vec![is(runs()), lost()],
            vec![is(job("a", JobPhase::Failed, None)), end()],
        ],
        vec![vec![runs()], vec![runs()]],
        &["get", "jobs"],
    );
    assert_eq!(rows, ["a Running", "a Failed"]);
    assert_eq!(said, [AWAY, BACK, AWAY, BACK]);
}

#[test]
fn jobs_of_one_kind_are_watched_in_its_words() {
    let runs = || job("torch", JobPhase::Running, Some("PyTorchJob"));
    let mut cancelled = job("torch", JobPhase::Cancelled, Some("PyTorchJob"));
    cancelled.status.as_mut().unwrap().reason = "CancelledByUser".into();
    let (rows, said) = watch(
        vec![
            vec![
                is(runs()),
                is(job("flow", JobPhase::Running, Some("TFJob"))),
                is(job("own", JobPhase::Running, None)),
                lost(),
            ],
            vec![is(runs()), gone("own"), is(cancelled), gone("torch"), end()],
        ],
        vec![vec![runs()]],
        &["get", "pytorchjobs"],
    );
    // Kubeflow has no word for a cancelled job.
    assert_eq!(rows, ["torch Running", "torch Failed"]);
    assert_eq!(said, [AWAY, BACK, "pytorchjob/torch deleted"]);
}

#[test]
fn one_job_of_another_kind_is_not_watched() {
    let get = GetJobResponse {
        job: Some(job("flow", JobPhase::Running, Some("TFJob"))),
    };
    let (_runtime, _, address) = serve(Cardboard {
        get: Mutex::new([Ok(get)].into()),
        ..Cardboard::default()
    });
    let args = ["get", "pytorchjob", "flow", "-w"];
    let (code, out, error) = read(muster(address, &args).output().unwrap());
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(
        error.contains("job flow is from a TFJob of kubeflow.org/v1, not from a PyTorchJob"),
        "{error}"
    );
}
