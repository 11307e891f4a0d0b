//! Whether anything sets this machine's clock, according to the kernel. This only asks and never
//! changes the clock.
#![allow(unsafe_code, reason = "neither std nor rustix has adjtimex")]

use super::roots::Roots;

/// The clock's largest error, in microseconds, that the kernel assumes if nothing tells it better
/// (`NTP_PHASE_LIMIT`).
const UNKNOWN_ERROR_US: i64 = 16_000_000;
/// The file that replaces the call in a tree that only looks like a machine. It holds the status
/// and the largest error as numbers.
const STAND_IN: &str = "adjtimex";

/// None: it cannot be determined, for example because a sandbox forbids the call.
pub(super) fn unsynchronised(roots: &Roots) -> Option<bool> {
    let (status, error_us) = if roots.is_real() {
        ask()?
    } else {
        stand_in(roots)?
    };
    Some(is_unsynchronised(status, error_us))
}

/// The flag alone is not enough. chrony without `rtcsync` leaves it set, but tells the kernel how
/// far the clock may be off.
fn is_unsynchronised(status: i32, error_us: i64) -> bool {
    status & libc::STA_UNSYNC != 0 && error_us >= UNKNOWN_ERROR_US
}

fn ask() -> Option<(i32, i64)> {
    // SAFETY: the structure is plain numbers, for which zero is a value; with no modes the call
    // changes nothing and fills it.
    let (answer, found) = unsafe {
        let mut found: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut found), found)
    };
    (answer >= 0).then_some((found.status, found.maxerror))
}

fn stand_in(roots: &Roots) -> Option<(i32, i64)> {
    let text = roots.text(STAND_IN)?;
    let (status, error_us) = text.split_once(' ')?;
    Some((status.parse().ok()?, error_us.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_clock_is_set_by_nobody_when_flag_and_error_say_so() {
        assert!(
            is_unsynchronised(libc::STA_UNSYNC, 16_000_000),
            "as after a boot"
        );
        assert!(
            !is_unsynchronised(libc::STA_UNSYNC, 1_200),
            "chrony without rtcsync"
        );
        assert!(
            !is_unsynchronised(libc::STA_PLL | libc::STA_NANO, 16_000_000),
            "set a moment ago"
        );
    }

    #[test]
    fn the_kernel_and_a_tree_are_asked_each_in_its_way() {
        // A sandbox may forbid the call. This only checks that asking does no harm.
        unsynchronised(&Roots::new(Path::new("/")));
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::new(tree.path());
        assert_eq!(unsynchronised(&roots), None, "a tree without a clock");
        std::fs::write(tree.path().join(STAND_IN), "64 16000000\n").unwrap();
        assert_eq!(unsynchronised(&roots), Some(true));
        std::fs::write(tree.path().join(STAND_IN), "8193 500\n").unwrap();
        assert_eq!(unsynchronised(&roots), Some(false));
    }
}
