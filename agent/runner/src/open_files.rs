//! How many files the agent may have open, and its runners after it.
//!
//! An agent reads many logs at a time, each over several descriptors, and 1,024 are not enough for that. So it raises
//! its limit as far as it may. Its runners get the limit with which it was started: what they start for users may
//! use select(2), which breaks with descriptors above 1,023, or close every number up to the limit.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The variable that tells a runner the limit with which its agent was started.
const VARIABLE: &str = "MUSTER_OPEN_FILES";

/// Set once the limit has changed.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the limit of this process to the hard limit, and returns the limit then. `None`: there is none.
pub fn raise() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    let Some(before) = now.current.filter(|_| now.current != now.maximum) else {
        return now.current;
    };
    let raised = Rlimit {
        current: now.maximum,
        ..now
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            let _ = BEFORE.set(before);
            now.maximum
        }
        // The kernel allows no process so many (fs.nr_open).
        Err(_) => now.current,
    }
}

/// What a runner is told, as a variable of its environment. `None`: the limit is as it was.
pub fn told() -> Option<(&'static str, String)> {
    BEFORE.get().map(|before| (VARIABLE, before.to_string()))
}

/// Takes the limit that this process was told.
pub fn take_told() {
    let told = std::env::var(VARIABLE).ok();
    let Some(told) = told.and_then(|text| text.parse().ok()) else {
        return;
    };
    let now = getrlimit(Resource::Nofile);
    // It can be no higher than what is allowed. If the kernel refuses, the limit stays.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(now.maximum.map_or(told, |most| most.min(told))),
            ..now
        },
    );
}
