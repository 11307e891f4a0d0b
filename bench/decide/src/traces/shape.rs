//! What is known of two clusters: their nodes, how many GPUs jobs ask for, and how long they run.
//!
//! Run times of Philly are quantiles of the 83,154 in `philly_runtime.csv` of alibaba/clusterdata, and all of openb is counted from the pod
//! and node lists there (commit 7a6c496). Both tables say nothing of jobs below the first quantile and above the last one that is named;
//! the shortest run time is our assumption.

use super::run_times::RunTimes;

/// Jobs that ask for so many GPUs.
pub(super) struct Size {
    pub(super) gpus: u32,
    /// Their share among jobs, in any unit.
    pub(super) share: f64,
    pub(super) run_times: RunTimes,
}

/// A cluster and its jobs.
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// GPUs of a node, and how many such nodes there are, in any unit.
    nodes: &'static [(u32, u32)],
    pub(super) sizes: &'static [Size],
}

const PHILLY_RUN_TIMES: RunTimes = RunTimes(&[
    (0.0, 10.0),
    (0.01, 17.0),
    (0.05, 48.0),
    (0.10, 61.0),
    (0.25, 131.0),
    (0.50, 1_186.0),
    (0.75, 3_342.0),
    (0.90, 12_860.0),
    (0.95, 49_969.0),
    (0.99, 287_333.0),
    (0.999, 1_360_000.0),
]);

const OPENB_RUN_TIMES: RunTimes = RunTimes(&[
    (0.0, 10.0),
    (0.25, 175.0),
    (0.50, 616.0),
    (0.75, 2_246.0),
    (0.90, 7_764.0),
    (0.95, 18_162.0),
    (0.99, 114_715.0),
]);

/// Of pods with 8 GPUs.
const OPENB_RUN_TIMES_OF_8: RunTimes = RunTimes(&[
    (0.0, 10.0),
    (0.50, 553.0),
    (0.75, 17_759.0),
    (0.90, 101_998.0),
    (1.0, 114_715.0),
]);

const fn size(gpus: u32, share: f64, run_times: RunTimes) -> Size {
    Size {
        gpus,
        share,
        run_times,
    }
}

/// 80 to 87 % of Philly's jobs ask for one GPU. How the others divide is our assumption: the table of run times does not say it, and so
/// all sizes run equally long here.
pub(super) const PHILLY: Shape = Shape {
    name: "philly",
    nodes: &[(8, 1)],
    sizes: &[
        size(1, 84.0, PHILLY_RUN_TIMES),
        size(2, 5.0, PHILLY_RUN_TIMES),
        size(4, 4.0, PHILLY_RUN_TIMES),
        size(8, 4.0, PHILLY_RUN_TIMES),
        size(16, 2.0, PHILLY_RUN_TIMES),
        size(32, 0.7, PHILLY_RUN_TIMES),
        size(64, 0.3, PHILLY_RUN_TIMES),
    ],
};

/// Pods without a GPU are left out. Muster has no parts of a GPU, so the 44 % of the one-GPU pods that ask for a part get a whole one.
/// There are no gangs of several pods in this trace.
pub(super) const OPENB: Shape = Shape {
    name: "openb",
    nodes: &[(8, 617), (4, 54), (2, 518), (1, 24)],
    sizes: &[
        size(1, 6_989.0, OPENB_RUN_TIMES),
        size(2, 16.0, OPENB_RUN_TIMES),
        size(4, 15.0, OPENB_RUN_TIMES),
        size(8, 44.0, OPENB_RUN_TIMES_OF_8),
    ],
};

impl Shape {
    /// The GPUs of so many nodes. Kinds of nodes alternate in proportion to their numbers.
    pub(super) fn fleet(&self, nodes: usize) -> Vec<u32> {
        let all: u32 = self.nodes.iter().map(|(_, count)| count).sum();
        let mut given = vec![0_u64; self.nodes.len()];
        let next = |number: u64| {
            let owed = |kind: usize| {
                let due = u64::from(self.nodes[kind].1) * (number + 1);
                due as i64 - (given[kind] * u64::from(all)) as i64
            };
            let kind = (0..self.nodes.len())
                .rev()
                .max_by_key(|kind| owed(*kind))
                .expect("there are nodes");
            given[kind] += 1;
            self.nodes[kind].0
        };
        (0..nodes as u64).map(next).collect()
    }

    /// GPU-seconds of a job, in the mean.
    pub(super) fn mean_work(&self) -> f64 {
        let all: f64 = self.sizes.iter().map(|size| size.share).sum();
        self.sizes.iter().map(Size::held).sum::<f64>() / all
    }
}

impl Size {
    /// GPU-seconds of these jobs, in the unit of their share.
    pub(super) fn held(&self) -> f64 {
        self.share * f64::from(self.gpus) * self.run_times.mean()
    }

    /// How many of them run at a time, in proportion to those of other sizes.
    pub(super) fn running(&self) -> f64 {
        self.share * self.run_times.mean()
    }
}
