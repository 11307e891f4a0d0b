//! A real job fails by its script, and a webhook hears of it: which rank, what for, and what it printed last. So does whom the
//! job names, by mail.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use muster_drills::{Cluster, python};
use serde_json::{Value, json};

const SCRIPT: &str = "
import os, sys
import torch.distributed as dist
dist.init_process_group('gloo')
print('step 1', flush=True)
if dist.get_rank() == 1:
    open('/no/such/shard-' + os.environ['SHARD_KEY'])
dist.barrier()
";

/// Far longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(180);

/// Takes requests until the test ends. A thread that waits for another request ends with the process.
fn receiver() -> (u16, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (out, got) = sync_channel(16);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if line.trim_end().is_empty() {
                    break;
                }
                if let Some(text) = line.strip_prefix("content-length: ") {
                    length = text.trim_end().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap();
            if out.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (port, got)
}

/// A mail: to whom it is, and its text.
type Mail = (Vec<String>, String);

/// Takes mail until the test ends.
fn postbox() -> (u16, Receiver<Mail>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (out, got) = sync_channel(16);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            // Who hangs up within a mail has not sent it.
            if let Some(mail) = take(&mut stream)
                && out.send(mail).is_err()
            {
                return;
            }
        }
    });
    (port, got)
}

/// One connection. `None`: it ended before there was a mail.
fn take(stream: &mut BufReader<TcpStream>) -> Option<Mail> {
    let say = |stream: &mut BufReader<TcpStream>, text: &str| {
        let line = format!("{text}\r\n");
        stream.get_mut().write_all(line.as_bytes()).ok()
    };
    let hear = |stream: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        let read = stream.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim_end().to_owned())
    };
    say(stream, "220 drill")?;
    let mut to = Vec::new();
    loop {
        let command = hear(stream)?;
        if let Some(address) = command.strip_prefix("RCPT TO:") {
            to.push(address.trim_matches(['<', '>']).to_owned());
        }
        if command == "DATA" {
            break;
        }
        say(stream, "250 ok")?;
    }
    say(stream, "354 go on")?;
    let mut text = String::new();
    loop {
        match hear(stream)?.as_str() {
            "." => break,
            line => text.push_str(&format!("{line}\n")),
        }
    }
    say(stream, "250 taken")?;
    Some((to, text))
}

#[test]
fn a_script_that_fails_is_told_once_with_rank_cause_and_last_line() {
    let folder = tempfile::tempdir().unwrap();
    let (port, got) = receiver();
    let (mail_port, mail) = postbox();
    let notify = folder.path().join("notify.yaml");
    let text = format!(
        "receivers:
- {{ name: hook, webhook: {{ url: 'http://127.0.0.1:{port}/' }} }}
- {{ name: mail, mail: {{ server: 'smtp://127.0.0.1:{mail_port}', startTls: 'off', from: muster@example.org, to: [ops@example.org] }} }}
rules: [{{ on: [jobFailed], receivers: [hook] }}]
jobs: {{ mail: {{ by: mail, to: ['*@example.org'] }} }}
"
    );
    fs::write(&notify, text).unwrap();
    let cluster = Cluster::up_with(2, &[], &[("MUSTER_NOTIFY", notify.to_str().unwrap())]);
    cluster.muster(["notify", "test", "hook"]);
    assert_eq!(got.recv_timeout(PATIENCE).unwrap()["kind"], "test");

    let script = cluster.path("fails.py");
    fs::write(&script, SCRIPT).unwrap();
    let spec = json!({
        "replicas": 2, "procPerNode": 1, "gpusPerNode": 0, "command": [python()], "args": [script], "stopGracePeriod": "0s",
        "restartPolicy": {"maxRestarts": 0}, "notify": [{"kinds": ["jobStarted", "jobFailed"], "mail": ["ann@example.org"]}], "env": [{"name": "SHARD_KEY", "value": "topsecret"}],
    });
    let document = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "shards"}, "spec": spec});
    let file = cluster.path("job.json");
    fs::write(&file, document.to_string()).unwrap();
    cluster.muster(["submit", "-f", file.to_str().unwrap()]);
    let message = got.recv_timeout(PATIENCE).unwrap();
    let notice = &message["notices"][0];
    assert_eq!(
        (
            &message["kind"],
            &message["count"],
            &notice["job"],
            &notice["cause"]
        ),
        (
            &json!("jobFailed"),
            &json!(1),
            &json!("shards"),
            &json!("WorkerFailed")
        ),
        "{message:#}"
    );
    let culprit = notice["culprit"].as_str().unwrap();
    assert!(culprit.starts_with("rank 1 on "), "{message:#}");
    let error = notice["error"].as_str().unwrap();
    assert!(error.starts_with("FileNotFoundError: "), "{message:#}");
    assert!(error.contains("/no/such/shard-***"), "{message:#}");
    assert!(!message.to_string().contains("topsecret"), "{message:#}");
    // `muster notify list` says so too, and nothing comes twice.
    let list = cluster.json(["notify", "list"]);
    let listed = &list["items"]
        .as_array()
        .unwrap_or_else(|| list.as_array().unwrap())[0];
    assert_eq!(
        (&listed["waiting"], &listed["delivered"]),
        (&json!(0), &json!(2)),
        "{list:#}"
    );
    assert!(got.try_recv().is_err());
    mailed(&mail);
    drawn(&cluster);
}

/// Whom the job names hears of its start and its end, each once, and no secret.
fn mailed(mail: &Receiver<Mail>) {
    let mails: Vec<Mail> = (0..2)
        .map(|_| mail.recv_timeout(PATIENCE).unwrap())
        .collect();
    let one = |part: &str| {
        let mut with = mails.iter().filter(|(_, text)| text.contains(part));
        let (to, text) = with.next().unwrap_or_else(|| panic!("{part}: {mails:?}"));
        assert_eq!(to, &["ann@example.org"]);
        assert!(with.next().is_none(), "{mails:?}");
        assert!(text.contains("\nTo: ann@example.org\n"), "{text}");
        text.as_str()
    };
    one("Subject: default/shards has started: world 2 on ");
    let end = one("\n  culprit: rank 1 on ");
    assert!(end.contains("/no/such/shard-***"), "{end}");
    assert!(end.contains("the job asks for it (spec.notify)"), "{end}");
    assert!(!end.contains("topsecret"), "{end}");
    assert!(mail.try_recv().is_err());
}

/// The job's life as a trace: its two nodes were in one generation, which ended with it.
fn drawn(cluster: &Cluster) {
    let trace = cluster.muster(["report", "shards", "--trace"]);
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let bars = |name: &str| {
        let found = events.iter();
        found
            .filter(|event| event["ph"] == "X" && event["name"] == name)
            .count()
    };
    assert_eq!(
        (bars("generation 1"), bars("training"), bars("stopping")),
        (2, 1, 1),
        "{trace:#}"
    );
    let failed = |event: &&Value| event["ph"] == "i" && event["args"]["cause"] == "WorkerFailed";
    let failed = events.iter().find(failed).unwrap();
    let culprit = failed["args"]["culprit"].as_str().unwrap();
    assert!(culprit.starts_with("rank 1 on "), "{failed:#}");
    let sizes = events.iter().filter(|event| event["ph"] == "C");
    let sizes: Vec<&Value> = sizes.map(|event| &event["args"]["ranks"]).collect();
    assert_eq!(sizes, [&json!(0), &json!(2), &json!(0)], "{trace:#}");
    assert_eq!(trace["otherData"].get("notes"), None, "{trace:#}");
}
