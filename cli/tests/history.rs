//! What the command line asks of the history, and what it prints.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod coordinator;

use std::sync::Mutex;

use coordinator::{Cardboard, muster, read, serve};
use muster_proto::v1::{
    Culprit, HistoryRecord, Job, JobPhase, JobRef, ListHistoryResponse, ListJobsResponse, TimeSum,
};
use tonic::Status;

fn named(name: &str) -> Option<JobRef> {
    Some(JobRef {
        namespace: "team-a".into(),
        name: name.into(),
    })
}

fn sum(us: u64) -> TimeSum {
    TimeSum { us, gpu_us: 8 * us }
}

/// A job of 8 GPUs that ended after an hour, of which `node` cost it a quarter.
fn record(number: u64, name: &str, node: &str) -> HistoryRecord {
    const HOUR: u64 = 3_600_000_000;
    HistoryRecord {
        number,
        r#ref: named(name),
        uid: format!("uid-{number}"),
        owner: "ann".into(),
        created_unix_us: HOUR,
        started_unix_us: HOUR,
        finished_unix_us: 2 * HOUR,
        phase: JobPhase::Failed.into(),
        reason: "FailedByRule".into(),
        members: 1,
        gpus: 8,
        nodes_used: 1,
        nodes: vec![node.into()],
        states: [
            ("training".to_owned(), sum(HOUR / 2)),
            ("recovering".to_owned(), sum(HOUR / 2)),
        ]
        .into(),
        lost: [("NodeLost".to_owned(), sum(HOUR / 2))].into(),
        culprits: vec![Culprit {
            node: node.into(),
            incidents: 1,
            ranks: Vec::new(),
            cost: Some(sum(HOUR / 4)),
        }],
        goodput: Some(0.5),
        ..HistoryRecord::default()
    }
}

fn page(records: Vec<HistoryRecord>, next: &str) -> Result<ListHistoryResponse, Status> {
    Ok(ListHistoryResponse {
        records,
        next_page_token: next.into(),
    })
}

fn answers<T>(all: impl IntoIterator<Item = T>) -> Mutex<std::collections::VecDeque<T>> {
    Mutex::new(all.into_iter().collect())
}

#[test]
fn the_newest_come_last_and_pages_are_joined() {
    let history = answers([
        page(vec![record(3, "c", "n1"), record(2, "b", "n2")], "2"),
        page(vec![record(1, "a", "n1")], ""),
    ]);
    let (_runtime, heard, address) = serve(Cardboard {
        history,
        ..Cardboard::default()
    });
    let args = ["history", "-n", "team-a", "--state", "Failed", "-o", "name"];
    let (code, out, err) = read(muster(address, &args).output().unwrap());
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (0, "job/a\njob/b\njob/c\n", "")
    );
    let heard = heard.heard.lock().unwrap().clone();
    assert_eq!(
        heard,
        [
            "history \"team-a\" \"\" \"\" [7] live false from \"\"",
            "history \"team-a\" \"\" \"\" [7] live false from \"2\"",
        ]
    );
}

#[test]
fn which_node_cost_most_is_one_command() {
    let live = HistoryRecord {
        number: 0,
        finished_unix_us: 0,
        phase: JobPhase::Running.into(),
        ..record(0, "d", "n2")
    };
    let all = vec![
        live,
        record(3, "c", "n1"),
        record(2, "b", "n2"),
        record(1, "a", "n2"),
    ];
    let history = answers([page(all, "")]);
    let (_runtime, heard, address) = serve(Cardboard {
        history,
        ..Cardboard::default()
    });
    let args = ["history", "--by", "node", "--since", "7d", "-n", "team-a"];
    let (code, out, _) = read(muster(address, &args).output().unwrap());
    let expected = "\
NODE   JOBS   FAILED   LOST   LOST-GPU-HOURS
n2     3      2        45m    6.0
-      4      3        60m    8.0
n1     1      1        15m    2.0
";
    let mut lines: Vec<&str> = out.lines().collect();
    let mut wanted: Vec<&str> = expected.lines().collect();
    lines[1..].sort_unstable();
    wanted[1..].sort_unstable();
    assert_eq!((code, lines), (0, wanted));
    assert!(heard.heard.lock().unwrap()[0].contains("live true"));
}

#[test]
fn a_deleted_job_is_listed_and_described() {
    let job = Job {
        r#ref: named("lives"),
        uid: "uid-9".into(),
        ..Job::default()
    };
    let list = answers([Ok(ListJobsResponse {
        jobs: vec![job],
        next_page_token: String::new(),
    })]);
    let over = HistoryRecord {
        uid: "uid-9".into(),
        ..record(2, "lives", "n1")
    };
    let history = answers([
        page(vec![over, record(1, "gone", "n1")], ""),
        page(vec![record(1, "gone", "n1")], ""),
        page(Vec::new(), ""),
    ]);
    let get = answers([
        Err(Status::not_found("job team-a/gone not found")),
        Err(Status::not_found("job team-a/never not found")),
    ]);
    let (_runtime, _, address) = serve(Cardboard {
        list,
        history,
        get,
        ..Cardboard::default()
    });
    let args = ["get", "jobs", "--all", "-n", "team-a", "-o", "name"];
    let (code, out, _) = read(muster(address, &args).output().unwrap());
    assert_eq!(
        (code, out.as_str()),
        (0, "job/lives\njob/gone\n"),
        "each once"
    );
    let args = ["describe", "job", "gone", "-n", "team-a"];
    let (code, out, err) = read(muster(address, &args).output().unwrap());
    assert_eq!(
        (code, err.as_str()),
        (0, "This job is deleted. What is left of it:\n")
    );
    assert!(out.contains("Reason:             FailedByRule\n"), "{out}");
    let args = ["describe", "job", "never", "-n", "team-a"];
    let (code, _, err) = read(muster(address, &args).output().unwrap());
    assert_eq!(
        (code, err.as_str()),
        (
            1,
            "error: job team-a/never not found; `muster get jobs -A` lists the jobs\n"
        )
    );
    let args = ["get", "nodes", "--all"];
    let (code, _, err) = read(muster(address, &args).output().unwrap());
    assert!(
        code == 2 && err.contains("--all is for `muster get jobs`"),
        "{err}"
    );
}

/// An older coordinator has no history.
#[test]
fn a_coordinator_that_refuses_says_why() {
    let (_runtime, _, address) = serve(Cardboard {
        history: answers([Err(Status::unimplemented(""))]),
        ..Cardboard::default()
    });
    let (code, _, err) = read(muster(address, &["history"]).output().unwrap());
    assert!(
        code == 1 && err.contains("is it an older version?"),
        "{err}"
    );
    let args = ["history", "--since", "yesterday"];
    let (code, _, err) = read(muster(address, &args).output().unwrap());
    assert!(
        code == 2 && err.contains("neither a period as 7d nor a day"),
        "{err}"
    );
}
