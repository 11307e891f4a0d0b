//! The CPUs a rank is kept to: `MUSTER_RANK_CPUS`, one list for each local rank with `;` between
//! them, as `core::nccl::affinity` writes it.
//!
//! It makes a rank faster and never keeps it from starting: a list that cannot be read, or names no
//! CPU this node lets us use, pins nothing.

use rustix::thread::CpuSet;

/// As core names it.
pub(crate) const NAME: &str = "MUSTER_RANK_CPUS";

/// Said on the stderr of a rank none of whose CPUs may be used here, as in a container with a
/// cpuset of its own.
pub(crate) const NOT_PINNED: &str =
    "muster: not pinned: none of the CPUs in MUSTER_RANK_CPUS may be used here\n";

/// The CPUs of the rank with this local rank, if there are any.
pub(crate) fn of(lists: &str, local: u32) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for range in lists.split(';').nth(local as usize)?.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // Those beyond are of a machine larger than this call's set.
        (first..=last.min(CpuSet::MAX_CPU - 1)).for_each(|cpu| cpus.set(cpu));
    }
    (cpus.count() > 0).then_some(cpus)
}

/// The CPUs of all ranks together, if each of them has some: a launcher that is kept to them sizes
/// its pools of threads as the only rank of a node would, started by itself.
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

/// The same one by one, for the launcher: lists are read here and nowhere else.
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
