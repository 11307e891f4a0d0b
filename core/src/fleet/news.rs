//! The notices that two states of a record make: as it was before a turn, and as it is after it.

use crate::{
    fleet::{
        budget,
        job::{JobRecord, Phase},
        node_record::NodeRecord,
        notify::{Kind, Notice},
        receipt::{Charged, Incident},
    },
    id::NodeName,
    stall::Stall,
    time::Timestamp,
};

/// What has happened to a job, but for its end.
pub(crate) fn of_job(before: Option<&JobRecord>, after: &JobRecord, now: Timestamp) -> Vec<Notice> {
    let mut news: Vec<Notice> = new_incidents(before, after)
        .filter(|incident| incident.charged == Charged::Node)
        .map(|incident| of_incident(incident, after, now))
        .collect();
    if after.has_launched && before.is_none_or(|before| !before.has_launched) {
        let message = format!("{} has started: {}", after.name, after.message);
        news.push(Notice::of_job(Kind::JobStarted, now, &message, after));
    }
    if let Some(stall) = stall(after).filter(|_| before.and_then(stall).is_none()) {
        news.push(of_stall(stall, after, now));
    }
    let is_half = |job: &JobRecord| half_spent(job);
    if let Some((spent, max)) = is_half(after).filter(|_| before.and_then(is_half).is_none()) {
        let window = crate::period::format(after.spec.restart_policy.window);
        let message = format!(
            "{} has spent {spent} of the {max} restarts that restartPolicy allows in {window}: {}",
            after.name, after.message
        );
        news.push(of_break(Kind::RestartBudgetHalfSpent, &message, after, now));
    }
    let told = |job: &JobRecord| job.told_waiting;
    if let Some(since) = told(after).filter(|since| before.and_then(told) != Some(*since)) {
        let message = format!(
            "{} has waited for {}: {}",
            after.name,
            whole_minutes(now, since),
            after.message
        );
        news.push(Notice::of_job(Kind::JobWaiting, now, &message, after));
    }
    news
}

/// The end of a job that is over. `None`: a user has cancelled it, and knows.
pub(crate) fn of_end(job: &JobRecord) -> Option<Notice> {
    let at = job.finished.filter(|_| job.is_over())?;
    let message = format!("{}: {}", job.name, job.message);
    match job.ending.as_ref()?.phase {
        Phase::Failed => Some(of_break(Kind::JobFailed, &message, job, at)),
        Phase::Succeeded => Some(Notice::of_job(Kind::JobSucceeded, at, &message, job)),
        _ => None,
    }
}

/// A node that has been cordoned, by Muster or by a person.
pub(crate) fn of_node(
    before: Option<&NodeRecord>,
    after: &NodeRecord,
    now: Timestamp,
) -> Option<Notice> {
    let was = before.is_some_and(|before| before.cordon.is_some());
    let cordon = after.cordon.as_ref().filter(|_| !was)?;
    let (name, by) = (&after.name, &cordon.by);
    let message = format!("{name} was cordoned by {by}: {}", cordon.reason);
    Some(Notice {
        node: Some(name.clone()),
        ..Notice::new(Kind::NodeCordoned, now, &message)
    })
}

fn new_incidents<'a>(
    before: Option<&JobRecord>,
    after: &'a JobRecord,
) -> impl Iterator<Item = &'a Incident> {
    let known = before.map_or(0, count);
    let new = count(after).saturating_sub(known) as usize;
    let old = after.incidents.len().saturating_sub(new);
    after.incidents[old..].iter()
}

fn count(job: &JobRecord) -> u64 {
    u64::from(job.incidents_dropped) + job.incidents.len() as u64
}

fn stall(job: &JobRecord) -> Option<&Stall> {
    job.current.as_ref()?.stall.as_deref()
}

/// How many restarts are spent, and of how many, if that is half or more. With a single one there is no half.
fn half_spent(job: &JobRecord) -> Option<(u32, u32)> {
    let max = job.spec.restart_policy.max_restarts;
    let spent = budget::charged(job);
    (max >= 2 && spent >= max.div_ceil(2) && !job.ends()).then_some((spent, max))
}

fn of_incident(incident: &Incident, job: &JobRecord, now: Timestamp) -> Notice {
    let said = error_of(incident.culprit.as_deref(), job);
    Notice {
        node: incident.node.clone(),
        generation: incident.from,
        culprit: incident.culprit.clone(),
        cause: Some(format!("{:?}", incident.cause)),
        ..Notice::of_job(Kind::NodeFailed, now, &incident.message, job).with_error(said, job)
    }
}

fn of_stall(stall: &Stall, job: &JobRecord, now: Timestamp) -> Notice {
    let message = format!("{}: {}", job.name, stall.sentence());
    let named = stall.named.first();
    Notice {
        node: named.map(|named| named.node.clone()),
        culprit: named.map(|named| format!("rank {} on {}", named.rank, named.node)),
        cause: Some("Stalled".into()),
        ..Notice::of_job(Kind::JobStalled, now, &message, job)
    }
}

/// What a job's last failure has led to.
fn of_break(kind: Kind, message: &str, job: &JobRecord, at: Timestamp) -> Notice {
    let last = job.incidents.iter().rev();
    let last = last
        .into_iter()
        .find(|incident| incident.cause.is_failure());
    let culprit = last.and_then(|incident| incident.culprit.as_deref());
    let notice = Notice::of_job(kind, at, message, job);
    Notice {
        node: last.and_then(|incident| incident.node.clone()),
        culprit: culprit.map(str::to_owned),
        cause: last.map(|incident| format!("{:?}", incident.cause)),
        ..notice.with_error(error_of(culprit, job), job)
    }
}

/// What the culprit, `rank 3 on b`, has printed as its error.
fn error_of<'a>(culprit: Option<&str>, job: &'a JobRecord) -> Option<&'a str> {
    let (rank, node) = culprit?.strip_prefix("rank ")?.split_once(" on ")?;
    let (rank, node) = (rank.parse::<u32>().ok()?, NodeName::from(node));
    let generations = job.current.iter().chain(job.retiring.iter().rev());
    let mut ends = generations.chain(job.history.iter().rev());
    ends.find_map(|generation| {
        let ranks = &generation.ends.get(&node)?.ranks;
        ranks
            .iter()
            .find(|one| one.rank == rank)?
            .first_error
            .as_deref()
    })
}

fn whole_minutes(now: Timestamp, since: Timestamp) -> String {
    let minutes = now.since(since).as_secs() / 60;
    match minutes {
        0 => crate::period::format(now.since(since)),
        minutes => crate::period::format(std::time::Duration::from_secs(minutes * 60)),
    }
}
