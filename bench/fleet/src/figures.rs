//! Medians, percentiles, and the printed document.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::taken::Taken;

/// A distribution in milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) samples: usize,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The distribution of times in seconds. It uses the nearest rank, so every figure was
    /// measured.
    pub(crate) fn of(seconds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = seconds
            .into_iter()
            .map(|s| (s * 1e5).round() / 1e2)
            .collect();
        all.sort_by(f64::total_cmp);
        let at =
            |share: f64| all[((all.len() as f64 * share).ceil() as usize).clamp(1, all.len()) - 1];
        (!all.is_empty()).then(|| Self {
            samples: all.len(),
            min: at(0.0),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        })
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Rest {
    pub(crate) seconds: f64,
    pub(crate) rss_mib: f64,
    /// Processor seconds of the coordinator per second.
    pub(crate) cores: f64,
}

/// The results of the whole course.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Document {
    pub(crate) agents: usize,
    pub(crate) gpus: u32,
    pub(crate) members: usize,
    pub(crate) flags: Vec<String>,
    /// How members died: `signal 9 (SIGKILL)`, which needs no other evidence, or an exit code, for
    /// which the coordinator waits for more evidence of the same burst.
    pub(crate) death: String,
    /// With TLS: seconds until all agents had got a certificate for a token, 64 at a time, and the
    /// coordinator's processor time for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) join_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) join_cpu_s: Option<f64>,
    /// Seconds until all agents were welcomed. They all dialled at once.
    pub(crate) first_connect_s: f64,
    pub(crate) first_connect_cpu_s: f64,
    pub(crate) idle: Option<Rest>,
    pub(crate) first_start_ms: f64,
    pub(crate) training: Option<Rest>,
    /// The load while every member reports a step five times a second.
    pub(crate) progress: Option<Rest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scraped: Option<Scraped>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pages: Vec<Paged>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read: Option<Read>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flooded: Option<Flooded>,
    /// Milliseconds since a member's exit report was handed to its session, for each thing reached.
    pub(crate) exit: BTreeMap<&'static str, Spread>,
    pub(crate) exit_cpu_ms: f64,
    pub(crate) turns: BTreeMap<&'static str, Spread>,
    pub(crate) rss_after_exits_mib: f64,
    pub(crate) store_mib: f64,
    pub(crate) restarts: Vec<Restart>,
}

/// Scrapes of `/metrics`.
#[derive(Debug, Serialize)]
pub(crate) struct Scraped {
    /// Jobs that trained, with the large one.
    pub(crate) jobs: usize,
    /// The last page.
    pub(crate) bytes: usize,
    pub(crate) series: usize,
    /// Milliseconds of one scrape, with its connection.
    pub(crate) ms: Option<Spread>,
    /// Processor seconds of the coordinator per second meanwhile, heartbeats included.
    pub(crate) cores: f64,
    pub(crate) rss_mib: f64,
}

/// One page of `muster web`, read again and again.
#[derive(Debug, Serialize)]
pub(crate) struct Paged {
    pub(crate) path: &'static str,
    /// Of the last time.
    pub(crate) bytes: usize,
    /// Milliseconds of the first look.
    pub(crate) first_ms: f64,
    /// Milliseconds of one page, with its connection.
    pub(crate) ms: Option<Spread>,
    /// Processor seconds of the coordinator per second meanwhile, heartbeats included.
    pub(crate) cores: f64,
}

/// Pages of `muster web` for many readers at once.
#[derive(Debug, Serialize)]
pub(crate) struct Read {
    pub(crate) readers: usize,
    /// Milliseconds of every look, and of those at each page.
    pub(crate) ms: Option<Spread>,
    pub(crate) pages: Vec<ReadPage>,
    /// The coordinator for as long without readers, and then with them.
    pub(crate) quiet: Meanwhile,
    pub(crate) watched: Meanwhile,
    /// `muster web` itself.
    pub(crate) web: Meanwhile,
}

#[derive(Debug, Serialize)]
pub(crate) struct ReadPage {
    pub(crate) path: &'static str,
    pub(crate) ms: Option<Spread>,
}

/// What a process took in a time, and what it holds at its end.
#[derive(Debug, Serialize)]
pub(crate) struct Meanwhile {
    pub(crate) seconds: f64,
    /// Processor seconds per second.
    pub(crate) cores: f64,
    pub(crate) rss_mib: f64,
    /// The most that it has held since its start.
    pub(crate) peak_mib: f64,
}

impl Meanwhile {
    pub(crate) fn between(before: &Taken, after: &Taken) -> Self {
        let mib = |kib: u64| kib as f64 / 1_024.0;
        Self {
            seconds: (after.at - before.at).as_secs_f64(),
            cores: after.cores_since(before),
            rss_mib: mib(after.rss_kib),
            peak_mib: mib(after.peak_kib),
        }
    }
}

/// While strangers hold connections open.
#[derive(Debug, Serialize)]
pub(crate) struct Flooded {
    pub(crate) strangers: usize,
    /// Their connections that the coordinator held at the end, and all that they opened.
    pub(crate) open: usize,
    pub(crate) opened: usize,
    pub(crate) rest: Rest,
    /// Milliseconds of a user's call, with a new connection for each.
    pub(crate) call: Option<Spread>,
    pub(crate) declared_suspect: usize,
    pub(crate) declared_lost: usize,
    pub(crate) generations_broken: usize,
    pub(crate) welcomed_again: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct Restart {
    /// The time from the start of the new process until it served.
    pub(crate) serving_s: f64,
    /// The time from the kill until every agent was welcomed, and until half of them were.
    pub(crate) all_welcomed_s: f64,
    pub(crate) half_welcomed_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) declared_suspect: usize,
    pub(crate) declared_lost: usize,
    pub(crate) generations_broken: usize,
    pub(crate) welcomed_again: usize,
    pub(crate) rss_mib: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let spread = Spread::of((1..=100).map(|ms| f64::from(ms) / 1e3)).unwrap();
        assert_eq!(
            (spread.min, spread.p50, spread.p99, spread.max),
            (1.0, 50.0, 99.0, 100.0)
        );
        assert!(Spread::of([]).is_none());
        assert_eq!(Spread::of([0.004]).unwrap().p99, 4.0);
    }
}
