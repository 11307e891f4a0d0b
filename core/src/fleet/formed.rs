//! The sentence of the event `WorldFormed`: which nodes train from then on. `start` writes it, and who draws a job's
//! life reads it, because nothing else that is kept says which nodes an old generation had.

use std::fmt::{self, Display};

/// How many nodes the sentence names. More are counted.
pub(crate) const NAMED: usize = 16;

/// A generation that was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formed {
    pub generation: u64,
    /// Its ranks.
    pub world: u64,
    /// Its nodes, also those that are not named.
    pub nodes: usize,
    /// How many members share these nodes. `None`: each node holds one.
    pub members: Option<usize>,
    /// The first nodes, in the order of their ranks.
    pub named: Vec<String>,
}

impl Display for Formed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            generation,
            world,
            nodes,
            ..
        } = self;
        write!(f, "generation {generation}: world {world} on {nodes} nodes")?;
        if let Some(members) = self.members {
            write!(f, " with {members} members")?;
        }
        let named = &self.named[..self.named.len().min(NAMED)];
        let more = if *nodes > named.len() { ", ..." } else { "" };
        write!(f, ": {}{more}", named.join(", "))
    }
}

impl Formed {
    /// Reads the sentence. What stands behind a semicolon is about other things. `None`: it is another sentence.
    pub fn read(sentence: &str) -> Option<Self> {
        let sentence = sentence.split(';').next()?;
        let (generation, rest) = sentence
            .strip_prefix("generation ")?
            .split_once(": world ")?;
        let (world, rest) = rest.split_once(" on ")?;
        let (nodes, rest) = rest.split_once(" nodes")?;
        let (members, names) = rest.split_once(": ").unwrap_or((rest, ""));
        let members = members
            .strip_prefix(" with ")
            .and_then(|members| members.strip_suffix(" members"));
        let names = names
            .split(", ")
            .filter(|name| !matches!(*name, "" | "..."));
        Some(Self {
            generation: generation.parse().ok()?,
            world: world.parse().ok()?,
            nodes: nodes.parse().ok()?,
            members: members.map(str::parse).transpose().ok()?,
            named: names.map(str::to_owned).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nodes_beyond_the_first_are_counted() {
        let all = Formed {
            generation: 7,
            world: 160,
            nodes: 20,
            members: None,
            named: (0..NAMED).map(|n| format!("n{n}")).collect(),
        };
        let said = all.to_string();
        assert!(
            said.starts_with("generation 7: world 160 on 20 nodes: n0, n1, "),
            "{said}"
        );
        assert!(said.ends_with(", n15, ..."), "{said}");
    }

    #[test]
    fn another_sentence_is_none() {
        for other in [
            "",
            "node-1 lost its connection",
            "generation x: world 2 on 2 nodes: a, b",
            "generation 2: world 2 on 2 machines",
        ] {
            assert_eq!(Formed::read(other), None, "{other}");
        }
    }

    proptest! {
        /// What is written is read, whatever is told behind it.
        #[test]
        fn what_is_written_is_read(
            (generation, world) in (1..9_999_u64, 1..9_999_u64),
            named in proptest::collection::vec("[a-z0-9][a-z0-9.-]{0,8}", 1..NAMED),
            (more, members) in (0..40_usize, proptest::option::of(1..99_usize)),
            behind in "(; torch [0-9.]{1,5}, CUDA 13: x)?",
        ) {
            let nodes = named.len() + more;
            let formed = Formed { generation, world, nodes, members, named };
            prop_assert_eq!(Formed::read(&format!("{formed}{behind}")), Some(formed));
        }
    }
}
