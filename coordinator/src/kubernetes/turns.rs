//! Whose turn it is, so that an object that has always something to do keeps no other waiting.

use std::{collections::BTreeSet, ops::Bound};

use muster_core::id::JobName;

/// The first that is not busy behind the one whose turn it was, else the first of all.
pub(super) fn next(
    waiting: &BTreeSet<JobName>,
    turn: Option<&JobName>,
    is_busy: impl Fn(&JobName) -> bool,
) -> Option<JobName> {
    let behind = turn.map_or(Bound::Unbounded, Bound::Excluded);
    let behind = waiting.range::<JobName, _>((behind, Bound::Unbounded));
    behind.chain(waiting).find(|name| !is_busy(name)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> JobName {
        JobName {
            namespace: "team-a".into(),
            name: name.into(),
        }
    }

    #[test]
    fn each_has_its_turn() {
        let mut waiting: BTreeSet<JobName> = ["a", "b", "c"].map(name).into();
        let mut turn = None;
        let mut order = Vec::new();
        // All wait again at once after each.
        for _ in 0..5 {
            let one = next(&waiting, turn.as_ref(), |_| false).unwrap();
            order.push(one.name.clone());
            turn = Some(one);
        }
        assert_eq!(order, ["a", "b", "c", "a", "b"]);
        assert_eq!(
            next(&waiting, turn.as_ref(), |one| *one == name("c")),
            Some(name("a"))
        );
        waiting.clear();
        assert_eq!(next(&waiting, turn.as_ref(), |_| false), None);
    }
}
