//! What a node waits for before it takes work, from the flags.

use super::{WrongFlag, wrong};
use crate::probe::Peer;

/// How many interfaces or peers may be waited for. A node has far fewer, and each is asked every
/// few seconds.
const AWAITED_MAX: usize = 32;

pub(super) fn interfaces(names: Vec<String>) -> Result<Vec<String>, WrongFlag> {
    // IFNAMSIZ is 16 with the terminating zero. The kernel takes all characters except these two.
    let wrong_name = |name: &&String| {
        name.is_empty()
            || name.len() > 15
            || name.contains(['/', ' '])
            || *name == "."
            || *name == ".."
    };
    if let Some(name) = names.iter().find(wrong_name) {
        return Err(wrong(
            "wait-interface",
            format!("{name:?} is not the name of an interface"),
        ));
    }
    if names.len() > AWAITED_MAX {
        return Err(wrong(
            "wait-interface",
            format!(
                "{} are given, at most {AWAITED_MAX} are allowed",
                names.len()
            ),
        ));
    }
    Ok(names)
}

pub(super) fn peers(given: &[String]) -> Result<Vec<Peer>, WrongFlag> {
    if given.len() > AWAITED_MAX {
        return Err(wrong(
            "wait-peer",
            format!(
                "{} are given, at most {AWAITED_MAX} are allowed",
                given.len()
            ),
        ));
    }
    given
        .iter()
        .map(|text| text.parse().map_err(|e: String| wrong("wait-peer", e)))
        .collect()
}
