//! What keeps a job from starting wherever there is room.

use std::fmt;

use crate::fleet::eligible::{NeverSatisfied, WaitsFor};

/// What keeps a job from starting wherever there is room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBack {
    Suspended,
    /// Jobs or a time that it waits for.
    Waits(WaitsFor),
    /// It would fail at once.
    Never(NeverSatisfied),
    Listening,
}

/// A clause after "because".
impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldBack::Suspended => f.write_str("it is suspended"),
            HeldBack::Waits(waits) => write!(f, "it {waits}"),
            HeldBack::Never(never) => write!(f, "{never}: it would fail at once"),
            HeldBack::Listening => {
                f.write_str("the coordinator has just started and waits for its nodes")
            }
        }
    }
}
