//! One line of the table: what is said of how a trace went.

use std::time::Duration;

use serde::Serialize;

use super::{books::Life, play::Played, trace::Trace};

/// Seconds, of the jobs that came within the window.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) trace: &'static str,
    pub(super) load: f64,
    pub(super) who: &'static str,
    /// Jobs that came within the window, and those of any time that ended in it.
    pub(super) came: usize,
    pub(super) ended: usize,
    /// Jobs that never ended.
    pub(super) lost: usize,
    /// From the submission until the first start.
    pub(super) wait: Spread,
    /// The same of jobs with more than one GPU.
    pub(super) wait_of_several: Spread,
    /// The same of elastic jobs.
    pub(super) wait_of_elastic: Spread,
    /// GPUs of the job that waited longest.
    pub(super) longest_wait_gpus: u32,
    /// The longest wait of the jobs with the most GPUs.
    pub(super) largest_wait: f64,
    /// From the submission until the end.
    pub(super) completion: Spread,
    /// GPU time of jobs that run, as a share of all GPU time of the window.
    pub(super) held: f64,
    /// GPU-seconds of work per second and GPU.
    pub(super) work: f64,
    /// Share of the looks at which somebody waited.
    pub(super) somebody_waits: f64,
    pub(super) waiting: f64,
    /// Of the GPUs that were free while somebody waited: those on which the job that had waited longest finds no room for a member.
    pub(super) fragmentation: f64,
    /// GPUs that were free while somebody waited, as a share of all.
    pub(super) free: f64,
    /// Share of the looks at which a job that waited would have found room.
    pub(super) one_would_fit: f64,
    /// Changes of size for each job that is elastic.
    pub(super) reforms: f64,
    pub(super) evictions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) brain: Option<Brain>,
}

/// What deciding cost. The only part that differs between two runs of one seed.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Brain {
    pub(super) turns: usize,
    pub(super) seconds: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Generations that began, per second of deciding.
    pub(super) starts_per_second: f64,
}

impl Spread {
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let place = (seconds.len() * percent / 100).min(seconds.len().saturating_sub(1));
            seconds.get(place).copied().unwrap_or(0.0)
        };
        Self {
            mean: seconds.iter().sum::<f64>() / seconds.len().max(1) as f64,
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
        }
    }
}

pub(super) fn summary(
    (name, load, who): (&'static str, f64, &'static str),
    trace: &Trace,
    played: &Played,
) -> Summary {
    let books = &played.books;
    let both = trace.jobs.iter().zip(&books.lives);
    let counted = both.clone().filter(|(job, _)| job.counts);
    let since = |life: &Life, job: &super::trace::Job, ended: bool| {
        let at = if ended { life.ended } else { life.began };
        at.map(|at| at.since(job.at).as_secs_f64())
    };
    let waits = counted
        .clone()
        .filter_map(|(job, life)| Some((since(life, job, false)?, job.gpus_wanted())));
    let elastic_waits = counted.clone().filter(|(job, _)| job.is_elastic());
    let elastic_waits = elastic_waits.filter_map(|(job, life)| since(life, job, false));
    let all_waits = |least: u32| {
        let these = waits.clone().filter(move |(_, gpus)| *gpus >= least);
        these.map(|(wait, _)| wait).collect::<Vec<f64>>()
    };
    let longest = waits.clone().max_by(|one, other| one.0.total_cmp(&other.0));
    let most = waits.clone().map(|(_, gpus)| gpus).max().unwrap_or(0);
    let completion = counted
        .clone()
        .filter_map(|(job, life)| since(life, job, true));
    let looks = &books.looks;
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let capacity = f64::from(trace.gpus()) * trace.measured();
    let elastic = both.clone().filter(|(job, _)| job.is_elastic());
    let worlds = |life: &Life| life.worlds.saturating_sub(1);
    let reforms: u32 = books.lives.iter().map(worlds).sum();
    let in_window = |life: &Life| life.ended.is_some_and(|at| books.is_measured(at));
    Summary {
        trace: name,
        load,
        who,
        came: counted.clone().count(),
        ended: books.lives.iter().filter(|life| in_window(life)).count(),
        lost: books.lives.iter().filter(|l| l.ended.is_none()).count(),
        wait: Spread::of(all_waits(0)),
        wait_of_several: Spread::of(all_waits(2)),
        wait_of_elastic: Spread::of(elastic_waits.collect()),
        longest_wait_gpus: longest.map_or(0, |(_, gpus)| gpus),
        largest_wait: Spread::of(all_waits(most)).max,
        completion: Spread::of(completion.collect()),
        held: books.held_seconds / capacity,
        work: books.work / capacity,
        somebody_waits: share(looks.somebody_waits.into(), looks.all.into()),
        waiting: share(looks.waiting, looks.all.into()),
        fragmentation: share(looks.fragmented, looks.free),
        free: share(
            looks.free,
            u64::from(looks.somebody_waits) * u64::from(trace.gpus()),
        ),
        one_would_fit: share(looks.one_would_fit.into(), looks.all.into()),
        reforms: f64::from(reforms) / elastic.count().max(1) as f64,
        evictions: books.lives.iter().map(|life| life.evicted).sum(),
        brain: brain(played),
    }
}

fn brain(played: &Played) -> Option<Brain> {
    let mut turns = played.turns.clone();
    turns.sort();
    let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
    let seconds = turns.iter().sum::<Duration>().as_secs_f64();
    let starts: u32 = played.books.lives.iter().map(|life| life.worlds).sum();
    Some(Brain {
        turns: turns.len(),
        seconds,
        p50_ms: ms(turns.get(turns.len() / 2)?),
        p99_ms: ms(turns.get(turns.len() * 99 / 100)?),
        max_ms: ms(turns.last()?),
        starts_per_second: f64::from(starts) / seconds,
    })
}
