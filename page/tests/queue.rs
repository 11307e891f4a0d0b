//! The page of the queue, as a person reads it, and the ways that lead to it.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use muster_page::{Choice, Frame, JobStory, waiting::QueueStory};
use muster_proto::v1::*;

const NOW: u64 = 1_795_260_928_000_000;

fn frame(path: &str) -> Frame<'_> {
    Frame {
        server: "coordinator",
        now_us: NOW,
        path,
    }
}

fn reference(namespace: &str, name: &str) -> Option<JobRef> {
    Some(JobRef {
        namespace: namespace.into(),
        name: name.into(),
    })
}

fn pending(namespace: &str, name: &str, priority: i64, age_s: u64) -> Job {
    Job {
        r#ref: reference(namespace, name),
        created_unix_us: NOW - age_s * 1_000_000,
        spec: Some(JobSpec {
            priority: Some(priority),
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            phase: JobPhase::Pending.into(),
            replicas: 4,
            reason: "BelowMinimum".into(),
            ..JobStatus::default()
        }),
        ..Job::default()
    }
}

fn with(mut job: Job, change: impl FnOnce(&mut JobStatus)) -> Job {
    change(job.status.as_mut().unwrap());
    job
}

/// It waits for nodes.
fn waits(namespace: &str, name: &str, priority: i64, age_s: u64) -> Job {
    with(pending(namespace, name, priority, age_s), |status| {
        status.waits_for_room = Some(WaitsForRoom {
            lacks: "NodesReserved".into(),
            since_unix_us: NOW - age_s * 1_000_000,
            gpus_per_member: 8,
            least: 2,
        });
        status.message = format!("{name} needs 2 nodes");
    })
}

/// It waits for another job and its time.
fn later(namespace: &str, name: &str) -> Job {
    with(pending(namespace, name, 0, 60), |status| {
        status.reason = "Dependency".into();
        let job = |name: &str, condition: &str| AwaitedJob {
            name: name.into(),
            condition: condition.into(),
            ..AwaitedJob::default()
        };
        status.not_eligible = Some(NotEligible {
            jobs: vec![job("prepare", "succeeded"), job("train", "failed")],
            start_after_unix_us: NOW,
            since_unix_us: NOW - 60_000_000,
        });
    })
}

fn suspended(namespace: &str, name: &str) -> Job {
    with(waits(namespace, name, 9, 70), |status| {
        status.suspended = true;
        status.reason = "Suspended".into();
    })
}

fn start(namespace: &str, name: &str, at_unix_us: u64, basis: &str) -> JobStart {
    JobStart {
        r#ref: reference(namespace, name),
        start: Some(StartEstimate {
            at_unix_us,
            basis: basis.into(),
            ..StartEstimate::default()
        }),
    }
}

fn story() -> QueueStory {
    let running = with(pending("a", "runs", 9, 90), |status| {
        status.phase = JobPhase::Running.into();
        status.members.push(MemberStatus::default());
    });
    // It has nodes again, and they get ready.
    let forms = with(pending("a", "forms", 9, 90), |status| {
        status.phase = JobPhase::Recovering.into();
        status.members.push(MemberStatus::default());
    });
    let suspended_too = with(later("b", "held-later"), |status| {
        status.suspended = true;
        status.reason = "Suspended".into();
    });
    QueueStory {
        jobs: vec![
            later("a", "evaluate"),
            waits("a", "young", 0, 100),
            suspended("a", "held"),
            running,
            forms,
            suspended_too,
            waits("b", "old", 0, 300),
            waits("a", "urgent", 5, 10),
        ],
        queues: ListQueuesResponse {
            starts: vec![
                start(
                    "a",
                    "urgent",
                    NOW + 7_200_000_000,
                    "after job a/runs (at its deadline)",
                ),
                start("a", "young", 0, "nobody knows when job b/old ends"),
            ],
            ..ListQueuesResponse::default()
        },
        ..QueueStory::default()
    }
}

fn page(story: &QueueStory, choice: &Choice) -> String {
    muster_page::queue(frame("/queue"), story, choice)
}

fn asked(text: &str, page: usize) -> Choice {
    Choice {
        text: text.into(),
        page,
        ..Choice::default()
    }
}

/// The text of each row of the tables, cells divided by a bar.
fn rows(page: &str) -> Vec<String> {
    let rows = page.split("<tr>").skip(1);
    let text = |html: &str| {
        let mut out = String::new();
        for part in html.split('<') {
            let (tag, text) = part.split_once('>').unwrap_or(("", part));
            if matches!(tag, "/td" | "/th") {
                out.push('|');
            }
            out.push_str(text);
            out.push(' ');
        }
        let words: Vec<&str> = out.split_whitespace().collect();
        words.join(" ")
    };
    rows.map(|row| text(row.split("</tr>").next().unwrap()))
        .map(|row| row.replace("/ ", "/"))
        .collect()
}

#[test]
fn those_that_wait_stand_in_the_order_of_nodes_and_the_others_below() {
    let shown = page(&story(), &Choice::default());
    assert_eq!(
        rows(&shown),
        [
            "Position | Job | Priority | Nodes | GPUs each | Waits | Start | Lacks | Behind |",
            "1 | a/urgent | 5 | 2-4 | 8 | 10s | ~13:35Z in 120m after job a/runs (at its deadline) | NodesReserved urgent needs 2 nodes | |",
            "2 | b/old | 0 | 2-4 | 8 | 5m | | NodesReserved old needs 2 nodes | a/urgent |",
            "3 | a/young | 0 | 2-4 | 8 | 100s | - nobody knows when job b/old ends | NodesReserved young needs 2 nodes | b/old |",
            "Job | Priority | Nodes | GPUs each | Waits | Start | Lacks | Waits for |",
            "a/evaluate | 0 | 4 | 0 | 60s | | Dependency | prepare train:failed 2026-11-21T11:35:28Z |",
            "Job | Priority | Nodes | GPUs each | Reason |",
            "a/held | 9 | 4 | 0 | Suspended held needs 2 nodes |",
            "b/held-later | 0 | 4 | 0 | Suspended |",
        ]
    );
    for link in [
        "href=\"/jobs/a/urgent\"",
        "href=\"/jobs/a/prepare\"",
        "href=\"/queue.json\"",
        "href=\"/queue\" aria-current=\"page\"",
    ] {
        assert!(shown.contains(link), "{link}");
    }
    assert!(!shown.contains("No jobs wait"));
}

#[test]
fn a_namespace_s_jobs_keep_their_positions() {
    let of_a = QueueStory {
        namespace: "a".into(),
        ..story()
    };
    let shown = rows(&page(&of_a, &Choice::default()));
    assert!(shown[1].starts_with("1 | a/urgent"), "{shown:?}");
    assert!(shown[2].starts_with("3 | a/young"), "{shown:?}");
    assert!(!shown.iter().any(|row| row.contains("b/held-later")));
    // A search counts as little.
    let shown = rows(&page(&story(), &asked("A/YOUNG", 0)));
    assert!(shown.len() == 2 && shown[1].starts_with("3 | a/young"));
}

#[test]
fn ten_thousand_that_wait_fit_on_a_page() {
    let jobs =
        (0..10_000).map(|number| waits("a", &format!("job-{number:05}"), 0, 20_000 - number));
    let mut jobs: Vec<Job> = jobs.collect();
    jobs.push(later("a", "evaluate"));
    let starts = jobs.iter().map(|job| {
        let name = &job.r#ref.as_ref().unwrap().name;
        start("a", name, 0, "only the first 16 are looked at")
    });
    let story = QueueStory {
        queues: ListQueuesResponse {
            starts: starts.collect(),
            ..ListQueuesResponse::default()
        },
        jobs,
        ..QueueStory::default()
    };
    let second = page(&story, &asked("", 1));
    assert!(second.len() < 150_000, "{} bytes", second.len());
    assert!(second.contains("101 to 200 of 10001"));
    assert!(second.contains("href=\"?page=2\""));
    assert!(rows(&second)[1].starts_with("101 | a/job-00100 |"));
    assert!(rows(&second)[1].ends_with("| a/job-00099 |"));
    // Those that are not eligible are pages away, and a link leads there.
    assert!(second.contains("href=\"?page=100#not-eligible\""));
    let last = page(&story, &asked("", 100));
    assert!(last.contains("id=\"not-eligible\""));
    assert_eq!(rows(&last).len(), 2);
}

#[test]
fn an_empty_queue_and_what_is_not_known_are_said() {
    let shown = page(&QueueStory::default(), &Choice::default());
    assert!(shown.contains("No jobs wait for nodes, other jobs or their time."));
    assert!(!shown.contains("<table>") && !shown.contains("Queues with quotas"));
    let shown = page(&story(), &asked("nowhere", 0));
    assert!(shown.contains("No job that waits has this in it.") && rows(&shown).is_empty());
    let missing = QueueStory {
        missing: "No estimates of starts: refused <b>".into(),
        ..story()
    };
    let shown = page(&missing, &Choice::default());
    assert!(shown.contains("No estimates of starts: refused &#60;b&#62;"));
}

#[test]
fn queues_are_a_tree_with_what_they_hold() {
    let queue = |name: &str, parent: &str, held: u32| Queue {
        name: name.into(),
        parent: parent.into(),
        quota: 32,
        held,
        available: (!parent.is_empty()).then_some(7),
        namespaces: (0..10).map(|number| format!("{name}-{number}")).collect(),
        jobs: 2,
        waiting: 3,
        ..Queue::default()
    };
    let mut story = story();
    story.queues.queues = vec![
        queue("research", "", 20),
        queue("vision", "research", 40),
        queue("deep", "vision", 8),
    ];
    let shown = page(&story, &Choice::default());
    let tree = shown.split("id=\"quotas\"").nth(1).unwrap();
    let names = |name: &str| {
        let all: Vec<String> = (0..8).map(|number| format!("{name}-{number}")).collect();
        format!("{}, and 2 more", all.join(", "))
    };
    assert_eq!(
        rows(tree)[1..],
        [
            format!(
                "research | 32 | 20 | 0 | - | | 2 | 3 | {} |",
                names("research")
            ),
            format!(
                "vision in research | 32 | 40 | 8 | 7 | | 2 | 3 | {} |",
                names("vision")
            ),
            format!(
                "deep in vision | 32 | 8 | 0 | 7 | | 2 | 3 | {} |",
                names("deep")
            ),
        ]
    );
    assert!(tree.contains(">research<") && tree.contains(">\u{a0}\u{a0}\u{a0}vision<"));
    assert!(tree.contains(">\u{a0}\u{a0}\u{a0}\u{a0}\u{a0}\u{a0}deep<"));
    assert!(tree.contains("aria-label=\"40 of 32 GPUs held, 8 borrowed\""));
    // 32 of 40 are its own.
    assert!(tree.contains("class=\"training\" x=\"0\" y=\"0\" width=\"800\""));
    assert!(tree.contains("class=\"resizing\" x=\"800\" y=\"0\" width=\"200\""));
    assert!(tree.contains("href=\"/queues.json\""));
}

#[test]
fn a_job_that_waits_leads_to_its_line() {
    let link = |name: &str| format!("href=\"/queue?q=a%2F{name}\"");
    let jobs = story().jobs;
    let list = muster_page::jobs(frame("/"), &jobs, &Choice::default());
    for name in ["urgent", "evaluate", "held"] {
        assert!(list.contains(&link(name)), "{name}");
    }
    assert!(!list.contains(&link("runs")));
    for job in &jobs {
        let name = job.r#ref.as_ref().unwrap().name.clone();
        let has_nodes = matches!(&*name, "runs" | "forms");
        let story = JobStory {
            explained: ExplainResponse {
                job: Some(job.clone()),
                ..ExplainResponse::default()
            },
            ..JobStory::default()
        };
        let shown = muster_page::job(frame("/jobs/a/b"), &story);
        assert_eq!(shown.contains("href=\"/queue?q="), !has_nodes, "{name}");
        let file = muster_page::report(frame(""), &story);
        assert!(!file.contains("/queue"), "a file leads nowhere: {name}");
    }
}

/// A name as long as a name of Kubernetes may be is broken where the column ends.
#[test]
fn a_long_name_stays_in_its_column() {
    let name = "n".repeat(253);
    let story = QueueStory {
        jobs: vec![waits("a", &name, 1, 1), waits("a", "second", 0, 1)],
        ..QueueStory::default()
    };
    let shown = page(&story, &Choice::default());
    for (at, _) in shown.match_indices(&format!("{name}</a>")) {
        let cell = shown[..at].rfind("<t").unwrap();
        assert!(
            shown[cell..at].contains("class=\"name\""),
            "{}",
            &shown[cell..at]
        );
    }
    assert_eq!(shown.matches(&format!("{name}</a>")).count(), 2);
    let style = muster_page::STYLE;
    let rule = style
        .lines()
        .find(|line| line.starts_with(".name,"))
        .unwrap();
    assert!(rule.contains("overflow-wrap: anywhere") && rule.contains("white-space: normal"));
}
