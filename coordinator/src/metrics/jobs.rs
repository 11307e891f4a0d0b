//! The metrics of jobs, from what the engine has published of them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::{
        account,
        job::{JobRecord, Phase, Stage},
        time_account::{Spent, State, goodput},
        view::JobView,
    },
    id::{JobUid, NodeName},
    time::Timestamp,
};

use super::{
    catalogue::Family,
    text::{Number, Page},
};

/// How many jobs have metrics of their own. Each has some 35 series of 130 bytes, so 2,000 make 9 MB.
const JOBS_MAX: usize = 2_000;

/// For how long a job that is over still has them, so that the last scrape sees its end.
const OVER_FOR: Duration = Duration::from_secs(15 * 60);

/// What one counter last showed. A break is dated back, so time that was shown as training may turn out to be
/// lost. A counter that fell would be taken for one that began anew, so it stands still until it is true again.
#[derive(Debug, Default)]
pub(super) struct Shown(BTreeMap<JobUid, BTreeMap<(Family, String), f64>>);

impl Shown {
    fn risen(&mut self, job: &JobUid, family: Family, label: &str, value: f64) -> f64 {
        let shown = self.0.entry(job.clone()).or_default();
        let before = shown.entry((family, label.to_owned())).or_default();
        *before = before.max(value);
        *before
    }

    fn forget_others(&mut self, jobs: &BTreeSet<&JobUid>) {
        self.0.retain(|job, _| jobs.contains(job));
    }
}

/// The GPUs that jobs hold, by node and UUID.
pub(super) type Held<'a> = BTreeMap<&'a NodeName, BTreeSet<&'a str>>;

/// What jobs hold. A share is held until it is proven dead.
pub(super) fn held(jobs: &[Arc<JobView>]) -> Held<'_> {
    let mut held = Held::new();
    let generations = jobs
        .iter()
        .flat_map(|job| job.record.unproven_generations());
    for generation in generations {
        let alive = generation.members.iter();
        for member in alive.filter(|member| !generation.dead.contains(&member.node)) {
            let gpus = member.gpus.iter().map(String::as_str);
            held.entry(&member.node).or_default().extend(gpus);
        }
    }
    held
}

pub(super) fn put(page: &mut Page, jobs: &[Arc<JobView>], shown: &mut Shown, now: Timestamp) {
    let mut by_phase: BTreeMap<(&str, Phase), u64> = BTreeMap::new();
    for job in jobs {
        let JobRecord { name, phase, .. } = &job.record;
        *by_phase.entry((&name.namespace, *phase)).or_default() += 1;
    }
    for ((namespace, phase), count) in by_phase {
        page.put(Family::Jobs, &[namespace, &format!("{phase:?}")], count);
    }
    pending(page, jobs, now);
    let is_shown = |job: &&Arc<JobView>| {
        let finished = job.record.finished;
        finished.is_none_or(|at| now.since(at) < OVER_FOR)
    };
    let mut each: Vec<&Arc<JobView>> = jobs.iter().filter(is_shown).collect();
    let wanted = |job: &JobRecord| job.replicas.saturating_mul(job.spec.gpus_per_node.max(1));
    each.sort_by_key(|job| (Reverse(wanted(&job.record)), job.record.created));
    let omitted = each.len().saturating_sub(JOBS_MAX);
    each.truncate(JOBS_MAX);
    page.put(Family::Omitted, &["jobs"], omitted);
    shown.forget_others(&each.iter().map(|job| &job.record.uid).collect());
    for job in each {
        put_one(page, job, shown, now);
    }
}

/// Jobs that have no generation, although nobody holds them back.
fn pending(page: &mut Page, jobs: &[Arc<JobView>], now: Timestamp) {
    let (mut reasons, mut gpus, mut oldest) = (BTreeMap::<String, u64>::new(), 0, Duration::ZERO);
    let waits = |job: &&Arc<JobView>| {
        let record = &job.record;
        let held = record.suspended || !record.is_eligible();
        matches!(record.stage(), Stage::Waiting(_)) && !held
    };
    for job in jobs.iter().filter(waits) {
        let record = &job.record;
        let lacks = job.shortage.map(|word| word.to_string());
        *reasons
            .entry(lacks.unwrap_or_else(|| record.reason.to_string()))
            .or_default() += 1;
        gpus += u64::from(record.replicas) * u64::from(record.spec.gpus_per_node);
        let open = record.time.as_ref().and_then(|account| account.open);
        let since = open.map_or(record.created, |open| open.since);
        oldest = oldest.max(now.since(since.max(record.counts_since())));
    }
    for (reason, count) in &reasons {
        page.put(Family::PendingJobs, &[reason], *count);
    }
    page.put(Family::PendingGpus, &[], gpus);
    page.put(Family::PendingOldest, &[], oldest);
}

fn put_one(page: &mut Page, job: &JobView, shown: &mut Shown, now: Timestamp) {
    let record = &job.record;
    let (namespace, name) = (&*record.name.namespace, &*record.name.name);
    let uid = record.uid.to_string();
    page.put(Family::JobInfo, &[namespace, name, &uid], 1_u64);
    let (phase, reason) = (format!("{:?}", record.phase), record.reason.to_string());
    page.put(Family::JobPhase, &[namespace, name, &phase, &reason], 1_u64);
    let current = record.current.as_ref();
    let open = record.time.as_ref().and_then(|account| account.open);
    let stalled = current.is_some_and(|own| own.stall.is_some());
    let slow = current.and_then(|own| own.slow.as_ref());
    let slow = slow.map_or(0, |slow| slow.ranks.len() as u64);
    let own: [(Family, Option<Number>); 13] = [
        (
            Family::JobCreated,
            Some((record.created.0 as f64 / 1e6).into()),
        ),
        (Family::JobNodes, Some(job.nodes_running.into())),
        (Family::JobNodesWanted, Some(record.replicas.into())),
        (Family::JobNodesMin, Some(record.spec.min_replicas.into())),
        (
            Family::JobWorldSize,
            Some(current.map_or(0, |own| own.world_size()).into()),
        ),
        (
            Family::JobGpus,
            Some(open.map_or(0, |open| open.gpus).into()),
        ),
        (Family::JobStep, job.last_step.map(Number::from)),
        (
            Family::JobStepDuration,
            job.steps.step_time.map(Number::from),
        ),
        (Family::JobStalled, Some(u64::from(stalled).into())),
        (Family::JobSlowRanks, Some(slow.into())),
        (
            Family::JobGenerations,
            Some(record.last_generation.0.into()),
        ),
        (Family::JobRestarts, Some(record.restart_count.into())),
        (Family::JobGoodput, ratio(job, now).map(Number::from)),
    ];
    for (family, value) in own {
        if let Some(value) = value {
            page.put(family, &[namespace, name], value);
        }
    }
    for (cause, lost) in account::lost(record, now) {
        let labels = [namespace, name, &*format!("{cause:?}")];
        page.put(Family::JobIncidents, &labels, lost.incidents);
    }
    for ((family, label), time) in sums(&spent(job, now)) {
        let time = shown.risen(&record.uid, family, &label, time.as_secs_f64());
        page.put(family, &[namespace, name, &label], time);
    }
}

fn spent(job: &JobView, now: Timestamp) -> Vec<Spent> {
    let account = job.record.time.as_ref();
    account.map_or(Vec::new(), |account| account.until(now, job.doubted_since))
}

fn ratio(job: &JobView, now: Timestamp) -> Option<f64> {
    goodput(&spent(job, now))
}

/// The account's sums as the counters have them. What is doubted is in none.
fn sums(spent: &[Spent]) -> BTreeMap<(Family, String), Duration> {
    let mut sums: BTreeMap<(Family, String), Duration> = BTreeMap::new();
    for row in spent.iter().filter(|row| row.state != State::Doubted) {
        let state = row.state.name().to_owned();
        let cause = row.state.cause().map(|cause| format!("{cause:?}"));
        let lost = cause.map(|cause| (Family::JobLost, cause, row.time));
        let of_state = [
            (Family::JobState, state.clone(), row.time),
            (Family::JobGpuState, state, row.gpu_time),
        ];
        for (family, label, time) in of_state.into_iter().chain(lost) {
            *sums.entry((family, label)).or_default() += time;
        }
    }
    sums
}
