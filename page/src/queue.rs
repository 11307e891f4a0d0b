//! The queue: who waits for nodes, behind whom, until when, and whose quota is used.

use askama::Template;

use crate::{
    Choice, Frame, Paged, ROWS,
    tree::{self, Branch},
    waiting::{self, Place, QueueStory, Waiting},
    words,
};

/// Namespaces that the line of a queue names.
const NAMED: usize = 8;

#[derive(Template)]
#[template(path = "queue.html")]
struct Page<'a> {
    frame: Frame<'a>,
    choice: &'a Choice,
    counts: Vec<Count>,
    missing: &'a str,
    /// Said where no job is shown.
    nothing: &'static str,
    jobs: Paged<Waiting<'a>>,
    tree: Vec<Line<'a>>,
}

/// How many jobs wait in one way, and where their lines begin.
struct Count {
    name: &'static str,
    jobs: usize,
    link: String,
}

/// Jobs of a page that wait in one way.
struct Group<'a> {
    id: &'static str,
    head: &'static str,
    /// What they wait for, as the head of a column.
    before: &'static str,
    jobs: Vec<&'a Waiting<'a>>,
}

/// A queue, drawn.
struct Line<'a> {
    branch: Branch<'a>,
    indent: String,
    /// Width of what it holds within its quota, and beyond it, in thousandths.
    own: f64,
    beyond: f64,
    namespaces: String,
}

/// The page of the queue.
pub fn queue(frame: Frame<'_>, story: &QueueStory, choice: &Choice) -> String {
    let mut all = waiting::in_order(&story.jobs, &story.queues.order, &story.namespace);
    waiting::add_starts(&mut all, &story.queues.starts);
    all.extend(waiting::held_back(&story.jobs, &story.namespace));
    let none = all.is_empty();
    all.retain(|job| takes(job, choice));
    let page = Page {
        frame,
        choice,
        counts: counts(&all, choice),
        missing: &story.missing,
        nothing: match none {
            true => waiting::NOBODY,
            false => "No job that waits has this in it.",
        },
        jobs: Paged::of(all, choice),
        tree: tree::tree(&story.queues.queues)
            .into_iter()
            .map(line)
            .collect(),
    };
    crate::refused::drawn(page.render())
}

fn takes(job: &Waiting<'_>, choice: &Choice) -> bool {
    let name = format!("{}/{}", job.namespace, job.name);
    choice.takes(&[&name, job.lacks, job.reason])
}

fn kind(job: &Waiting<'_>) -> usize {
    match job.place {
        Place::InQueue { .. } => 0,
        Place::NotEligible(_) => 1,
        Place::HeldBack => 2,
    }
}

const KINDS: [(&str, &str, &str, &str); 3] = [
    ("in-queue", "in the queue", "Wait for nodes", "Behind"),
    (
        "not-eligible",
        "not eligible",
        "Not eligible yet",
        "Waits for",
    ),
    ("held-back", "held back", "Held back", ""),
];

fn counts(all: &[Waiting<'_>], choice: &Choice) -> Vec<Count> {
    let count = |(number, (id, name, ..)): (usize, (&str, &'static str, _, _))| {
        let of = |job: &Waiting<'_>| kind(job) == number;
        let first = all.iter().position(of)?;
        Some(Count {
            name,
            jobs: all.iter().filter(|job| of(job)).count(),
            link: format!("{}#{id}", choice.query(first / ROWS)),
        })
    };
    KINDS.into_iter().enumerate().filter_map(count).collect()
}

impl<'a> Page<'a> {
    /// The jobs of this page by the way in which they wait.
    fn groups(&'a self) -> Vec<Group<'a>> {
        let group = |(number, (id, _, head, before))| Group {
            id,
            head,
            before,
            jobs: self
                .jobs
                .rows
                .iter()
                .filter(|job| kind(job) == number)
                .collect(),
        };
        let groups = KINDS.into_iter().enumerate().map(group);
        groups.filter(|group| !group.jobs.is_empty()).collect()
    }

    /// How long it has waited.
    fn age(&self, job: &Waiting<'_>) -> String {
        words::age(job.since_us, self.frame.now_us)
    }

    fn since(&self, job: &Waiting<'_>) -> String {
        words::utc_seconds(job.since_us)
    }

    fn start(&self, job: &Waiting<'_>) -> String {
        job.starts(self.frame.now_us)
    }
}

fn line(branch: Branch<'_>) -> Line<'_> {
    let queue = branch.queue;
    let all = f64::from(queue.held.max(queue.quota).max(1));
    let width = |gpus: u32| (f64::from(gpus) / all * 1_000.0).round();
    let namespaces = &queue.namespaces;
    let mut named: Vec<String> = namespaces.iter().take(NAMED).cloned().collect();
    if namespaces.len() > NAMED {
        named.push(format!("and {} more", namespaces.len() - NAMED));
    }
    Line {
        branch,
        indent: "\u{a0}\u{a0}\u{a0}".repeat(branch.depth),
        own: width(queue.held.min(queue.quota)),
        beyond: width(branch.borrowed()),
        namespaces: named.join(", "),
    }
}
