//! Which ranks the kernel has killed for want of memory.

use std::collections::BTreeMap;

use muster_runner::oom::Kills;
use muster_runner::wire::{Exit, OUT_OF_MEMORY};

/// The kills that each cgroup of a rank had when they were last looked at.
#[derive(Default)]
pub(crate) struct Memory {
    known: BTreeMap<u32, Kills>,
    counts: Vec<(Kills, u64)>,
}

impl Memory {
    /// A rank has started as this process.
    pub(crate) fn started(&mut self, rank: u32, pid: i32) {
        let Some(kills) = Kills::of(pid) else {
            self.known.remove(&rank);
            return;
        };
        if self.counts.iter().all(|(known, _)| *known != kills) {
            let Some(count) = kills.count() else { return };
            self.counts.push((kills.clone(), count));
        }
        self.known.insert(rank, kills);
    }

    /// Why a rank was killed, if the kernel did it. Each kill that the kernel has counted since explains
    /// one rank.
    pub(crate) fn reason(&mut self, rank: u32, exit: Exit) -> Option<String> {
        let killed = Exit::Signal {
            signal: libc::SIGKILL,
            core: false,
        };
        if exit != killed {
            return None;
        }
        let kills = self.known.get(&rank)?;
        let (_, known) = self.counts.iter_mut().find(|(known, _)| known == kills)?;
        if kills.count()? <= *known {
            return None;
        }
        *known += 1;
        Some(format!(
            "{OUT_OF_MEMORY}the kernel killed it, as its cgroup {} has counted",
            kills.cgroup().display()
        ))
    }
}
