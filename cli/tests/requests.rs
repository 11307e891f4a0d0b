//! The output and the exit code for every kind of answer that a coordinator can give.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use coordinator::{Cardboard, muster, read, serve};
use muster_proto::v1::*;
use tonic::Status;

mod coordinator;

fn job(phase: JobPhase, reason: &str) -> Job {
    Job {
        r#ref: Some(JobRef {
            namespace: "default".into(),
            name: "digits".into(),
        }),
        owner: String::new(),
        uid: "u1".into(),
        spec: Some(JobSpec {
            min_replicas: Some(2),
            max_replicas: Some(4),
            args: vec!["train.py".into()],
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            phase: phase.into(),
            reason: reason.into(),
            replicas: 3,
            nodes_running: 3,
            ..JobStatus::default()
        }),
        created_unix_us: 1_795_260_928_000_000,
    }
}

fn seen(phase: JobPhase, reason: &str) -> Result<WatchJobsResponse, Status> {
    Ok(WatchJobsResponse {
        job: Some(job(phase, reason)),
        deleted: false,
    })
}

fn failed_with(state: &str) -> Job {
    let mut job = job(JobPhase::Failed, "RestartBudgetSpent");
    job.status.as_mut().unwrap().ranks.push(RankStatus {
        state: state.into(),
        ..RankStatus::default()
    });
    job
}

/// Runs one command against a coordinator. Returns the exit code, stdout, stderr and the requests
/// that the coordinator received.
fn run(cardboard: Cardboard, args: &[&str]) -> (i32, String, String, Vec<String>) {
    let (_runtime, cardboard, address) = serve(cardboard);
    let (code, out, error) = read(muster(address, args).output().unwrap());
    let heard = cardboard.heard.lock().unwrap().clone();
    (code, out, error, heard)
}

const FILE: &str = "apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata: {name: digits}\nspec: {args: [train.py]}\n";

/// Like [`run`], with a job file on standard input.
fn submit(cardboard: Cardboard, args: &[&str]) -> (i32, String, String, Vec<String>) {
    let (_runtime, cardboard, address) = serve(cardboard);
    let mut command = muster(address, &[&["submit", "-f", "-"], args].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(FILE.as_bytes())
        .unwrap();
    let (code, out, error) = read(child.wait_with_output().unwrap());
    let heard = cardboard.heard.lock().unwrap().clone();
    (code, out, error, heard)
}

fn accepted(existed: bool) -> Result<SubmitResponse, Status> {
    let mut accepted = SubmitResponse::default();
    (accepted.job, accepted.existed) = (Some(job(JobPhase::Pending, "Submitted")), existed);
    Ok(accepted)
}

#[test]
fn a_lost_submission_is_sent_again_as_the_same() {
    let cardboard = Cardboard {
        submit: vec![Err(Status::unavailable("gone")), accepted(true)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, _, heard) = submit(cardboard, &[]);
    assert_eq!(
        (code, out.as_str()),
        (0, "job/digits exists already with the same content\n")
    );
    assert_eq!(heard.len(), 2);
    assert_eq!(heard[0], heard[1], "one request id for both");
    let id = heard[0].split(' ').nth(1).unwrap();
    assert!(
        id.len() == 36 && id.chars().filter(|c| *c == '-').count() == 4,
        "{id} is a UUID"
    );
}

#[test]
fn a_submission_lost_twice_is_5_and_a_refused_one_is_not_repeated() {
    let gone = || Err(Status::unavailable("gone"));
    let cardboard = Cardboard {
        submit: vec![gone(), gone(), accepted(false)].into_answers(),
        ..Cardboard::default()
    };
    let (code, _, error, heard) = submit(cardboard, &[]);
    assert_eq!((code, heard.len()), (5, 2), "{error}");
    let exists = "job default/digits exists already with other content: spec.args differ; delete it first or use another name";
    let cardboard = Cardboard {
        submit: vec![Err(Status::already_exists(exists)), accepted(false)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, error, heard) = submit(cardboard, &[]);
    assert_eq!(
        (code, out.as_str(), error, heard.len()),
        (1, "", format!("error: {exists}\n"), 1)
    );
}

#[test]
fn a_dry_run_on_the_server_asks_only() {
    let cardboard = Cardboard {
        submit: vec![accepted(false)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, _, heard) = submit(cardboard, &["--dry-run=server"]);
    assert_eq!(
        (code, out.as_str()),
        (
            0,
            "job/digits is valid (checked by the coordinator, not submitted)\n"
        )
    );
    assert!(heard[0].ends_with(" true"));
}

#[test]
fn waiting_ends_with_the_job_s_end() {
    for (last, args, code, says) in [
        (
            job(JobPhase::Succeeded, "Completed"),
            &["--wait"][..],
            0,
            "job/digits: Succeeded, 3 of 3 nodes running, generation 0 (Completed)",
        ),
        (
            job(JobPhase::Failed, "RestartBudgetSpent"),
            &["--wait"],
            3,
            "error: job/digits failed: RestartBudgetSpent",
        ),
        (
            job(JobPhase::Cancelled, "ByUser"),
            &["--wait"],
            6,
            "error: job/digits was cancelled: ByUser",
        ),
        (
            failed_with("exit code 77"),
            &["--wait"],
            3,
            "error: job/digits failed",
        ),
        (
            failed_with("exit code 77"),
            &["--wait", "--mirror-exit-code"],
            77,
            "error: job/digits failed",
        ),
        (
            failed_with("signal 9 (SIGKILL)"),
            &["--wait", "--mirror-exit-code"],
            137,
            "error: job/digits failed",
        ),
    ] {
        let watch = vec![
            seen(JobPhase::Pending, "Submitted"),
            Ok(WatchJobsResponse {
                job: Some(last),
                deleted: false,
            }),
        ];
        let cardboard = Cardboard {
            submit: vec![accepted(false)].into_answers(),
            watch: vec![Ok(watch)].into_answers(),
            ..Cardboard::default()
        };
        let (got, out, error, _) = submit(cardboard, args);
        assert_eq!(
            (got, out.as_str()),
            (code, "job/digits submitted\n"),
            "{error}"
        );
        assert!(
            error.contains("job/digits: Pending, 3 of 3 nodes running, generation 0 (Submitted)\n")
                && error.contains(says),
            "{error}"
        );
    }
}

#[test]
fn waiting_goes_on_while_the_coordinator_restarts() {
    let first = vec![
        seen(JobPhase::Running, "Training"),
        Err(Status::unavailable("shutting down")),
    ];
    let second = vec![
        seen(JobPhase::Running, "Training"),
        seen(JobPhase::Succeeded, "Completed"),
    ];
    let cardboard = Cardboard {
        submit: vec![accepted(false)].into_answers(),
        watch: vec![Ok(first), Ok(second)].into_answers(),
        ..Cardboard::default()
    };
    let (code, _, error, _) = submit(cardboard, &["--wait"]);
    assert_eq!(code, 0, "{error}");
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines[1..3],
        [
            "the coordinator is not reachable; waiting for it to come back (the job does not need it)",
            "the coordinator is back"
        ]
    );
    assert_eq!(
        error.matches("Running").count(),
        1,
        "what has not changed is not said again: {error}"
    );
}

#[test]
fn waiting_ends_with_the_time() {
    let watch = vec![seen(JobPhase::Running, "Training")];
    let cardboard = Cardboard {
        submit: vec![accepted(false)].into_answers(),
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (code, _, error, _) = submit(cardboard, &["--wait", "--timeout", "200ms"]);
    assert_eq!(code, 4);
    assert!(
        error.ends_with("error: job/digits is not over after 200ms; it goes on\n"),
        "{error}"
    );
}

#[test]
fn a_job_deleted_under_a_waiter_is_a_failed_request() {
    let watch = vec![Ok(WatchJobsResponse {
        job: Some(Job::default()),
        deleted: true,
    })];
    let cardboard = Cardboard {
        submit: vec![accepted(false)].into_answers(),
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (code, _, error, _) = submit(cardboard, &["--wait"]);
    assert_eq!(
        (code, error.as_str()),
        (1, "error: job/digits was deleted\n")
    );
}

#[test]
fn a_cancel_that_waits_ends_with_the_job() {
    let watch = vec![
        seen(JobPhase::Stopping, "Cancelled"),
        seen(JobPhase::Cancelled, "Cancelled"),
    ];
    let answers = || vec![Ok(CancelResponse::default())].into_answers();
    let cardboard = Cardboard {
        cancel: answers(),
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, error, _) = run(cardboard, &["cancel", "digits", "--wait"]);
    assert_eq!(
        (code, out.as_str()),
        (0, "job/digits cancelled\n"),
        "{error}"
    );
    assert!(
        error.contains("Stopping") && error.ends_with("generation 0 (Cancelled)\n"),
        "{error}"
    );
    let stays = vec![seen(JobPhase::Stopping, "Cancelled")];
    let cardboard = Cardboard {
        cancel: answers(),
        watch: vec![Ok(stays)].into_answers(),
        ..Cardboard::default()
    };
    let (code, _, error, _) = run(
        cardboard,
        &["cancel", "digits", "--wait", "--timeout", "200ms"],
    );
    assert_eq!(code, 4);
    assert!(
        error.ends_with("error: job/digits is still stopping after 200ms\n"),
        "{error}"
    );
}

#[test]
fn a_scale_that_waits_ends_when_so_many_nodes_train() {
    let with = |nodes, running| {
        let mut job = job(JobPhase::Running, "Running");
        let status = job.status.as_mut().unwrap();
        (status.nodes, status.nodes_running, status.replicas) = (nodes, running, 4);
        Ok(WatchJobsResponse {
            job: Some(job),
            deleted: false,
        })
    };
    let answers = || vec![Ok(ScaleResponse::default())].into_answers();
    let watch = vec![with(3, 3), with(4, 3), with(4, 4)];
    let cardboard = Cardboard {
        scale: answers(),
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, error, _) = run(cardboard, &["scale", "digits", "--nodes", "4", "--wait"]);
    assert_eq!(
        (code, out.as_str()),
        (0, "job/digits scaled to 4 nodes\n"),
        "{error}"
    );
    let watch = vec![with(4, 3), seen(JobPhase::Failed, "RestartBudgetSpent")];
    let cardboard = Cardboard {
        scale: answers(),
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (code, _, error, _) = run(cardboard, &["scale", "digits", "--nodes", "4", "--wait"]);
    assert_eq!(code, 3, "{error}");
}

#[test]
fn jobs_that_are_over_are_listed_last() {
    let named = |name: &str, phase| {
        let mut job = job(phase, "");
        job.r#ref.as_mut().unwrap().name = name.into();
        job
    };
    let jobs = vec![
        named("a", JobPhase::Failed),
        named("b", JobPhase::Running),
        named("c", JobPhase::Succeeded),
        named("d", JobPhase::Pending),
    ];
    let list = ListJobsResponse {
        jobs,
        next_page_token: String::new(),
    };
    let cardboard = Cardboard {
        list: vec![Ok(list)].into_answers(),
        ..Cardboard::default()
    };
    let (_, out, _, _) = run(cardboard, &["get", "jobs", "-o", "name"]);
    assert_eq!(out, "job/b\njob/d\njob/a\njob/c\n");
}

#[test]
fn interrupted_is_130_and_the_job_goes_on() {
    let watch = vec![seen(JobPhase::Running, "Training")];
    let cardboard = Cardboard {
        submit: vec![accepted(false)].into_answers(),
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (_runtime, _, address) = serve(cardboard);
    let mut command = muster(address, &["run", "--wait", "--name", "digits", "t.py"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("Running"), "{line}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    line.clear();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "error: interrupted; what was submitted goes on\n");
}

#[test]
fn wait_answers_for_the_state_that_was_asked_for() {
    let reached = |job| Ok(WaitResponse { job: Some(job) });
    let not_found = || Err(Status::not_found("job default/digits not found"));
    for (answers, args, code, says) in [
        (
            vec![reached(job(JobPhase::Succeeded, ""))],
            &["digits"][..],
            0,
            "job/digits complete\n",
        ),
        (
            vec![reached(job(JobPhase::Running, ""))],
            &["job/digits", "--for=running"],
            0,
            "job/digits running\n",
        ),
        (
            vec![reached(failed_with("exit code 9"))],
            &["digits"],
            3,
            "job/digits failed",
        ),
        (
            vec![reached(failed_with("exit code 9"))],
            &["digits", "--mirror-exit-code"],
            9,
            "job/digits failed",
        ),
        (
            vec![reached(job(JobPhase::Failed, ""))],
            &["digits", "--for=running"],
            3,
            "job/digits failed",
        ),
        (
            vec![reached(job(JobPhase::Cancelled, ""))],
            &["digits"],
            6,
            "job/digits was cancelled",
        ),
        (
            vec![not_found()],
            &["digits"],
            1,
            "error: job default/digits not found; `muster get jobs -A` lists the jobs\n",
        ),
        (
            vec![not_found()],
            &["digits", "--for=deleted"],
            0,
            "job/digits deleted\n",
        ),
        (
            vec![
                Err(Status::deadline_exceeded("later")),
                reached(job(JobPhase::Succeeded, "")),
            ],
            &["digits"],
            0,
            "job/digits complete\n",
        ),
        (
            vec![
                Err(Status::unavailable("restart")),
                reached(job(JobPhase::Succeeded, "")),
            ],
            &["digits"],
            0,
            "job/digits complete\n",
        ),
        (
            vec![Err(Status::deadline_exceeded("later"))],
            &["digits", "--timeout", "0s"],
            4,
            "error: job/digits is not complete after 0s\n",
        ),
    ] {
        let (got, out, error, _) = run(
            Cardboard {
                wait: answers.into_answers(),
                ..Cardboard::default()
            },
            &[&["wait"], args].concat(),
        );
        assert_eq!(got, code, "{args:?}: {error}");
        assert!(
            format!("{out}{error}").contains(says),
            "{args:?}: {out}{error}"
        );
    }
}

#[test]
fn refusals_have_their_codes() {
    for (args, code, says) in [
        (&["cancel", "x"][..], 5, " refuses: not yours\n"),
        (
            &["delete", "digits"],
            1,
            "error: job default/digits is Running; cancel it first\n",
        ),
        (&["explain", "x"], 1, "-A` lists the jobs\n"),
        (
            &["explain", "x", "--env"],
            1,
            "error: job default/x has no generation yet\n",
        ),
        (
            &["--request-timeout", "100ms", "scale", "x", "--nodes", "3"],
            4,
            " did not answer within --request-timeout\n",
        ),
        (
            &["get", "events"],
            1,
            " does not know this request; is it an older version?\n",
        ),
    ] {
        let (got, out, error, _) = run(Cardboard::default(), args);
        assert_eq!((got, out.as_str()), (code, ""), "{args:?}: {error}");
        assert!(error.ends_with(says), "{args:?}: {error}");
    }
}

#[test]
fn an_empty_list_is_success_with_a_word_on_stderr() {
    let empty = || Cardboard {
        list: vec![Ok(ListJobsResponse::default())].into_answers(),
        ..Cardboard::default()
    };
    let said = |args: &[&str]| {
        let (code, out, error, _) = run(empty(), args);
        (code, out, error)
    };
    assert_eq!(
        said(&["get", "jobs"]),
        (
            0,
            String::new(),
            "No jobs found in namespace default.\n".into()
        )
    );
    assert_eq!(
        said(&["get", "mj", "-A"]),
        (0, String::new(), "No jobs found.\n".into())
    );
    assert_eq!(
        said(&["get", "jobs", "-q"]),
        (0, String::new(), String::new())
    );
    let list = "{\n  \"apiVersion\": \"muster.dev/v1alpha1\",\n  \"kind\": \"List\",\n  \"items\": []\n}\n";
    assert_eq!(
        said(&["get", "jobs", "-o", "json"]),
        (0, list.into(), String::new())
    );
}

#[test]
fn all_pages_of_a_list_are_read() {
    let page = |token: &str| ListJobsResponse {
        jobs: vec![job(JobPhase::Running, "Training")],
        next_page_token: token.into(),
    };
    let cardboard = Cardboard {
        list: vec![Ok(page("next")), Ok(page(""))].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, _, heard) = run(cardboard, &["get", "jobs", "-A", "-o", "name"]);
    assert_eq!((code, out.as_str()), (0, "job/digits\njob/digits\n"));
    assert_eq!(heard, ["list \"\" \"\"", "list \"\" \"next\""]);
}

#[test]
fn a_watch_prints_changes_and_not_every_step() {
    let step = |step| {
        let mut job = job(JobPhase::Running, "Training");
        job.status.as_mut().unwrap().last_step = Some(step);
        Ok(WatchJobsResponse {
            job: Some(job),
            deleted: false,
        })
    };
    let watch = vec![
        step(1),
        step(2),
        step(3),
        seen(JobPhase::Succeeded, "Completed"),
        Err(Status::permission_denied("end of test")),
    ];
    let cardboard = Cardboard {
        watch: vec![Ok(watch)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, _, _) = run(cardboard, &["get", "jobs", "-w", "--no-headers"]);
    assert_eq!(code, 5);
    let states: Vec<(&str, &str)> = out
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|cells| {
            if cells[1] == "Running" {
                ("Running", cells[5])
            } else {
                ("Succeeded", cells[5])
            }
        })
        .map(|(state, step)| (state, if step == "1" { "1" } else { "-" }))
        .collect();
    assert_eq!(states, [("Running", "1"), ("Succeeded", "-")], "{out}");
}

#[test]
fn followed_logs_go_on_after_a_lost_connection_without_repeating() {
    let part = |lines: &[&str], at: u64, notice: &str| {
        Ok(LogsResponse {
            lines: lines.iter().map(|line| (*line).into()).collect(),
            generation: 1,
            at,
            notice: notice.into(),
            ..LogsResponse::default()
        })
    };
    let first = vec![
        part(&["T1 stdout F one", "T2 stdout F two"], 32, ""),
        Err(Status::unavailable("gone")),
    ];
    let second = vec![part(
        &["T3 stdout F three"],
        50,
        "node-2 is not connected: its ranks are missing",
    )];
    let cardboard = Cardboard {
        logs: vec![Ok(first), Ok(second)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, error, heard) = run(
        cardboard,
        &[
            "logs",
            "digits",
            "-f",
            "--rank",
            "0",
            "--tail",
            "2",
            "--prefix",
            "--timestamps",
        ],
    );
    assert_eq!(
        (code, out.as_str()),
        (0, "T1 [rank 0] one\nT2 [rank 0] two\nT3 [rank 0] three\n"),
        "{error}"
    );
    assert!(
        error.contains("node-2 is not connected: its ranks are missing\n"),
        "{error}"
    );
    assert_eq!(
        heard,
        [
            "logs rank Some(0) tail Some(2) follow true from []",
            "logs rank Some(0) tail None follow true from [32]"
        ]
    );
    let cardboard = Cardboard {
        logs: vec![Ok(vec![Err(Status::unavailable("gone"))])].into_answers(),
        ..Cardboard::default()
    };
    assert_eq!(
        run(cardboard, &["logs", "digits"]).0,
        5,
        "without -f nobody waits"
    );
}

#[test]
fn run_follow_prints_the_ranks_and_ends_as_the_job_does() {
    let line = LogsResponse {
        rank: 1,
        generation: 1,
        lines: vec!["T1 stdout F hello".into()],
        ..LogsResponse::default()
    };
    let over = vec![Ok(WatchJobsResponse {
        job: Some(failed_with("exit code 5")),
        deleted: false,
    })];
    let cardboard = Cardboard {
        submit: vec![accepted(false)].into_answers(),
        logs: vec![Ok(vec![Ok(line)])].into_answers(),
        watch: vec![Ok(over)].into_answers(),
        ..Cardboard::default()
    };
    let (code, out, _, _) = run(cardboard, &["run", "--follow", "--name", "digits", "t.py"]);
    assert_eq!(
        (code, out.as_str()),
        (3, "job/digits submitted\n[rank 1] hello\n")
    );
}

trait IntoAnswers<T> {
    fn into_answers(self) -> std::sync::Mutex<std::collections::VecDeque<T>>;
}

impl<T> IntoAnswers<T> for Vec<T> {
    fn into_answers(self) -> std::sync::Mutex<std::collections::VecDeque<T>> {
        std::sync::Mutex::new(self.into())
    }
}
