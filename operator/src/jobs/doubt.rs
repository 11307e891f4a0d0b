//! Whether a list of all objects is believed. A job whose object is missing is cancelled, and a list may
//! come from the wrong API server, or from an empty one.

use std::time::Duration;

/// A list is doubted if it lacks the objects of more jobs than this, and of more than half of all.
const MISSING_MAX: usize = 3;
/// A person then has so much time.
pub(super) const DOUBT: Duration = Duration::from_secs(600);

/// `missing`: jobs that came from objects and have none in the list. `owned`: all jobs that came from
/// objects.
pub(super) fn is_doubtful(missing: usize, owned: usize) -> bool {
    missing > MISSING_MAX && missing * 2 > owned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_most_of_the_objects_is_doubted() {
        assert!(is_doubtful(4, 4) && is_doubtful(51, 100));
        assert!(!is_doubtful(3, 3) && !is_doubtful(50, 100) && !is_doubtful(0, 0));
    }
}
