//! What many jobs have cost together, by one of their words.

use std::collections::BTreeMap;

use crate::{fleet::history::record::Sum, id::JobName};

/// By which word jobs are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Owner,
    Namespace,
    /// The node that a loss is due to. Its sums have losses only.
    Node,
    /// The cause of a loss. Its sums have losses only.
    Cause,
}

/// What the sums need of one record.
#[derive(Clone, Debug)]
pub struct Who {
    pub name: JobName,
    pub owner: String,
    pub failed: bool,
    /// As the record has them.
    pub states: BTreeMap<String, Sum>,
    pub lost: BTreeMap<String, Sum>,
    /// Nodes, and what each has cost.
    pub culprits: Vec<(String, Sum)>,
}

impl Who {
    fn lost(&self) -> Sum {
        self.lost.values().fold(Sum::default(), Sum::plus)
    }
}

/// The sums of one owner, namespace, node or cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub name: String,
    /// Jobs that it is in.
    pub jobs: u32,
    /// Those of them that failed.
    pub failed: u32,
    /// All time that was counted, from submission to end.
    pub life: Sum,
    /// Time since the first generation was decided: all but the time in the queue.
    pub known: Sum,
    pub training: Sum,
    pub lost: Sum,
}

impl Total {
    /// The share of its time in which new steps were made, as [`goodput`](crate::fleet::time_account::goodput) of
    /// one job. `None`: there was no such time.
    pub fn goodput(&self) -> Option<f64> {
        let known = self.known.time;
        let training = self.training.time.as_secs_f64();
        (!known.is_zero()).then(|| training / known.as_secs_f64())
    }
}

/// The sums of these jobs, the dearest first: by GPU time, then by time. By node and by cause what counts is
/// the loss. What is due to no node that is known has no name.
pub fn totals<'a>(records: impl IntoIterator<Item = &'a Who>, by: By) -> Vec<Total> {
    let mut all: BTreeMap<String, Total> = BTreeMap::new();
    for record in records {
        let failed = u32::from(record.failed);
        let mut lose = |name: &str, lost: Sum| {
            let total = all.entry(name.to_owned()).or_default();
            total.jobs += 1;
            total.failed += failed;
            total.lost = total.lost.plus(&lost);
        };
        match by {
            By::Owner => count(&mut all, record.owner.clone(), record, failed),
            By::Namespace => count(&mut all, record.name.namespace.clone(), record, failed),
            By::Cause => record
                .lost
                .iter()
                .for_each(|(cause, sum)| lose(cause, *sum)),
            By::Node => {
                let mut rest = record.lost();
                for (node, cost) in &record.culprits {
                    lose(node, *cost);
                    rest.time = rest.time.saturating_sub(cost.time);
                    rest.gpu_time = rest.gpu_time.saturating_sub(cost.gpu_time);
                }
                if rest != Sum::default() {
                    lose("", rest);
                }
            }
        }
    }
    let mut all: Vec<Total> = all
        .into_iter()
        .map(|(name, total)| Total { name, ..total })
        .collect();
    let dear = |total: &Total| {
        (
            total.life.gpu_time.max(total.lost.gpu_time),
            total.life.time.max(total.lost.time),
        )
    };
    // The sort is stable, so equal ones are in the order of their names.
    all.sort_by_key(|total| std::cmp::Reverse(dear(total)));
    all
}

fn count(all: &mut BTreeMap<String, Total>, name: String, record: &Who, failed: u32) {
    let total = all.entry(name).or_default();
    total.jobs += 1;
    total.failed += failed;
    total.life = record.states.values().fold(total.life, Sum::plus);
    let known = record
        .states
        .iter()
        .filter(|(state, _)| !matches!(state.as_str(), "queued" | "doubted"));
    total.known = known.fold(total.known, |sum, (_, more)| sum.plus(more));
    let training = record.states.get("training").copied();
    total.training = total.training.plus(&training.unwrap_or_default());
    total.lost = total.lost.plus(&record.lost());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sum(seconds: u64, gpus: u32) -> Sum {
        let time = Duration::from_secs(seconds);
        Sum {
            time,
            gpu_time: time * gpus,
        }
    }

    /// A job of so many GPUs that trained for a minute, and lost some seconds, `bad` being the culprit of
    /// half of them.
    fn left(owner: &str, gpus: u32, lost: u64, bad: &str) -> Who {
        let states = [
            ("queued", sum(30, 0)),
            ("training", sum(60, gpus)),
            ("recovering", sum(lost, gpus)),
        ];
        let named = |(name, sum): (&str, Sum)| (name.to_owned(), sum);
        Who {
            name: JobName {
                namespace: "default".into(),
                name: "digits".into(),
            },
            owner: owner.into(),
            failed: true,
            states: states.map(named).into(),
            lost: [named(("NodeLost", sum(lost, gpus)))].into(),
            culprits: vec![named((bad, sum(lost / 2, gpus)))],
        }
    }

    #[test]
    fn one_table_says_who_cost_most() {
        let all = [
            left("ann", 8, 20, "n7"),
            left("ann", 1, 40, "n8"),
            left("bob", 64, 4, "n7"),
        ];
        let by = |by| totals(&all, by);
        let names = |totals: &[Total]| -> Vec<String> {
            totals.iter().map(|total| total.name.clone()).collect()
        };
        let owners = by(By::Owner);
        assert_eq!(names(&owners), ["bob", "ann"], "by GPU time");
        assert_eq!((owners[1].jobs, owners[1].failed), (2, 2));
        assert_eq!(owners[1].life.time, Duration::from_secs(240));
        assert_eq!(
            owners[1].goodput(),
            Some(120.0 / 180.0),
            "the queue does not count"
        );
        let nodes = by(By::Node);
        assert_eq!(names(&nodes), ["", "n7", "n8"], "half of it is nobody's");
        assert_eq!(nodes[1].lost, sum(10, 8).plus(&sum(2, 64)));
        // What is lost is the same, however it is divided.
        let lost = |totals: &[Total]| {
            totals
                .iter()
                .fold(Sum::default(), |sum, one| sum.plus(&one.lost))
        };
        for other in [By::Namespace, By::Cause, By::Node] {
            assert_eq!(lost(&by(other)), lost(&owners), "{other:?}");
        }
    }
}
