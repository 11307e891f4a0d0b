//! Every page, with what jobs and nodes can say at their worst: it stays one page of ours, and loads nothing from elsewhere.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::collections::BTreeSet;

use muster_page::{Choice, FleetStory, Frame, JobStory, Line, waiting::QueueStory};
use muster_proto::v1::*;

const HOSTILE: &str = "<script>alert(1)</script>\"><img src=x onerror=alert(2)>' style='x' {{ 7*7 }} \u{202e}\u{0}\u{1b}[31m https://evil.example";
const NOW: u64 = 1_795_260_928_000_000;

fn frame(path: &str) -> Frame<'_> {
    Frame {
        server: HOSTILE,
        now_us: NOW,
        path,
    }
}

fn long() -> String {
    HOSTILE.repeat(20)
}

fn reference(name: &str) -> Option<JobRef> {
    Some(JobRef {
        namespace: HOSTILE.into(),
        name: name.into(),
    })
}

fn event(at: u64) -> Event {
    Event {
        at_unix_us: at,
        severity: (at % 3) as i32,
        reason: HOSTILE.into(),
        message: long(),
        namespace: HOSTILE.into(),
        job: HOSTILE.into(),
        node: HOSTILE.into(),
        ..Event::default()
    }
}

fn job(number: u64) -> Job {
    Job {
        r#ref: reference(&format!("{HOSTILE}{number}")),
        uid: HOSTILE.into(),
        owner: HOSTILE.into(),
        created_unix_us: NOW - 900_000_000,
        spec: Some(JobSpec {
            command: vec![HOSTILE.into()],
            args: vec![HOSTILE.into()],
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            phase: (number % 9) as i32,
            reason: HOSTILE.into(),
            message: long(),
            loss: HOSTILE.into(),
            last_step: Some(u64::MAX),
            total_steps: Some(number % 2),
            nodes_running: u32::MAX,
            time: Some(TimeAccount {
                goodput: Some(0.5),
                spent: vec![TimeSpent {
                    state: HOSTILE.into(),
                    cause: HOSTILE.into(),
                    us: 1 << 40,
                    gpu_us: 1 << 41,
                    ..TimeSpent::default()
                }],
                ..TimeAccount::default()
            }),
            members: vec![MemberStatus {
                node: HOSTILE.into(),
                lane_reason: HOSTILE.into(),
                torch: HOSTILE.into(),
                gpus: vec![HOSTILE.into()],
                ..MemberStatus::default()
            }],
            ranks: vec![RankStatus {
                node: HOSTILE.into(),
                state: HOSTILE.into(),
                first_error: long(),
                memory_bytes: Some(u64::MAX),
                cpu_milli: Some(u32::MAX),
                ..RankStatus::default()
            }],
            ..JobStatus::default()
        }),
    }
}

fn incident(at: u64) -> Incident {
    Incident {
        at_unix_us: at,
        cause: HOSTILE.into(),
        message: long(),
        from_generation: at % 3,
        to_generation: at % 4,
        from_nodes: u32::MAX,
        to_nodes: u32::MAX,
        detect_us: Some(u64::MAX),
        launch_us: Some(u64::MAX),
        total_us: Some(u64::MAX).filter(|_| at.is_multiple_of(2)),
        charged: HOSTILE.into(),
        culprit: HOSTILE.into(),
        collateral: vec![HOSTILE.into()],
        rule: HOSTILE.into(),
        start: Some(StartPhases {
            imports: vec![Import {
                name: HOSTILE.into(),
                us: 1,
                why: HOSTILE.into(),
            }],
            ..StartPhases::default()
        }),
        ..Incident::default()
    }
}

fn story() -> JobStory {
    JobStory {
        explained: ExplainResponse {
            job: Some(job(3)),
            timeline: (0..5).map(event).collect(),
            incidents: [0, 5, u64::MAX].map(incident).to_vec(),
            lost: vec![
                LostTime {
                    cause: HOSTILE.into(),
                    lost_us: u64::MAX / 4,
                    incidents: 3,
                };
                2
            ],
            incidents_dropped: 7,
        },
        spec: long(),
    }
}

fn node(number: usize) -> Node {
    let uuid = |gpu: u32| format!("{HOSTILE}{number}{gpu}");
    let finding = |severity: &str, subject| Finding {
        check: HOSTILE.into(),
        severity: severity.into(),
        remedy: HOSTILE.into(),
        reason: long(),
        subject,
        ..Finding::default()
    };
    Node {
        name: format!("{HOSTILE}{number}"),
        state: (number % 5) as i32,
        cordon: Some(Cordon {
            by: HOSTILE.into(),
            reason: HOSTILE.into(),
            at_unix_us: u64::MAX,
        })
        .filter(|_| number.is_multiple_of(2)),
        labels: [(HOSTILE.to_owned(), HOSTILE.to_owned())].into(),
        gpus: (0..8)
            .map(|index| Gpu {
                uuid: uuid(index),
                index,
                model: HOSTILE.into(),
                memory_bytes: u64::MAX,
                pci: HOSTILE.into(),
                ..Gpu::default()
            })
            .collect(),
        runs: vec![NodeRun {
            namespace: HOSTILE.into(),
            job: HOSTILE.into(),
            phase: HOSTILE.into(),
            gpus: vec![uuid(0), uuid(1)],
            ..NodeRun::default()
        }],
        gpu_holders: Some(GpuHolders {
            known: true,
            holders: vec![GpuHolder {
                gpu: uuid(2),
                namespace: HOSTILE.into(),
                pod: HOSTILE.into(),
            }],
        }),
        hardware: Some(Hardware {
            findings: vec![
                finding("drain", Some(finding::Subject::Gpu(uuid(3)))),
                finding(HOSTILE, None),
            ],
            ..Hardware::default()
        }),
        marks: vec![NodeMark {
            at_unix_us: u64::MAX,
            namespace: HOSTILE.into(),
            job: HOSTILE.into(),
            cause: HOSTILE.into(),
            lasted_us: u64::MAX,
            standing: long(),
        }],
        usage: Some(Usage {
            gpus: vec![GpuUsage {
                uuid: uuid(0),
                memory: Some(Space {
                    available: u64::MAX,
                    total: 1,
                }),
                busy_percent: Some(u32::MAX),
            }],
            ..Usage::default()
        }),
        conditions: vec![HOSTILE.into()],
        excluded: HOSTILE.into(),
        gpu_error: HOSTILE.into(),
        ..Node::default()
    }
}

/// These nodes, on a page of the largest fleet.
fn fleet(nodes: Vec<Node>) -> FleetStory {
    FleetStory {
        nodes,
        sums: NodeSums {
            matching: u32::MAX,
            nodes: u32::MAX,
            lost: 1,
            gpus: u32::MAX,
            gpus_withheld: 1,
            ..NodeSums::default()
        },
    }
}

fn queue() -> QueueStory {
    let mut jobs: Vec<Job> = (0..9).map(job).collect();
    for (number, job) in jobs.iter_mut().enumerate() {
        let status = job.status.as_mut().unwrap();
        let waits = WaitsForRoom {
            lacks: HOSTILE.into(),
            since_unix_us: u64::MAX,
            gpus_per_member: u32::MAX,
            least: number as u32,
        };
        status.waits_for_room = Some(waits).filter(|_| number.is_multiple_of(3));
        let waits = NotEligible {
            jobs: vec![AwaitedJob {
                name: HOSTILE.into(),
                condition: HOSTILE.into(),
                ..AwaitedJob::default()
            }],
            start_after_unix_us: u64::MAX,
            since_unix_us: 1,
        };
        status.not_eligible = Some(waits).filter(|_| number % 3 == 1);
        if number % 3 == 2 {
            status.phase = JobPhase::Pending.into();
            status.members.clear();
        }
    }
    let starts = jobs.iter().map(|job| JobStart {
        r#ref: job.r#ref.clone(),
        start: Some(StartEstimate {
            at_unix_us: u64::MAX,
            basis: long(),
            unknown: HOSTILE.into(),
            after: Vec::new(),
        }),
    });
    let queue = Queue {
        name: HOSTILE.into(),
        parent: HOSTILE.into(),
        quota: u32::MAX,
        held: u32::MAX,
        namespaces: vec![HOSTILE.into(); 20],
        ..Queue::default()
    };
    QueueStory {
        queues: ListQueuesResponse {
            starts: starts.collect(),
            queues: vec![queue; 3],
            ..ListQueuesResponse::default()
        },
        jobs,
        missing: long(),
        ..QueueStory::default()
    }
}

fn pages() -> Vec<(&'static str, String)> {
    let choice = Choice {
        text: String::new(),
        page: usize::MAX,
        warnings: true,
    };
    let jobs: Vec<Job> = (0..9).map(job).collect();
    let nodes: Vec<Node> = (0..9).map(node).collect();
    let events: Vec<Event> = (0..9).map(event).collect();
    let line = Line {
        rank: 1,
        node: HOSTILE.into(),
        generation: 1,
        text: long(),
    };
    vec![
        (
            "jobs",
            muster_page::jobs(frame("/"), &jobs, &Choice::default()),
        ),
        ("job", muster_page::job(frame("/jobs/a/b"), &story())),
        ("report", muster_page::report(frame(""), &story())),
        (
            "fleet",
            muster_page::fleet(frame("/nodes"), &fleet(nodes), &choice),
        ),
        (
            "node",
            muster_page::node(frame("/nodes/a"), &node(2), &events),
        ),
        ("queue", {
            muster_page::queue(frame("/queue"), &queue(), &Choice::default())
        }),
        ("no queue", {
            muster_page::queue(frame("/queue"), &QueueStory::default(), &choice)
        }),
        ("goodput", muster_page::goodput(frame("/goodput"), &jobs)),
        (
            "events",
            muster_page::events(frame("/events"), &events, &choice),
        ),
        (
            "logs",
            muster_page::logs(
                frame("/jobs/a/b/logs"),
                HOSTILE,
                HOSTILE,
                Some(1),
                3,
                &[line],
            ),
        ),
        ("refused", muster_page::refused(HOSTILE, HOSTILE, HOSTILE)),
        (
            "nothing",
            muster_page::job(frame("/jobs/a/b"), &JobStory::default()),
        ),
        ("no jobs", muster_page::jobs(frame("/"), &[], &choice)),
        (
            "no nodes",
            muster_page::fleet(frame("/nodes"), &FleetStory::default(), &choice),
        ),
        (
            "no events",
            muster_page::events(frame("/events"), &[], &choice),
        ),
        ("no time", muster_page::goodput(frame("/goodput"), &[])),
        (
            "an empty node",
            muster_page::node(frame("/nodes/a"), &Node::default(), &[]),
        ),
    ]
}

/// What stands between `<` and `>`.
fn tags(page: &str) -> Vec<&str> {
    let parts = page.split('<').skip(1);
    parts
        .filter_map(|part| Some(part.split_once('>')?.0))
        .collect()
}

/// The attributes of a tag with their values.
fn attributes(tag: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = tag
        .split_once(char::is_whitespace)
        .map_or("", |(_, rest)| rest);
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.split_whitespace().last().unwrap_or_default();
        let after = after
            .strip_prefix('"')
            .unwrap_or_else(|| panic!("no quotation mark in {tag}"));
        let (value, after) = after
            .split_once('"')
            .unwrap_or_else(|| panic!("no end in {tag}"));
        found.push((name, value));
        rest = after;
    }
    found
}

#[test]
fn whatever_jobs_and_nodes_say_is_text() {
    const KNOWN: &str = "!doctype html head meta title link script style body a header nav p main footer time span h1 h2 h3 div section article ul li form label \
        input button table thead tbody tr th td dl dt dd svg rect line text details summary code pre strong";
    for (name, page) in pages() {
        for tag in tags(&page) {
            let element = tag
                .trim_start_matches('/')
                .split([' ', '/', '\n'])
                .next()
                .unwrap();
            assert!(
                KNOWN.split(' ').any(|known| known == element),
                "{name}: <{tag}>"
            );
            if element == "script" && !tag.starts_with('/') {
                assert_eq!(tag, "script src=\"/assets/live.js\" defer", "{name}");
            }
            for (attribute, value) in attributes(tag) {
                assert!(
                    !attribute.starts_with("on") && attribute != "style",
                    "{name}: <{tag}>"
                );
                if matches!(attribute, "href" | "src" | "action") {
                    let ours = value.starts_with('/') && !value.starts_with("//");
                    let ours = ours || value.starts_with(['#', '?']) || value == "data:,";
                    assert!(ours, "{name}: <{tag}>");
                }
            }
        }
    }
}

#[test]
fn each_part_can_be_found_by_its_name() {
    for (name, page) in pages() {
        let mut ids = BTreeSet::new();
        for tag in tags(&page) {
            let all = attributes(tag);
            for (_, id) in all.iter().filter(|(name, _)| *name == "id") {
                assert!(ids.insert((*id).to_owned()), "{name}: {id} twice");
            }
            if tag.contains(" data-part") {
                assert!(all.iter().any(|(name, _)| *name == "id"), "{name}: <{tag}>");
            }
        }
        let named = tags(&page).into_iter().flat_map(attributes);
        for (_, id) in named.filter(|(name, _)| *name == "aria-labelledby") {
            assert!(ids.contains(id), "{name}: no {id}");
        }
    }
}

#[test]
fn a_report_is_one_file() {
    let report = muster_page::report(frame(""), &story());
    for tag in tags(&report) {
        let word = tag.split([' ', '\n']).next().unwrap();
        assert!(
            !matches!(word, "link" | "script" | "img" | "iframe"),
            "<{tag}>"
        );
        for (name, value) in attributes(tag) {
            let leads_away = matches!(name, "href" | "src") && !value.starts_with('#');
            assert!(!leads_away, "<{tag}>");
        }
    }
    assert!(!muster_page::STYLE.contains("url(") && !muster_page::STYLE.contains("@import"));
}

#[test]
fn a_large_fleet_fits_on_a_page() {
    let nodes = (100..200).map(|number| Node {
        name: format!("node-{number:05}"),
        gpus: node(number).gpus,
        ..Node::default()
    });
    let mut story = FleetStory {
        nodes: nodes.collect(),
        sums: NodeSums {
            matching: 10_000,
            nodes: 10_000,
            cordoned: 3,
            gpus: 80_000,
            ..NodeSums::default()
        },
    };
    let mut choice = Choice {
        page: 1,
        ..Choice::default()
    };
    let page = muster_page::fleet(frame("/nodes"), &story, &choice);
    assert!(page.len() < 600_000, "{} bytes", page.len());
    assert!(page.contains("101 to 200 of 10000") && page.contains(">node-00100<"));
    assert!(page.contains("href=\"?page=2\""));
    assert!(page.contains("<dt>cordoned</dt><dd>3</dd>") && page.contains("<dd>80000</dd>"));
    assert!(!page.contains("<dt>lost</dt>"), "nobody asks for a 0");

    // A page after the last is the last.
    (choice.page, story.sums.matching) = (usize::MAX, 200);
    assert_eq!((choice.first(200), choice.first(201)), (100, 200));
    assert_eq!((choice.first(0), choice.first(1)), (0, 0));
    let page = muster_page::fleet(frame("/nodes"), &story, &choice);
    assert!(page.contains("101 to 200 of 200") && !page.contains("rel=\"next\""));
}

#[test]
fn a_job_that_waits_or_failed_needs_a_person() {
    let with = |name: &str, phase: JobPhase, age_s: u64, finished_unix_us: u64| Job {
        r#ref: Some(JobRef {
            namespace: "team".into(),
            name: name.into(),
        }),
        created_unix_us: NOW - age_s * 1_000_000,
        status: Some(JobStatus {
            phase: phase.into(),
            finished_unix_us,
            message: format!("says {name}"),
            ..JobStatus::default()
        }),
        ..Job::default()
    };
    let jobs = [
        with("young", JobPhase::Pending, 10, 0),
        with("waits", JobPhase::Pending, 600, 0),
        with("trains", JobPhase::Running, 600, 0),
        with("failed", JobPhase::Failed, 900, NOW - 60_000_000),
        with(
            "failed-long-ago",
            JobPhase::Failed,
            900_000,
            NOW - 200_000_000_000,
        ),
        with("done", JobPhase::Succeeded, 900, NOW - 1),
    ];
    let page = muster_page::jobs(frame("/"), &jobs, &Choice::default());
    let needs = page.split("id=\"needs\"").nth(1).unwrap();
    let needs = needs.split("</section>").next().unwrap();
    let named: Vec<&str> = jobs
        .iter()
        .map(|job| job.r#ref.as_ref().unwrap().name.as_str())
        .filter(|name| needs.contains(&format!("/{name}\"")))
        .collect();
    assert_eq!(named, ["waits", "failed"]);
    assert!(needs.contains("says waits"), "with what it says");
}
