//! What a browser is told when the coordinator refuses.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[allow(dead_code, reason = "other tests ask for more of it")]
mod coordinator;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Stdio},
    sync::Mutex,
};

use coordinator::{Cardboard, muster, read, serve};
use muster_proto::v1::{
    Job, JobPhase, JobRef, JobStart, JobStatus, ListJobsResponse, ListNodesResponse,
    ListQueuesResponse, Node, NodeState, NodeSums, Queue, StartEstimate, WaitsForRoom,
};
use tonic::Status;

/// `muster web`, until it is dropped.
struct Web {
    child: Child,
    host: String,
    cookie: String,
}

impl Web {
    /// With a browser that was let in.
    fn open(address: SocketAddr) -> Self {
        let mut child = muster(address, &["web", "--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut link = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut link).unwrap();
        let (host, path) = link
            .trim()
            .strip_prefix("http://")
            .unwrap()
            .split_once('/')
            .unwrap();
        let opened = ask(host, &format!("/{path}"), "").to_lowercase();
        let cookie = opened
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        Self {
            child,
            host: host.to_owned(),
            cookie: cookie.unwrap().split(';').next().unwrap().to_owned(),
        }
    }

    fn ask(&self, path: &str) -> String {
        ask(&self.host, path, &self.cookie)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(host: &str, path: &str, cookie: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_refused_list_is_not_allowed_and_a_dead_coordinator_gives_no_answer() {
    let refused = || Status::permission_denied("user/ann has no role, and this needs viewer");
    let broken = Status::resource_exhausted("too much");
    let cardboard = Cardboard {
        list: Mutex::new(vec![Err(refused()), Err(broken), Err(refused())].into()),
        ..Cardboard::default()
    };
    let (_runtime, _, address) = serve(cardboard);
    let web = Web::open(address);
    let page = web.ask("/");
    assert!(
        page.starts_with("HTTP/1.1 403 ") && page.contains("Not allowed"),
        "{page}"
    );
    assert!(page.contains("this needs viewer"), "{page}");
    let page = web.ask("/");
    assert!(
        page.starts_with("HTTP/1.1 502 ") && page.contains("No answer"),
        "{page}"
    );
    // The command line ends with the same code as when the coordinator cannot be reached.
    let (code, _, told) = read(muster(address, &["get", "jobs"]).output().unwrap());
    assert!(
        code == 5 && told.contains("refuses: user/ann has no role"),
        "{told}"
    );
}

/// One job that waits, in the namespace of commands without one.
fn one_waits() -> ListJobsResponse {
    let job = Job {
        r#ref: Some(JobRef {
            namespace: "default".into(),
            name: "waits".into(),
        }),
        status: Some(JobStatus {
            phase: JobPhase::Pending.into(),
            waits_for_room: Some(WaitsForRoom::default()),
            ..JobStatus::default()
        }),
        ..Job::default()
    };
    ListJobsResponse {
        jobs: vec![job],
        ..ListJobsResponse::default()
    }
}

fn tree(with_start: bool) -> ListQueuesResponse {
    let start = JobStart {
        r#ref: Some(JobRef {
            namespace: "default".into(),
            name: "waits".into(),
        }),
        start: Some(StartEstimate {
            basis: "nobody knows when job a/b ends".into(),
            ..StartEstimate::default()
        }),
    };
    ListQueuesResponse {
        queues: vec![Queue {
            name: "research".into(),
            ..Queue::default()
        }],
        starts: vec![start].into_iter().filter(|_| with_start).collect(),
        ..ListQueuesResponse::default()
    }
}

#[test]
fn the_queue_needs_neither_estimates_nor_quotas_and_says_who_refuses_them() {
    let refused = || Status::permission_denied("user/ann may not list musterqueues");
    let often = || Status::resource_exhausted("ann plans too often");
    let jobs = || Ok(one_waits());
    let cardboard = Cardboard {
        list: Mutex::new([jobs(), jobs(), jobs(), jobs(), jobs(), Err(refused())].into()),
        queues: Mutex::new(
            [
                // As it should be: the page, its JSON and the command line.
                Ok(tree(true)),
                Ok(tree(true)),
                Ok(tree(true)),
                // Estimates were asked for too often.
                Err(often()),
                Ok(tree(false)),
                // Nothing of queues is for this person.
                Err(refused()),
                Err(refused()),
                // Their JSON.
                Err(refused()),
                Ok(tree(false)),
                Ok(tree(false)),
            ]
            .into(),
        ),
        ..Cardboard::default()
    };
    let (_runtime, cardboard, address) = serve(cardboard);
    let web = Web::open(address);
    let page = web.ask("/queue");
    assert!(
        page.contains("nobody knows when job a/b ends") && page.contains(">research<"),
        "{page}"
    );
    let body = |answer: String| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    let printed = |args: &[&str]| read(muster(address, args).output().unwrap()).1;
    let told = body(web.ask("/queue.json"));
    assert_eq!(told, printed(&["queue", "-A", "-o", "json"]));
    assert!(told.contains("nobody knows"), "{told}");

    let page = web.ask("/queue?later");
    assert!(
        page.contains("No estimates of starts: ") && page.contains("ann plans too often"),
        "{page}"
    );
    assert!(page.contains(">waits<") && page.contains(">research<"));
    let page = web.ask("/queue?again");
    assert!(page.contains("ann may not list musterqueues"), "{page}");
    assert!(page.contains(">waits<") && !page.contains(">research<"));
    let page = web.ask("/queues.json");
    assert!(page.starts_with("HTTP/1.1 403 "), "{page}");
    let told = body(web.ask("/queues.json"));
    assert_eq!(told, printed(&["get", "queues", "-o", "json"]));
    assert!(told.contains("research"), "{told}");

    let page = web.ask("/queue?refused");
    assert!(
        page.starts_with("HTTP/1.1 403 ") && page.contains("Not allowed"),
        "{page}"
    );
    let heard = cardboard.heard.lock().unwrap();
    let asked = heard.iter().filter(|one| one.starts_with("queues"));
    let starts = asked.map(|one| one.ends_with("true"));
    assert_eq!(
        starts.collect::<Vec<bool>>(),
        [
            true, true, true, true, false, true, false, false, false, false
        ]
    );
}

/// Nodes `n000` and so on, all ready.
fn fleet(numbers: std::ops::Range<u32>) -> Vec<Node> {
    let node = |number| Node {
        name: format!("n{number:03}"),
        state: NodeState::Ready.into(),
        ..Node::default()
    };
    numbers.map(node).collect()
}

fn found(matching: u32, numbers: std::ops::Range<u32>) -> Result<ListNodesResponse, Status> {
    Ok(ListNodesResponse {
        nodes: fleet(numbers),
        sums: Some(NodeSums {
            matching,
            nodes: 300,
            ready: 299,
            ..NodeSums::default()
        }),
        ..ListNodesResponse::default()
    })
}

/// Which nodes the page names, and what it says of the sums.
fn shown(page: &str) -> Vec<&str> {
    let ends = page.split("href=\"/nodes/").skip(1);
    ends.filter_map(|rest| rest.split_once('"'))
        .map(|(name, _)| name)
        .collect()
}

fn heard_of_nodes(cardboard: &Cardboard) -> Vec<String> {
    cardboard.heard.lock().unwrap().drain(..).collect()
}

#[test]
fn the_coordinator_finds_the_nodes_of_a_page() {
    let cardboard = Cardboard {
        nodes: Mutex::new(
            [
                found(250, 0..100),
                // An answer that had to be short, and the rest of the page.
                found(250, 100..160),
                found(250, 160..200),
                // A page after the last, and the last.
                found(250, 0..0),
                found(250, 200..250),
                found(0, 0..0),
                Err(Status::unavailable("it restarts")),
            ]
            .into(),
        ),
        ..Cardboard::default()
    };
    let (_runtime, cardboard, address) = serve(cardboard);
    let web = Web::open(address);
    let heard = |expected: &[&str]| assert_eq!(heard_of_nodes(&cardboard), expected);

    let page = web.ask("/nodes");
    assert!(page.contains("1 to 100 of 250") && page.contains("<dt>ready</dt><dd>299</dd>"));
    heard(&["nodes 100 \"\" Some(\"\\\"\\\" after 0\")"]);
    let page = web.ask("/nodes?q=n&page=1");
    assert!(page.contains("101 to 200 of 250"), "{page}");
    assert_eq!(shown(&page).len(), 100);
    heard(&[
        "nodes 100 \"\" Some(\"\\\"n\\\" after 100\")",
        "nodes 40 \"\" Some(\"\\\"n\\\" after 160\")",
    ]);
    let page = web.ask("/nodes?page=7");
    assert!(page.contains("201 to 250 of 250"), "{page}");
    heard(&[
        "nodes 100 \"\" Some(\"\\\"\\\" after 700\")",
        "nodes 100 \"\" Some(\"\\\"\\\" after 200\")",
    ]);
    let page = web.ask("/nodes?q=nobody");
    assert!(page.starts_with("HTTP/1.1 200 ") && shown(&page).is_empty());
    // Who looks at the same a moment later is shown the same, and nobody is asked.
    cardboard.heard.lock().unwrap().clear();
    let page = web.ask("/nodes?q=nobody");
    assert!(page.starts_with("HTTP/1.1 200 "));
    heard(&[]);
    let page = web.ask("/nodes?q=anybody");
    assert!(
        page.starts_with("HTTP/1.1 502 ") && page.contains("No answer"),
        "{page}"
    );
}

#[test]
fn the_nodes_of_a_coordinator_that_cannot_search_are_searched_here() {
    let part = |numbers, next: &str| {
        Ok(ListNodesResponse {
            nodes: fleet(numbers),
            next_page_token: next.into(),
            sums: None,
        })
    };
    let mut last = part(100..300, "");
    if let Ok(answer) = &mut last {
        answer.nodes[199].state = NodeState::Lost.into();
    }
    let cardboard = Cardboard {
        nodes: Mutex::new([part(0..100, "n099"), part(0..100, "n099"), last].into()),
        ..Cardboard::default()
    };
    let (_runtime, cardboard, address) = serve(cardboard);
    let web = Web::open(address);
    let page = web.ask("/nodes?q=N2&page=0");
    let names = shown(&page);
    assert_eq!(names.len(), 100, "n200 to n299");
    assert_eq!((names[0], names[1]), ("n299", "n200"), "trouble first");
    assert!(
        page.contains("<dt>lost</dt><dd>1</dd>") && page.contains("<dt>nodes</dt><dd>300</dd>")
    );
    assert_eq!(
        heard_of_nodes(&cardboard),
        [
            "nodes 100 \"\" Some(\"\\\"N2\\\" after 0\")",
            "nodes 0 \"\" None",
            "nodes 0 \"n099\" None",
        ]
    );
}
