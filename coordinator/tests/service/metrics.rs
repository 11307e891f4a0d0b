//! The page of metrics, scraped from a real coordinator with a real job, and read by a strict parser.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use muster_coordinator::metrics::catalogue::{FAMILIES, Kind};
use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    agent::{FakeAgent, Order},
    server::{Server, phase, spec, within},
};

/// The labels of a series, in their order.
type Labels = Vec<(String, String)>;

/// The samples of a page: by name and labels.
#[derive(Debug, Default)]
pub(crate) struct Scraped(BTreeMap<(String, Labels), f64>);

impl Scraped {
    /// The value of the only series with these labels among its own.
    pub(crate) fn one(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |own: &[(String, String)]| {
            let mut wanted = labels.iter();
            wanted.all(|(key, value)| own.iter().any(|(k, v)| k == key && v == value))
        };
        let found = self.0.iter().filter(|((n, own), _)| n == name && has(own));
        let values: Vec<f64> = found.map(|(_, value)| *value).collect();
        assert_eq!(values.len(), 1, "{name} {labels:?}: {self:#?}");
        values[0]
    }

    fn sum(&self, name: &str) -> f64 {
        let own = self.0.iter().filter(|((n, _), _)| n == name);
        own.map(|(_, value)| value).sum()
    }

    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.0.keys().map(|(name, _)| name.as_str()).collect()
    }
}

/// Reads a page, and refuses whatever the format, or our catalogue, does not allow.
fn parse(text: &str) -> Scraped {
    let mut scraped = Scraped::default();
    let mut described = BTreeMap::new();
    let mut current: Option<(&str, &str)> = None;
    assert!(text.ends_with('\n'), "the last line ends");
    let mut helped = None;
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect(line);
            assert!(
                described.insert(name, words).is_none(),
                "{name} comes twice"
            );
            helped = Some(name);
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert_eq!(helped.take(), Some(name), "help comes first");
            current = Some((name, kind));
            continue;
        }
        let (family, kind) = current.expect("a family comes before its samples");
        let known = FAMILIES
            .iter()
            .find(|known| known.name == family)
            .expect(family);
        let named = match known.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        assert_eq!(kind, named, "{family}");
        let (series, value) = line.rsplit_once(' ').expect(line);
        let value: f64 = value.parse().expect(line);
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, read_labels(labels.strip_suffix('}').expect(line))),
            None => (series, Vec::new()),
        };
        let suffix = name.strip_prefix(family).expect(line);
        let keys: Vec<&str> = labels.iter().map(|(key, _)| key.as_str()).collect();
        let bound: &[&str] = match (known.kind, suffix) {
            (Kind::Histogram, "_bucket") => &["le"],
            (Kind::Histogram, "_sum" | "_count") => &[],
            (_, "") => &[],
            _ => panic!("{line}"),
        };
        assert_eq!(keys, [known.labels, bound].concat(), "{line}");
        let before = scraped.0.insert((name.to_owned(), labels), value);
        assert!(before.is_none(), "{series} comes twice");
    }
    histograms_are_whole(&scraped);
    scraped
}

/// `a="b",c="d"`, with the escapes of the format.
fn read_labels(text: &str) -> Labels {
    let mut labels = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"").expect(text);
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().expect("the value ends") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('\\' | '"'))) => c,
                    other => panic!("{other:?} after a backslash in {text}"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((key.to_owned(), value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}

fn histograms_are_whole(scraped: &Scraped) {
    for known in FAMILIES
        .iter()
        .filter(|known| known.kind == Kind::Histogram)
    {
        let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        let name = format!("{}_bucket", known.name);
        for ((_, labels), value) in scraped.0.iter().filter(|((n, _), _)| *n == name) {
            let (le, own) = labels.split_last().unwrap();
            let le = le.1.replace("+Inf", "inf").parse().unwrap();
            buckets.entry(own.to_vec()).or_default().push((le, *value));
        }
        for (labels, mut of) in buckets {
            of.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(
                of.is_sorted_by_key(|(_, count)| *count),
                "{name} {labels:?}: {of:?}"
            );
            let count = scraped.0[&(format!("{}_count", known.name), labels)];
            assert_eq!(of.last(), Some(&(f64::INFINITY, count)), "{name}");
        }
    }
}

/// Asks for a page as a scraper does, and returns head and body of the answer.
async fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_lowercase(), body.to_owned())
}

/// Scrapes until the page is as wanted.
pub(crate) async fn until(
    address: SocketAddr,
    wanted: impl Fn(&Scraped) -> bool,
) -> (String, Scraped) {
    within(async {
        loop {
            let (head, body) = get(address, "/metrics").await;
            assert!(head.starts_with("http/1.1 200 ok"), "{head}");
            assert!(
                head.contains("content-type: text/plain; version=0.0.4"),
                "{head}"
            );
            let scraped = parse(&body);
            if wanted(&scraped) {
                return (body, scraped);
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Prometheus' own reader and rules, where there is one.
fn promtool_takes(text: &str) {
    let named = env::var("MUSTER_PROMTOOL").ok();
    let promtool = named.clone().unwrap_or_else(|| "promtool".into());
    let mut command = Command::new(&promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(_) if named.is_none() => {
            // Not `eprintln!`, which the test runner hides.
            let _ = writeln!(
                io::stderr(),
                "!!! NOT CHECKED: the page of metrics by Prometheus itself (there is no promtool on PATH, and no $MUSTER_PROMTOOL)"
            );
            return;
        }
        child => child.unwrap_or_else(|e| panic!("{promtool}: {e}")),
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}

const JOB: [(&str, &str); 2] = [("job_namespace", "default"), ("job_name", "digits")];

fn of_job<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&JOB[..], more].concat()
}

#[tokio::test]
async fn a_job_is_seen_from_its_start_over_a_failure_to_its_end() {
    let (server, address) = Server::start_with_metrics(Policy::default()).await;
    let before = parse(&get(address, "/metrics").await.1);
    assert_eq!(before.one("muster_term", &[]), 1.0);
    assert_eq!(before.one("muster_build_info", &[]), 1.0);
    assert!(
        !before.names().contains("muster_job_info"),
        "there is no job"
    );

    let first = FakeAgent::with_gpu(&server, "node-a", "13.0").await;
    let _second = FakeAgent::with_gpu(&server, "node-b", "13.0").await;
    let wanted = v1::JobSpec {
        gpus_per_node: Some(1),
        min_replicas: Some(2),
        ..spec(2)
    };
    server.submit("digits", wanted).await;
    let starts = server.submit(
        "waits",
        v1::JobSpec {
            min_replicas: Some(9),
            ..spec(9)
        },
    );
    starts.await;
    let generation = |number: u64| {
        move |job: &v1::Job| {
            let status = job.status.as_ref().unwrap();
            status.generation == number && phase(job) == v1::JobPhase::Running
        }
    };
    server.until_job("digits", generation(1)).await;
    let busy = [("state", "busy")];
    let (_, page) = until(address, |page| {
        page.names().contains("muster_gpus") && page.sum("muster_job_nodes") == 2.0
    })
    .await;
    assert_eq!(page.one("muster_nodes", &[("state", "ready")]), 2.0);
    assert_eq!(page.one("muster_gpus", &busy), 2.0);
    assert_eq!(page.one("muster_job_gpus", &JOB), 2.0);
    assert_eq!(page.one("muster_job_world_size", &JOB), 2.0);
    assert_eq!(page.one("muster_job_generations_total", &JOB), 1.0);
    assert_eq!(page.one("muster_pending_jobs", &[]), 1.0);
    assert_eq!(page.one("muster_jobs", &[("phase", "Running")]), 1.0);
    assert_eq!(page.sum("muster_agents"), 2.0);

    // A rank fails. Its world is formed anew, and the books say for which reason.
    let failed = Order::Exit(Exit::Code(3));
    first.orders.send(failed).await.unwrap();
    server.until_job("digits", generation(2)).await;
    let cause = of_job(&[("cause", "WorkerFailed")]);
    let (text, page) = until(address, |page| {
        page.sum("muster_job_restarts_total") == 1.0 && page.sum("muster_job_nodes") == 2.0
    })
    .await;
    assert_eq!(page.one("muster_job_incidents_total", &cause), 1.0);
    let lost = page.one("muster_job_lost_seconds_total", &cause);
    let recovering = of_job(&[("state", "recovering")]);
    let state = page.one("muster_job_state_seconds_total", &recovering);
    assert!(lost > 0.0 && lost == state, "{lost} {state}");
    promtool_takes(&text);
    let events = page.one("muster_events_total", &[("reason", "WorkerFailed")]);
    assert_eq!(events, 1.0);
    for part in ["think", "commit", "publish"] {
        assert!(page.one("muster_turn_seconds_count", &[("part", part)]) > 1.0);
    }
    // Of another family than before: of first starts, which were over when the next incident began.
    let started = [("phase", "launch"), ("kind", "start")];
    assert!(
        page.names().contains("muster_incident_phase_seconds_count"),
        "{text}"
    );
    assert_eq!(
        page.one("muster_incident_phase_seconds_count", &started),
        1.0
    );

    for agent in [&first, &_second] {
        let done = Order::Exit(Exit::Code(0));
        agent.orders.send(done).await.unwrap();
    }
    let over = |job: &v1::Job| phase(job) == v1::JobPhase::Succeeded;
    let job = server.until_job("digits", over).await;
    let (_, page) = until(address, |page| {
        let gpus = page.0.keys().filter(|(name, _)| name == "muster_gpus");
        gpus.into_iter().all(|(_, labels)| labels[0].1 == "free")
    })
    .await;
    let ended = of_job(&[("phase", "Succeeded"), ("reason", "Completed")]);
    assert_eq!(page.one("muster_job_phase", &ended), 1.0);
    // All of its life is in some state.
    let states = page.0.iter().filter(|((name, labels), _)| {
        name == "muster_job_state_seconds_total" && labels[1].1 == "digits"
    });
    let all: f64 = states.map(|(_, seconds)| seconds).sum();
    let life = job.status.unwrap().finished_unix_us - job.created_unix_us;
    assert!((all - life as f64 / 1e6).abs() < 1e-3, "{all} of {life} us");
    server.stop().await;
}

#[tokio::test]
async fn other_paths_are_not_there_and_say_where_to_look() {
    let (server, address) = Server::start_with_metrics(Policy::default()).await;
    for (path, code) in [
        ("/", "200"),
        ("/metrics/", "404"),
        ("/muster.v1.JobService/List", "404"),
    ] {
        let (head, body) = get(address, path).await;
        assert!(
            head.starts_with(&format!("http/1.1 {code}")),
            "{path}: {head}"
        );
        assert!(body.contains("/metrics"), "{path}: {body}");
    }
    // Whoever sends half a request holds up nobody else.
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET /met").await.unwrap();
    assert!(get(address, "/metrics").await.0.contains("200 ok"));
    server.stop().await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "the port is closed"
    );
}

const BEGIN: &str = "<!-- reference:begin, written by MUSTER_BLESS=1 cargo test -p muster-coordinator --test service metrics -->\n";
const END: &str = "<!-- reference:end -->\n";

/// `docs/metrics.md` has each metric as the coordinator serves it.
#[test]
fn the_reference_is_made_from_the_catalogue() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the first mark");
    let (_, tail) = rest.split_once(END).expect("the second mark");
    let mut table = String::from("\n| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for known in FAMILIES {
        let labels: Vec<String> = known.labels.iter().map(|l| format!("`{l}`")).collect();
        let kind = format!("{:?}", known.kind).to_lowercase();
        let (name, labels, help) = (known.name, labels.join(", "), known.help);
        writeln!(table, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    let made = format!("{head}{BEGIN}{table}\n{END}{tail}");
    if env::var_os("MUSTER_BLESS").is_some() {
        fs::write(&path, made).unwrap();
        return;
    }
    assert!(
        made == page,
        "write it: MUSTER_BLESS=1 cargo test -p muster-coordinator --test service metrics"
    );
}
