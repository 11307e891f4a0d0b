//! Keeps one copy of those parts of node reports that are the same on many machines.
//!
//! Ten thousand nodes of eight GPUs report 1.4 million NVLinks, and all machines of one make report
//! the same ones. That would be 100 MB if each report had its own copy. Shared parts are equal, so
//! only the memory shows the difference.

use std::collections::BTreeSet;

use muster_core::node_report::{NodeReport, gpu::NvLinks};

/// A fleet has a few makes of machines, and some GPUs with error counters of their own.
const KINDS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Interner {
    links: BTreeSet<NvLinks>,
}

impl Interner {
    pub(super) fn share(&mut self, report: &mut NodeReport) {
        for gpu in &mut report.gpus {
            if let Some(same) = self.links.get(&gpu.nvlinks) {
                gpu.nvlinks = same.clone();
                continue;
            }
            if self.links.len() == KINDS_MAX {
                // Reports that share go on sharing. Links that are still common are inserted again.
                self.links.clear();
            }
            self.links.insert(gpu.nvlinks.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::node_report::gpu::{Gpu, NvLink};

    use super::*;

    fn report(errors: u64) -> NodeReport {
        let gpu = || Gpu {
            nvlinks: (0..18)
                .map(|link| NvLink {
                    link,
                    errors,
                    ..NvLink::default()
                })
                .collect(),
            ..Gpu::default()
        };
        NodeReport {
            gpus: vec![gpu(), gpu()],
            ..NodeReport::default()
        }
    }

    #[test]
    fn equal_links_are_kept_once_and_stay_what_they_are() {
        let (mut interner, mut one, mut other) = (Interner::default(), report(0), report(0));
        interner.share(&mut one);
        interner.share(&mut other);
        assert_eq!((&one, &other), (&report(0), &report(0)));
        let places: BTreeSet<_> = one
            .gpus
            .iter()
            .chain(&other.gpus)
            .map(|gpu| gpu.nvlinks.as_ptr())
            .collect();
        assert_eq!(places.len(), 1);
        other.gpus[0].nvlinks.make_mut()[0].errors = 1;
        assert_eq!(one, report(0), "one node's news is not another's");
    }

    #[test]
    fn it_does_not_grow_with_error_counters() {
        let mut interner = Interner::default();
        for errors in 0..1_000 {
            let mut told = report(errors);
            interner.share(&mut told);
            assert_eq!(told, report(errors));
        }
        assert!(interner.links.len() <= KINDS_MAX);
    }
}
