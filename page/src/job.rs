//! One job: what it is doing, where its time went, what happened to it and what that cost. The same as a page and as a file.

use askama::Template;
use muster_proto::v1::{EventSeverity, Job, MemberStatus, RankStatus};

use crate::{
    Frame, JobStory, STYLE, events,
    incidents::{self, Row},
    spent::{self, Spent},
    state::{self, Badge},
    timeline::{self, Timeline},
    waiting, words,
};

/// Ranks and members that are listed. A page of a thousand ranks shows those that differ first.
const LISTED: usize = 256;
/// The cause of a job's first generation.
const FIRST_START: &str = "FirstStart";

#[derive(Template)]
#[template(path = "job.html")]
struct Page<'a> {
    frame: Frame<'a>,
    body: Body<'a>,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Report<'a> {
    frame: Frame<'a>,
    style: &'a str,
    body: Body<'a>,
}

#[derive(Template)]
#[template(path = "job_body.html")]
struct Body<'a> {
    namespace: String,
    name: String,
    state: Badge,
    reason: String,
    message: String,
    /// Its line on the page of the queue. Empty: it does not wait.
    queue: String,
    verdict: Vec<String>,
    facts: Vec<(&'static str, String)>,
    command: String,
    spent: Vec<Spent>,
    goodput: String,
    timeline: Timeline,
    dropped: u32,
    incidents: Vec<Row>,
    members: Vec<MemberStatus>,
    ranks: Vec<RankRow>,
    ranks_all: usize,
    events: Vec<events::Row>,
    commands: Vec<(&'static str, String)>,
    spec: &'a str,
    is_page: bool,
}

struct RankRow {
    rank: u32,
    node: String,
    pid: String,
    state: String,
    step: String,
    memory: String,
    cpus: String,
    first_error: String,
}

/// The page of a job.
pub fn job(frame: Frame<'_>, story: &JobStory) -> String {
    let body = body(frame, story, true);
    crate::refused::drawn(Page { frame, body }.render())
}

/// One file with the whole story, for somebody who cannot ask the coordinator. It loads nothing and needs no script.
pub fn report(frame: Frame<'_>, story: &JobStory) -> String {
    let report = Report {
        frame,
        style: STYLE,
        body: body(frame, story, false),
    };
    crate::refused::drawn(report.render())
}

fn body<'a>(frame: Frame<'a>, story: &'a JobStory, is_page: bool) -> Body<'a> {
    let explained = &story.explained;
    let job = explained.job.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let (namespace, name) = state::name(&job);
    let spec = job.spec.clone().unwrap_or_default();
    let account = status.time.clone().unwrap_or_default();
    let (incidents, dropped) = (&explained.incidents, explained.incidents_dropped);
    let mut ranks = status.ranks.clone();
    // Ranks with an error, and those that are behind, come first.
    ranks.sort_by_key(|rank| (rank.first_error.is_empty(), rank.last_step, rank.rank));
    let ranks_all = ranks.len();
    ranks.truncate(LISTED);
    let mut events: Vec<_> = explained
        .timeline
        .iter()
        .map(|event| events::row(event, frame.now_us))
        .collect();
    events.reverse();
    Body {
        state: state::of_job(&job),
        // Most often the reason is the state's own word.
        reason: match status.reason == words::phase(status.phase) {
            true => String::new(),
            false => status.reason.clone(),
        },
        message: status.message.clone(),
        queue: waiting::link(&job),
        verdict: verdict(&job, story),
        facts: facts(&job, frame.now_us),
        command: spec
            .command
            .iter()
            .chain(&spec.args)
            .cloned()
            .collect::<Vec<_>>()
            .join(" "),
        spent: spent::rows(&account),
        goodput: account.goodput.map_or_else(String::new, words::percent),
        timeline: timeline::of(&job, incidents, dropped, frame.now_us),
        dropped,
        incidents: incidents::rows(&job, incidents, dropped),
        members: status.members.iter().take(LISTED).cloned().collect(),
        ranks: ranks.iter().map(rank_row).collect(),
        ranks_all,
        events,
        commands: commands(&job, &namespace, &name),
        spec: &story.spec,
        is_page,
        namespace,
        name,
    }
}

/// The story in a few sentences, for somebody who reads no more.
fn verdict(job: &Job, story: &JobStory) -> Vec<String> {
    let incidents = &story.explained.incidents;
    let status = job.status.clone().unwrap_or_default();
    let mut said = Vec::new();
    let happened = incidents
        .iter()
        .filter(|one| one.from_generation > 0)
        .count() as u64
        + u64::from(story.explained.incidents_dropped);
    // The first start is no interruption.
    let lost: Vec<_> = story
        .explained
        .lost
        .iter()
        .filter(|lost| lost.cause != FIRST_START)
        .collect();
    if happened > 0 {
        said.push(format!(
            "It was interrupted {} and lost {} by that.",
            match happened {
                1 => "once".to_owned(),
                times => format!("{times} times"),
            },
            words::span(lost.iter().map(|lost| lost.lost_us).sum())
        ));
    }
    let worst = lost.iter().max_by_key(|lost| lost.lost_us);
    if let Some(worst) = worst.filter(|_| lost.len() > 1) {
        said.push(format!(
            "Most of that is {} ({}, {}).",
            worst.cause,
            words::count(worst.incidents.into(), "incident"),
            words::span(worst.lost_us)
        ));
    }
    if let Some(last) = incidents.iter().rev().find(|one| !one.culprit.is_empty()) {
        said.push(format!(
            "The last incident that somebody caused: {} ({}).",
            last.message, last.culprit
        ));
    }
    if let Some(rank) = status
        .ranks
        .iter()
        .find(|rank| !rank.first_error.is_empty())
    {
        said.push(format!("Rank {} says: {}", rank.rank, rank.first_error));
    }
    said
}

fn facts(job: &Job, now_us: u64) -> Vec<(&'static str, String)> {
    let status = job.status.clone().unwrap_or_default();
    let step = status
        .last_step
        .map_or_else(String::new, |step| match status.total_steps {
            Some(all) if all > 0 => format!(
                "{step} of {all} ({})",
                words::percent(step as f64 / all as f64)
            ),
            _ => step.to_string(),
        });
    let end = match status.finished_unix_us {
        0 => now_us,
        at => at,
    };
    let gpus: usize = status.members.iter().map(|member| member.gpus.len()).sum();
    let all = [
        (
            "Nodes",
            format!("{} of {} wanted", status.nodes_running, status.replicas),
        ),
        ("World", status.world_size.to_string()),
        (
            "GPUs",
            match gpus {
                0 => String::new(),
                gpus => gpus.to_string(),
            },
        ),
        ("Generation", status.generation.to_string()),
        ("Restarts", status.restarts.to_string()),
        ("Step", step),
        (
            "Step time",
            status.step_time_us.map_or_else(String::new, words::span),
        ),
        ("Loss", status.loss),
        (
            "Saved",
            match status.saved_unix_us {
                0 => String::new(),
                at => format!("{} ago", words::age(at, now_us)),
            },
        ),
        ("Submitted", words::utc_seconds(job.created_unix_us)),
        ("Age", words::age(job.created_unix_us, end)),
        ("Owner", job.owner.clone()),
        ("UID", job.uid.clone()),
    ];
    all.into_iter()
        .filter(|(_, text)| !text.is_empty())
        .collect()
}

/// What a person would type next. The page changes nothing itself.
fn commands(job: &Job, namespace: &str, name: &str) -> Vec<(&'static str, String)> {
    let with = |verb: &str| format!("muster -n {namespace} {verb} {name}");
    let suspended = job.status.as_ref().is_some_and(|status| status.suspended);
    let mut commands = vec![
        ("the whole story", with("explain")),
        ("output of all ranks", with("logs")),
    ];
    if !state::is_over(job) {
        commands.push(("where each rank is", with("stacks")));
        commands.push(match suspended {
            true => ("let it go on", with("resume")),
            false => ("hold it back", with("suspend")),
        });
        commands.push(("end it", with("cancel")));
    }
    commands.push((
        "this as one file",
        format!("{} > {name}.html", with("report")),
    ));
    commands
}

fn rank_row(rank: &RankStatus) -> RankRow {
    RankRow {
        rank: rank.rank,
        node: rank.node.clone(),
        pid: match rank.pid {
            0 => String::new(),
            pid => pid.to_string(),
        },
        state: rank.state.clone(),
        step: rank
            .last_step
            .map_or_else(String::new, |step| step.to_string()),
        memory: rank.memory_bytes.map_or_else(String::new, words::bytes),
        cpus: rank.cpu_milli.map_or_else(String::new, |milli| {
            format!("{}.{}", milli / 1000, milli / 100 % 10)
        }),
        first_error: rank.first_error.clone(),
    }
}

impl events::Row {
    pub(crate) fn of_severity(severity: EventSeverity) -> &'static str {
        match severity {
            EventSeverity::Warning => "warn",
            _ => "",
        }
    }
}
