//! Who may read logs when as many are read as a node can bear. The rule only; the parent module does it.
//!
//! As long as there is room, one job may have all of it. When there is none, a job that has fewer reads
//! than another one gets a place of that one. So nobody is locked out by those who came earlier, and
//! nobody is bounded while the others need nothing.

use muster_core::id::JobUid;

/// How many reads may run at a time: every rank of the largest node, followed twice. Each is a task with
/// an open file, and holds up to 200 KiB while it reads. Most systems let a process open 1,024 files.
pub(super) const READS_MAX: usize = 520;

/// What becomes of a read that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// There is room.
    Yes,
    /// It takes the place of this one.
    InsteadOf(u64),
    /// No job has more reads than this one has.
    No,
}

/// Decides about a read for `job`. `open` are the reads that go on, with their numbers, which grow.
pub(super) fn admit<'a>(
    open: impl Iterator<Item = (u64, &'a JobUid)>,
    job: &JobUid,
    most: usize,
) -> Admission {
    let mut by_job: Vec<(&JobUid, Vec<u64>)> = Vec::new();
    let mut count = 0;
    for (id, of) in open {
        count += 1;
        match by_job.iter_mut().find(|(known, _)| *known == of) {
            Some((_, ids)) => ids.push(id),
            None => by_job.push((of, vec![id])),
        }
    }
    if count < most {
        return Admission::Yes;
    }
    let own = { by_job.iter() }
        .find(|(of, _)| *of == job)
        .map_or(0, |(_, ids)| ids.len());
    let largest = by_job.iter().max_by_key(|(_, ids)| ids.len());
    // With one more than this job has, the two would only change places for ever.
    match largest.filter(|(_, ids)| ids.len() > own + 1) {
        Some((_, ids)) => {
            let newest = ids.iter().max().expect("it has more than one");
            Admission::InsteadOf(*newest)
        }
        None => Admission::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes reads in this order, and returns how many each job has in the end.
    fn taken(asked: &[(&str, usize)], most: usize) -> Vec<usize> {
        let mut open: Vec<(u64, JobUid)> = Vec::new();
        let mut id = 0;
        for (job, count) in asked {
            for _ in 0..*count {
                id += 1;
                let job = JobUid::from(*job);
                match admit(open.iter().map(|(id, job)| (*id, job)), &job, most) {
                    Admission::Yes => open.push((id, job)),
                    Admission::InsteadOf(gone) => {
                        open.retain(|(id, _)| *id != gone);
                        open.push((id, job));
                    }
                    Admission::No => {}
                }
                assert!(open.len() <= most);
            }
        }
        let of = |job: &str| open.iter().filter(|(_, of)| of.as_str() == job).count();
        asked.iter().map(|(job, _)| of(job)).collect()
    }

    #[test]
    fn one_job_may_have_all_and_gives_way_to_another() {
        assert_eq!(taken(&[("a", 9)], 8), [8]);
        assert_eq!(taken(&[("a", 8), ("b", 1)], 8), [7, 1]);
        assert_eq!(taken(&[("a", 8), ("b", 9)], 8), [4, 4]);
        assert_eq!(taken(&[("a", 8), ("b", 8), ("c", 8)], 8), [3, 3, 2]);
        let many: Vec<String> = (0..9).map(|job| job.to_string()).collect();
        let many: Vec<(&str, usize)> = many.iter().map(|job| (job.as_str(), 8)).collect();
        assert_eq!(taken(&many, 8), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn what_began_last_goes_first() {
        let (a, b) = (JobUid::from("a"), JobUid::from("b"));
        let open = [(4, &a), (9, &a), (6, &a), (7, &b)];
        assert_eq!(admit(open.into_iter(), &b, 4), Admission::InsteadOf(9));
        assert_eq!(admit(open.into_iter(), &a, 4), Admission::No);
        assert_eq!(admit(open.into_iter(), &a, 5), Admission::Yes);
    }

    #[test]
    fn every_rank_of_the_largest_node_can_be_followed_twice() {
        let ranks = muster_runner::wire::MAX_RANKS as usize;
        assert!(READS_MAX >= 2 * (ranks + 1));
    }
}
