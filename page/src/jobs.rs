//! All jobs: first those that need a person, then those that run or wait, then those that are over.

use askama::Template;
use muster_proto::v1::{Job, JobPhase};

use crate::{
    Choice, Frame, Paged,
    state::{self, Badge},
    waiting, words,
};

/// A job that has waited for so long is shown to a person.
const WAITS_LONG_US: u64 = 5 * 60 * 1_000_000;
/// A failed job is shown to a person for so long.
const FAILED_LATELY_US: u64 = 24 * 3_600 * 1_000_000;

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page<'a> {
    frame: Frame<'a>,
    choice: &'a Choice,
    needs: Vec<Need>,
    counts: Vec<(Badge, usize)>,
    jobs: Paged<Row>,
}

pub(crate) struct Need {
    namespace: String,
    name: String,
    state: Badge,
    why: String,
    /// Its line on the page of the queue. Empty: it does not wait.
    queue: String,
}

struct Row {
    namespace: String,
    name: String,
    state: Badge,
    nodes: String,
    gpus: String,
    step: String,
    goodput: String,
    restarts: u32,
    age: String,
    owner: String,
    why: String,
    queue: String,
}

/// The page of all jobs that the choice takes.
pub fn jobs(frame: Frame<'_>, jobs: &[Job], choice: &Choice) -> String {
    let mut sorted: Vec<&Job> = jobs.iter().collect();
    sorted.sort_by_key(|job| (state::is_over(job), std::cmp::Reverse(job.created_unix_us)));
    let mut counts: Vec<(Badge, usize)> = Vec::new();
    for job in &sorted {
        let badge = state::of_job(job);
        match counts.iter_mut().find(|(known, _)| *known == badge) {
            Some((_, count)) => *count += 1,
            None => counts.push((badge, 1)),
        }
    }
    let wanted = |job: &&&Job| {
        let (namespace, name) = state::name(job);
        let status = job.status.clone().unwrap_or_default();
        let phase = words::phase(status.phase);
        choice.takes(&[&namespace, &name, phase, &status.reason, &job.owner])
    };
    let rows = sorted
        .iter()
        .filter(wanted)
        .map(|job| row(job, frame.now_us));
    let page = Page {
        frame,
        choice,
        needs: sorted
            .iter()
            .filter_map(|job| need(job, frame.now_us))
            .collect(),
        counts,
        jobs: Paged::of(rows.collect(), choice),
    };
    crate::refused::drawn(page.render())
}

/// Why a person should look at the job, if one should.
pub(crate) fn need(job: &Job, now_us: u64) -> Option<Need> {
    let status = job.status.clone().unwrap_or_default();
    let waits = now_us.saturating_sub(job.created_unix_us) >= WAITS_LONG_US;
    let why = match (status.phase(), status.reason.as_str()) {
        (JobPhase::Failed, _)
            if now_us.saturating_sub(status.finished_unix_us) < FAILED_LATELY_US =>
        {
            "it has failed"
        }
        (JobPhase::Failed | JobPhase::Succeeded | JobPhase::Cancelled, _) => return None,
        (_, "StoreBehind") => "a node knows more of it than the store, and nothing is decided",
        (_, "MassLoss") => "many nodes fell silent at once",
        (_, "Unreachable") => "its former members cannot be asked, and nothing proves them dead",
        (_, "BackOff") => "it fails again and again",
        (_, "Suspended") => return None,
        (JobPhase::Pending, _) if waits => "it has waited for more than 5 minutes",
        _ => return None,
    };
    let (namespace, name) = state::name(job);
    Some(Need {
        namespace,
        name,
        state: state::of_job(job),
        queue: waiting::link(job),
        why: match status.message.as_str() {
            "" => why.to_owned(),
            message => format!("{why}: {message}"),
        },
    })
}

fn row(job: &Job, now_us: u64) -> Row {
    let (namespace, name) = state::name(job);
    let status = job.status.clone().unwrap_or_default();
    let gpus: usize = status.members.iter().map(|member| member.gpus.len()).sum();
    Row {
        namespace,
        name,
        state: state::of_job(job),
        nodes: format!("{}/{}", status.nodes_running, status.replicas),
        gpus: match gpus {
            0 => String::new(),
            gpus => gpus.to_string(),
        },
        step: status
            .last_step
            .map_or_else(String::new, |step| match status.total_steps {
                Some(all) if all > 0 => {
                    format!("{step} ({})", words::percent(step as f64 / all as f64))
                }
                _ => step.to_string(),
            }),
        goodput: status
            .time
            .and_then(|time| time.goodput)
            .map_or_else(String::new, words::percent),
        restarts: status.restarts,
        age: words::age(job.created_unix_us, now_us),
        owner: job.owner.clone(),
        queue: waiting::link(job),
        why: match status.message.as_str() {
            "" => status.reason,
            message => message.to_owned(),
        },
    }
}
