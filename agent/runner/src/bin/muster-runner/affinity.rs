//! The CPUs that a rank may use. The variable `MUSTER_RANK_CPUS` holds one list for each local
//! rank, separated by `;`, as `core::nccl::affinity` writes it.
//!
//! Pinning makes a rank faster and never keeps it from starting. A list that cannot be read, or
//! that names no CPU of this node, pins nothing.

use rustix::thread::CpuSet;

/// The variable's name, as core writes it.
pub(crate) const NAME: &str = "MUSTER_RANK_CPUS";

/// A rank prints this on its stderr when it may use none of its CPUs here, as in a container with a
/// cpuset of its own.
pub(crate) const NOT_PINNED: &str =
    "muster: not pinned: none of the CPUs in MUSTER_RANK_CPUS may be used here\n";

/// The CPUs of the rank with this local rank, if its list names any.
pub(crate) fn of(lists: &str, local: u32) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for range in lists.split(';').nth(local as usize)?.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // CPUs beyond the set belong to a larger machine than this call can describe.
        (first..=last.min(CpuSet::MAX_CPU - 1)).for_each(|cpu| cpus.set(cpu));
    }
    (cpus.count() > 0).then_some(cpus)
}

/// The CPUs of all ranks together, if each rank has some. On a node with one rank, a launcher that
/// is kept to these CPUs sizes its thread pools as that rank would if it started by itself.
pub(crate) fn of_all(lists: &str, ranks: u32) -> Option<CpuSet> {
    let mut all = CpuSet::new();
    for local in 0..ranks {
        let own = of(lists, local)?;
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| own.is_set(*cpu))
            .for_each(|cpu| all.set(cpu));
    }
    (ranks > 0).then_some(all)
}

/// The CPUs of [`of`] as numbers, for the launcher: it need not parse lists itself.
pub(crate) fn numbers(lists: &str, local: u32) -> Vec<usize> {
    of(lists, local).map_or_else(Vec::new, |cpus| {
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| cpus.is_set(*cpu))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_list() {
        assert_eq!(numbers("0-2,8;5;;1022-4000", 0), [0, 1, 2, 8]);
        assert_eq!(numbers("0-2,8;5;;1022-4000", 1), [5]);
        assert_eq!(numbers("0-2,8;5;;1022-4000", 3), [1022, 1023]);
        let all: Vec<usize> = (0..16)
            .filter(|cpu| of_all("0-2,8;5", 2).unwrap().is_set(*cpu))
            .collect();
        assert_eq!(all, [0, 1, 2, 5, 8]);
        assert!(of_all("0-2,8;;5", 3).is_none(), "the second is left free");
        for (lists, local) in [
            ("0-2,8;5;;4000", 2),
            ("0-2,8;5;;4000", 3),
            ("0-2", 1),
            ("off", 0),
            ("", 0),
            ("3-1", 0),
            ("0-", 0),
        ] {
            assert!(
                of(lists, local).is_none() && numbers(lists, local).is_empty(),
                "{lists:?} {local}"
            );
        }
    }
}
