//! Compares parts of a whole with limits in percent.
//!
//! Memory, disks and CPUs change all the time. A finding about them begins at its limit and ends a
//! fifth beyond it, so that a value near the limit does not make a report with each change.

use crate::health::{table::Trigger, usage::gib};

/// A known finding ends at this fraction of the limit beyond it: a fifth. That is more than one
/// checkpoint or one batch moves.
const BEYOND: u128 = 5;

/// The rule's limit for people, if `part` of `of` breaks the rule. `known`: it broke the rule in
/// the last look.
pub(super) fn triggered(trigger: Trigger, part: u64, of: u64, known: bool) -> Option<String> {
    if of == 0 {
        return None;
    }
    let (part, of, known) = (u128::from(part), u128::from(of), u128::from(known));
    let less = |part: u128, limit: u128| part * BEYOND < limit * (BEYOND + known);
    let more = |part: u128, limit: u128| part * BEYOND > limit * (BEYOND - known);
    match trigger {
        Trigger::Above(percent) => {
            more(part * 100, of * u128::from(percent)).then(|| format!(": above {percent} %"))
        }
        Trigger::Below(percent) => {
            less(part * 100, of * u128::from(percent)).then(|| format!(": below {percent} %"))
        }
        Trigger::Scarce { percent, bytes } => {
            let scarce = less(part * 100, of * u128::from(percent)) && less(part, bytes.into());
            scarce.then(|| format!(": below {percent} % and below {}", gib(bytes)))
        }
        Trigger::Set | Trigger::Grew { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SCARCE: Trigger = Trigger::Scarce {
        percent: 5,
        bytes: 4 * GIB,
    };

    #[test]
    fn a_little_of_a_large_whole_is_enough() {
        let scarce = |part, of| triggered(SCARCE, part, of, false).is_some();
        assert!(scarce(GIB / 2, 16 * GIB));
        assert!(!scarce(GIB, 16 * GIB), "6 %");
        assert!(!scarce(5 * GIB, 1_024 * GIB), "0.5 %, and 5 GiB");
        assert!(scarce(3 * GIB, 1_024 * GIB));
        assert!(!scarce(0, 0), "of nothing nothing is known");
        assert_eq!(
            triggered(SCARCE, 0, GIB, false).as_deref(),
            Some(": below 5 % and below 4.0 GiB")
        );
    }

    #[test]
    fn what_is_found_stays_until_the_value_is_a_fifth_beyond() {
        let below = |part, known| triggered(Trigger::Below(5), part, 1_000, known).is_some();
        assert_eq!(
            [
                below(49, false),
                below(50, false),
                below(59, true),
                below(60, true)
            ],
            [true, false, true, false]
        );
        let above = |part, known| triggered(Trigger::Above(50), part, 100, known).is_some();
        assert_eq!(
            [
                above(51, false),
                above(50, false),
                above(41, true),
                above(40, true)
            ],
            [true, false, true, false]
        );
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        assert!(triggered(Trigger::Above(50), u64::MAX, u64::MAX, false).is_some());
        assert!(
            triggered(
                Trigger::Scarce {
                    percent: 100,
                    bytes: u64::MAX
                },
                u64::MAX - 1,
                u64::MAX,
                true
            )
            .is_some()
        );
    }
}
