//! When a job may start, and in which queue it waits: the words of `sbatch --dependency` and `--begin`.

use std::time::Duration;

use clap::Args;
use muster_core::{
    period,
    spec::{AfterDocument, SpecDocument},
    time::Timestamp,
};

#[derive(Debug, Default, Args)]
pub(super) struct StartsWhen {
    /// Start only when this job of the namespace has ended: succeeded, failed or ended in any way, as
    /// prepare or prepare:ended (repeatable; all must hold). If it ends otherwise, the job fails
    /// [default: succeeded]
    #[arg(long, value_name = "JOB[:CONDITION]")]
    after: Vec<String>,

    /// Start not before this time, as 2026-11-30T18:00:00Z, or not before this period is over, as 2h
    #[arg(long, alias = "start_after", value_name = "TIME", value_parser = read_time)]
    start_after: Option<Time>,

    /// The queue whose quota the job uses, if the operator has made several for its namespace
    /// [default: the first of them]
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Time {
    /// So long after now.
    In(Duration),
    /// As it is written. It is checked with the document.
    At(String),
}

/// A time has a `-`, which no period has.
fn read_time(text: &str) -> Result<Time, String> {
    if text.contains('-') {
        return Ok(Time::At(text.to_owned()));
    }
    period::parse(text).map(Time::In).map_err(|_| {
        format!(
            "{text:?} is neither a period nor a time; write for example 2h or 2026-11-30T18:00:00Z"
        )
    })
}

impl StartsWhen {
    /// Writes it into a document.
    pub(super) fn write(&self, spec: &mut SpecDocument, now_us: u64) {
        spec.queue.clone_from(&self.queue);
        spec.after = self
            .after
            .iter()
            .map(|one| AfterDocument::read(one))
            .collect();
        spec.start_after = self.start_after.as_ref().map(|time| match time {
            Time::In(period) => (Timestamp(now_us) + *period).rfc3339_seconds(),
            Time::At(time) => time.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(after: &[&str], time: Option<&str>) -> SpecDocument {
        let args = StartsWhen {
            after: after.iter().map(ToString::to_string).collect(),
            start_after: time.map(|time| read_time(time).unwrap()),
            queue: None,
        };
        let mut spec = SpecDocument::default();
        args.write(&mut spec, 7_000_000);
        spec
    }

    #[test]
    fn a_period_begins_now_and_a_time_is_left_to_the_check() {
        let time = |text| written(&[], Some(text)).start_after.unwrap();
        assert_eq!(time("1m"), "1970-01-01T00:01:07Z");
        assert_eq!(
            time("2026-11-30T18:00:00+01:00"),
            "2026-11-30T18:00:00+01:00"
        );
        assert!(
            read_time("tomorrow")
                .unwrap_err()
                .contains("neither a period")
        );
    }

    #[test]
    fn a_condition_follows_the_name() {
        let after = written(&["prepare", "check:failed"], None).after;
        assert_eq!(
            (after[0].job.as_str(), after[0].condition.as_deref()),
            ("prepare", None)
        );
        assert_eq!(
            (after[1].job.as_str(), after[1].condition.as_deref()),
            ("check", Some("failed"))
        );
    }
}
