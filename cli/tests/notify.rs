//! What the command line shows of those who are told of what happens.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod coordinator;

use std::sync::Mutex;

use coordinator::{Cardboard, muster, read, serve};
use muster_proto::v1::{
    Job, ListOpenResponse, ListReceiversResponse, Open, Receiver, SubmitResponse,
    TestReceiverResponse,
};

fn receivers() -> ListReceiversResponse {
    let chat = Receiver {
        name: "chat".into(),
        form: "slack".into(),
        address: "https://chat.example.com".into(),
        kinds: vec!["jobFailed".into(), "jobStalled".into()],
        waiting: 2,
        oldest_unix_us: 1_795_260_928_000_000,
        dropped: 3,
        failed: 7,
        last_error: "HTTP 500: no".into(),
        last_error_unix_us: 1_795_260_929_000_000,
        ..Receiver::default()
    };
    let pager = Receiver {
        name: "pager".into(),
        form: "alertmanager".into(),
        delivered: 4,
        open_to_jobs: vec!["pager".into(), "*@example.org".into()],
        last_error_of_jobs: "HTTP 429".into(),
        ..Receiver::default()
    };
    ListReceiversResponse {
        receivers: vec![chat, pager],
    }
}

#[test]
fn receivers_are_listed_with_what_waits_and_why() {
    let none = ListReceiversResponse::default();
    let cardboard = Cardboard {
        receivers: Mutex::new(vec![Ok(receivers()), Ok(receivers()), Ok(none)].into()),
        ..Cardboard::default()
    };
    let (_runtime, _, address) = serve(cardboard);
    let run = |args: &[&str]| read(muster(address, args).output().unwrap());
    let (code, out, _) = run(&["notify", "list", "-o", "wide"]);
    let lines: Vec<Vec<&str>> = out
        .lines()
        .map(|line| line.split("   ").map(str::trim).collect())
        .collect();
    let cells = |line: usize| -> Vec<&str> {
        let cells = lines[line].iter().copied();
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(code, 0);
    assert_eq!(cells(1)[..4], ["chat", "slack", "Failing", "2"]);
    let last = [
        "3",
        "https://chat.example.com",
        "jobFailed,jobStalled",
        "HTTP 500: no",
    ];
    assert!(cells(1).ends_with(&last), "{out}");
    assert_eq!(
        cells(2)[..8],
        [
            "pager",
            "alertmanager",
            "Ok",
            "0",
            "-",
            "4",
            "0",
            "by name, *@example.org"
        ]
    );
    // What jobs have asked for does not make the receiver fail.
    assert!(cells(2).ends_with(&["for jobs: HTTP 429"]), "{out}");
    let (_, out, _) = run(&["notify", "list", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(list["items"][0]["lastError"], "HTTP 500: no");
    assert_eq!(list["items"][1]["lastErrorOfJobs"], "HTTP 429");
    assert_eq!(list["items"][1]["oldest"], serde_json::Value::Null);
    let (code, _, told) = run(&["notify", "list"]);
    assert!(
        code == 0 && told.contains("started without --notify"),
        "{told}"
    );
}

#[test]
fn who_is_no_operator_sees_what_a_job_may_name_and_nothing_else() {
    let open = |name: &str, form: &str| Open {
        name: name.into(),
        form: form.into(),
    };
    let some = ListOpenResponse {
        open: vec![open("team-a", "slack"), open("*@example.org", "mail")],
    };
    let cardboard = Cardboard {
        open: Mutex::new(vec![Ok(some), Ok(ListOpenResponse::default())].into()),
        forbidden: vec!["NotificationService/ListReceivers"],
        ..Cardboard::default()
    };
    let (_runtime, cardboard, address) = serve(cardboard);
    let run = || {
        read(
            muster(address, &["notify", "list", "-n", "team-a"])
                .output()
                .unwrap(),
        )
    };
    let (code, out, _) = run();
    let must = "OPEN TO JOBS    FORM\nteam-a          slack\n*@example.org   mail\n";
    assert_eq!((code, out.as_str()), (0, must));
    let (code, _, told) = run();
    assert!(
        code == 0 && told.contains("has opened nothing to jobs"),
        "{told}"
    );
    assert_eq!(
        *cardboard.heard.lock().unwrap(),
        ["open team-a", "open team-a"]
    );
}

#[test]
fn a_coordinator_that_does_not_know_the_field_gets_no_job() {
    let older = SubmitResponse {
        job: Some(Job::default()),
        ..SubmitResponse::default()
    };
    let cardboard = Cardboard {
        submit: Mutex::new(vec![Ok(older)].into()),
        ..Cardboard::default()
    };
    let (_runtime, cardboard, address) = serve(cardboard);
    let run = ["run", "--notify", "chat", "train.py"];
    let (code, _, told) = read(muster(address, &run).output().unwrap());
    assert!(
        code != 0 && told.contains("this coordinator is older than notify"),
        "{told}"
    );
    let heard = cardboard.heard.lock().unwrap();
    assert!(
        heard.len() == 1 && heard[0].ends_with(" true"),
        "it was only asked: {heard:?}"
    );
}

#[test]
fn a_test_that_fails_is_a_failure() {
    let answer = |delivered, answer: &str| {
        Ok(TestReceiverResponse {
            delivered,
            answer: answer.into(),
        })
    };
    let cardboard = Cardboard {
        tried: Mutex::new(vec![answer(true, "HTTP 200: ok"), answer(false, "HTTP 404")].into()),
        ..Cardboard::default()
    };
    let (_runtime, cardboard, address) = serve(cardboard);
    let run = || {
        read(
            muster(address, &["notify", "test", "chat"])
                .output()
                .unwrap(),
        )
    };
    let (code, _, told) = run();
    assert!(
        code == 0 && told.contains("chat has taken the message (HTTP 200: ok)."),
        "{told}"
    );
    let (code, _, told) = run();
    assert!(
        code == 1 && told.contains("chat has not taken the message: HTTP 404"),
        "{told}"
    );
    assert_eq!(*cardboard.heard.lock().unwrap(), ["test chat", "test chat"]);
}
