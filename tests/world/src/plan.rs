//! What kind of world a seed makes: how large, how busy, and which faults it knows.
//!
//! A seed has a random half of the faults, not all: faults that hide each other are met apart as well (swarm testing, Groce and others, 2012).

use std::time::Duration;

use crate::{fault::Fault, rng::Rng};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) machines: usize,
    pub(crate) slots: u32,
    /// GPUs per machine; zero for none.
    pub(crate) gpus: u32,
    pub(crate) jobs: usize,
    pub(crate) faults: Vec<Fault>,
    /// Mean time between two faults.
    pub(crate) fault_gap: Duration,
    pub(crate) user_gap: Duration,
    /// How long faults and users go on.
    pub(crate) trouble: Duration,
    /// One way between agent and coordinator, at most, in ms.
    pub(crate) delay_ms: u64,
    /// From a start to the workers, at most, in ms.
    pub(crate) launch_ms: u64,
    pub(crate) step_ms: u64,
    /// How often a level is delivered twice, in percent, where that happens at all.
    pub(crate) duplicate_percent: u64,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        // Small worlds find most, and fastest; a few are large enough for what only a crowd does.
        let machines = match rng.below(100) {
            0 => rng.range(20, 40),
            1..=10 => rng.range(7, 12),
            _ => rng.range(1, 6),
        } as usize;
        let faults: Vec<Fault> = Fault::ALL.into_iter().filter(|_| rng.percent(50)).collect();
        let trouble = rng.ms(20_000, 90_000);
        Self {
            machines,
            slots: if rng.percent(25) { 2 } else { 1 },
            gpus: if rng.percent(30) { rng.range(1, 4) as u32 } else { 0 },
            jobs: rng.range(1, 4) as usize,
            faults,
            fault_gap: rng.ms(400, 8_000),
            user_gap: rng.ms(1_000, 20_000),
            trouble,
            delay_ms: *rng.pick(&[2, 10, 80, 400]).expect("there are four"),
            launch_ms: *rng.pick(&[50, 500, 3_000]).expect("there are three"),
            step_ms: *rng.pick(&[200, 500, 1_200]).expect("there are three"),
            duplicate_percent: 10,
        }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}
