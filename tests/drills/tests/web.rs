//! `muster web` and `muster report`: a job whose rank was killed, told to a browser and in one file, and to nobody else.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use muster_drills::{Cluster, kill, pids, program, until};
use rustix::process::Signal;
use serde_json::Value;

/// `muster web`, until it is dropped.
struct Web {
    child: Child,
    link: String,
    host: String,
}

impl Web {
    fn start(cluster: &Cluster, args: &[&str]) -> Self {
        let out = cluster.path("web.out");
        let child = Command::new(program("muster"))
            .arg("web")
            .args(args)
            .env("MUSTER_LOCAL_DIR", &cluster.dir)
            .env("MUSTER_CONFIG", cluster.path("config.yaml"))
            .env_remove("MUSTER_SERVER")
            .stdout(File::create(&out).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let link = until(|| {
            let printed = fs::read_to_string(&out).unwrap();
            printed.strip_suffix('\n').map(str::to_owned)
        });
        let link = link.unwrap();
        let host = link.strip_prefix("http://").unwrap().split('/').next();
        Self {
            child,
            host: host.unwrap().to_owned(),
            link,
        }
    }

    /// The status, head and body that the port answers.
    fn ask(&self, method: &str, path: &str, host: &str, cookie: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    /// Opens the link as a browser does, and returns the cookie and the place to which it leads.
    fn open(&self, link: &str) -> (String, String) {
        let path = link.split_once(&self.host).unwrap().1;
        let (status, head, _) = self.ask("GET", path, &self.host, "");
        assert_eq!(status, 303, "{head}");
        let of = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let cookie = of("set-cookie:");
        (
            cookie.split(';').next().unwrap().to_owned(),
            of("location:"),
        )
    }

    fn page(&self, path: &str, cookie: &str) -> String {
        let (status, head, body) = self.ask("GET", path, &self.host, cookie);
        assert_eq!(status, 200, "{path}: {body}");
        assert!(head.contains("content-security-policy: default-src 'none'"));
        body
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All pages of a cluster with this job.
const PATHS: [&str; 16] = [
    "/",
    "/jobs.json",
    "/jobs/default/seen",
    "/jobs/default/seen.json",
    "/jobs/default/seen/logs",
    "/jobs/default/seen/report.html",
    "/nodes",
    "/nodes.json",
    "/nodes/node-1",
    "/nodes/node-1.json",
    "/queue",
    "/queue.json",
    "/queues.json",
    "/goodput",
    "/events",
    "/events.json",
];

#[test]
fn a_browser_sees_what_happened_and_nobody_else_does() {
    let cluster = Cluster::up(2);
    // It must not end before its last page was looked at.
    cluster.train("seen", "2", &["--steps", "100000"]);
    let status = cluster.trains("seen", 1, 2);
    kill(pids(&status)[1], Signal::KILL);
    cluster.trains("seen", 2, 2);

    let web = Web::start(&cluster, &["seen"]);
    for path in PATHS {
        let (status, _, body) = web.ask("GET", path, &web.host, "muster-1=guess");
        assert_eq!(status, 403, "{path}");
        assert!(!body.contains("seen"), "{path}: {body}");
    }
    let (cookie, place) = web.open(&web.link);
    assert_eq!(place, "/jobs/default/seen");
    let again = web.link.split_once(&web.host).unwrap().1;
    assert_eq!(
        web.ask("GET", again, &web.host, "").0,
        403,
        "another browser, the same link"
    );
    for path in PATHS {
        assert!(!web.page(path, &cookie).is_empty());
        let (status, ..) = web.ask("GET", path, "evil.example", &cookie);
        assert_eq!(status, 403, "a name that was made to lead here: {path}");
        let (status, ..) = web.ask("POST", path, &web.host, &cookie);
        assert_eq!(status, 405, "{path}");
    }
    let elsewhere = format!("{again}&to=//evil.example");
    let (status, head, _) = web.ask("GET", &elsewhere, &web.host, &cookie);
    assert!(status == 303 && head.contains("location: /\r\n"), "{head}");

    // The page, its JSON and the file tell the incident as `explain` does.
    let explained = cluster.json(["explain", "seen"]);
    let incident = &explained["incidents"][1];
    let culprit = incident["culprit"].as_str().unwrap();
    let page = web.page("/jobs/default/seen", &cookie);
    assert!(
        page.contains("#2 WorkerKilled") && page.contains(culprit),
        "{page}"
    );
    let told: Value = serde_json::from_str(&web.page("/jobs/default/seen.json", &cookie)).unwrap();
    assert_eq!(told["incidents"][1]["culprit"], incident["culprit"]);
    let file = cluster.muster(["report", "seen"]);
    assert!(file.contains("#2 WorkerKilled") && file.contains(culprit));
    assert!(!file.contains("<script") && !file.contains("<link"));
    assert!(web.page("/nodes", &cookie).contains("default/seen"));
    assert!(web.page("/events", &cookie).contains("WorldFormed"));
    assert!(
        web.page("/jobs/default/seen/logs", &cookie)
            .contains("step=")
    );
    assert!(web.page("/goodput", &cookie).contains("WorkerKilled"));

    let ranks = cluster.muster(["top", "ranks", "seen"]);
    assert!(
        ranks.contains("BEHIND") && ranks.contains("node-2"),
        "{ranks}"
    );
    assert!(cluster.muster(["top", "jobs"]).contains("seen"));
    assert!(cluster.muster(["top"]).contains("node-1"));

    let (status, _, body) = web.ask("GET", "/jobs/default/never", &web.host, &cookie);
    assert!(status == 404 && body.contains("never"), "{body}");
    cluster.muster(["local", "kill-coordinator"]);
    // A page may be a second old.
    let gone = until(|| {
        let (status, _, body) = web.ask("GET", "/", &web.host, &cookie);
        (status == 502 && body.contains("No answer")).then_some(())
    });
    assert!(gone.is_some(), "the page says that the coordinator is gone");
    cluster.muster(["local", "start-coordinator"]);
    let back = until(|| (web.ask("GET", "/", &web.host, &cookie).0 == 200).then_some(()));
    assert!(back.is_some(), "the page comes back with the coordinator");
}

/// Queues of which one has the jobs of the test.
const QUEUES: &str = "
queues:
- name: research
  quota: 12
  queues:
  - name: vision
    quota: 4
    namespaces: [default]
  - name: speech
    quota: 8
    namespaces: [speech]
";

#[test]
fn a_browser_sees_who_waits_behind_whom_and_whose_quota_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queues.yaml");
    fs::write(&file, QUEUES).unwrap();
    let cluster = Cluster::up_with(
        1,
        &["--hardware", "8xh100"],
        &[("MUSTER_QUEUES", file.to_str().unwrap())],
    );
    let run = |name: &str, flags: &[&str]| {
        let flags = [&["--gpus-per-node", "8"], flags].concat();
        cluster.train_with(name, "1", &flags, &["--steps", "1000000"]);
    };
    run("holds", &["--active-deadline", "1h"]);
    cluster.trains("holds", 1, 1);
    run("second", &[]);
    run("first", &["--priority", "5"]);
    run("later", &["--after", "first"]);
    run("held", &[]);
    cluster.muster(["suspend", "held"]);
    for name in ["second", "first"] {
        cluster.wait(name, "waiting", |status| !status["message"].is_null());
    }

    let web = Web::start(&cluster, &[]);
    let (cookie, _) = web.open(&web.link);
    let json = |path: &str| -> Value { serde_json::from_str(&web.page(path, &cookie)).unwrap() };
    let queue = until(|| {
        let (shown, printed) = (json("/queue.json"), cluster.json(["queue", "-A"]));
        (shown == printed && !shown["items"][1]["start"].is_null()).then_some(shown)
    });
    let queue = queue.expect("the page and the command line say the same");
    let names: Vec<&Value> = { queue["items"].as_array().unwrap().iter() }
        .map(|job| &job["name"])
        .collect();
    assert_eq!(names, ["first", "second", "later"], "{queue:#}");
    let start = &queue["items"][0]["start"];
    let basis = start["basis"].as_str().unwrap();
    assert!(
        basis.contains("holds") && start["at"].is_string(),
        "{start:#}"
    );
    assert_eq!(json("/queues.json"), cluster.json(["get", "queues"]));

    let page = web.page("/queue", &cookie);
    let place = |text: &str| {
        let at = page.find(text);
        at.unwrap_or_else(|| panic!("no {text} in {page}"))
    };
    let line = |name: &str| place(&format!("/jobs/default/{name}\"><span"));
    let order = [
        line("first"),
        line("second"),
        place("id=\"not-eligible\""),
        line("later"),
        place("id=\"held-back\""),
        line("held"),
        place("aria-label=\"8 of 12 GPUs held, 0 borrowed\""),
        place("aria-label=\"8 of 4 GPUs held, 4 borrowed\""),
        place("aria-label=\"0 of 8 GPUs held, 0 borrowed\""),
    ];
    assert!(order.is_sorted(), "{order:?} {page}");
    assert!(page.contains(basis) && page.contains("in 59m"), "{page}");
    assert!(!page.contains("/jobs/default/holds\"><span"));
    for path in ["/", "/jobs/default/first"] {
        let page = web.page(path, &cookie);
        assert!(page.contains("href=\"/queue?q=default%2Ffirst\""), "{page}");
    }
    let found = web.page("/queue?q=default%2Fsecond", &cookie);
    assert!(found.contains("<td class=\"number\">2</td>") && !found.contains("id=\"held-back\""));
    let page = web.page("/jobs/default/holds", &cookie);
    assert!(!page.contains("/queue?q="), "it does not wait");
}
