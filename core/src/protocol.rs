//! Versions of the session's protocol, and the choice of the one that two ends use.
//!
//! Agents and coordinator are never upgraded at the same moment. A coordinator serves agents of its
//! own version and of the one before. So the coordinator is upgraded first, then all agents, and
//! only then the coordinator again.
//!
//! | version | what it added |
//! |---|---|
//! | 1 | the first version |
//! | 2 | both ends say which versions they speak; `fenceAfter`; an agent reports the newest generation of each job that it has obeyed |
//! | 3 | roles and frameworks: members choose ports, and are told of each other |
//! | 4 | MPI: members that lend their node choose a key, and the launcher is told the keys |
//! | 5 | several members of a generation on one node |

use std::fmt;

/// The newest version that this build speaks.
pub const NEWEST: u32 = 5;
/// The first version whose agents hold several members of a generation.
pub const SHARED: u32 = 5;

/// The versions that one end speaks: a range with both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaks {
    pub oldest: u32,
    pub newest: u32,
}

impl Speaks {
    pub const OURS: Speaks = Speaks {
        oldest: NEWEST - 1,
        newest: NEWEST,
    };

    /// The version that a coordinator with these versions uses with an agent.
    pub fn agree(self, agent: Speaks) -> Result<u32, Disagreement> {
        let version = self.newest.min(agent.newest);
        if version < self.oldest.max(agent.oldest) {
            return Err(Disagreement {
                coordinator: self,
                agent,
            });
        }
        Ok(version)
    }
}

impl fmt::Display for Speaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

/// Two ends without a common version. Its text says which of them must be upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    pub coordinator: Speaks,
    pub agent: Speaks,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coordinator, agent } = self;
        let remedy = match agent.newest < coordinator.oldest {
            true => "upgrade the agent; its workers go on meanwhile",
            false => "upgrade the coordinator first, then the agents",
        };
        write!(
            f,
            "the agent speaks protocol {agent}, this coordinator {coordinator}: {remedy} (a coordinator serves its own version and the one \
             before)"
        )
    }
}

impl std::error::Error for Disagreement {}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(oldest: u32, newest: u32) -> Speaks {
        Speaks { oldest, newest }
    }

    #[test]
    fn the_newest_that_both_speak() {
        let coordinator = speaks(4, 5);
        assert_eq!(coordinator.agree(speaks(4, 5)), Ok(5));
        assert_eq!(
            coordinator.agree(speaks(3, 4)),
            Ok(4),
            "an agent of the version before"
        );
        assert_eq!(
            coordinator.agree(speaks(5, 6)),
            Ok(5),
            "an agent that was upgraded too soon and still speaks ours"
        );
        assert_eq!(
            Speaks::OURS.agree(speaks(NEWEST - 1, NEWEST - 1)),
            Ok(NEWEST - 1)
        );
    }

    #[test]
    fn both_versions_and_what_to_do_are_said() {
        let said = |agent| speaks(4, 5).agree(agent).unwrap_err().to_string();
        assert_eq!(
            said(speaks(3, 3)),
            "the agent speaks protocol 3, this coordinator 4 to 5: upgrade the agent; its workers go on meanwhile (a coordinator serves \
             its own version and the one before)"
        );
        assert_eq!(
            said(speaks(6, 7)),
            "the agent speaks protocol 6 to 7, this coordinator 4 to 5: upgrade the coordinator first, then the agents (a coordinator \
             serves its own version and the one before)"
        );
    }
}
