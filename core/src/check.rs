//! Checks of nodes by small jobs: who is tried with whom, and what the results say of each node and each pair.
//!
//! Every node multiplies matrices by itself, and then reduces a tensor together with a partner, each round with another
//! one. So a *bad node* (it fails alone, or with two different partners) is told from a *bad pair* (it fails only
//! together: the network between the two), and from software that fails everywhere. [`rounds`] and [`one_more`] say who
//! is tried with whom, [`verdicts`] what came of it.
//!
//! The jobs are like any other: the command line submits them and reads their logs. Nothing here is done about a verdict.

mod rounds;
#[cfg(test)]
mod tests;
mod verdict;

use std::time::Duration;

use crate::id::NodeName;

pub use rounds::{one_more, rounds};
pub use verdict::{Evidence, Standing, Subject, Verdict, verdicts};

/// What a node computed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// All its processes got the known result. The time of the slowest of them.
    Right { time: Duration },
    /// Another result: silent corruption of data. The text says how much of it is wrong.
    Wrong(String),
    /// An error, or the end of a process.
    Failed(String),
    /// No result before the time was over.
    Silent,
    /// Nothing is known of it, for this reason: the job was not started there, or the fault of another node ended it.
    Unknown(String),
}

/// What two nodes reduced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Together {
    /// The known result, at this bus bandwidth.
    Right {
        bytes_per_second: u64,
    },
    Wrong(String),
    Failed(String),
    /// No result before the time was over.
    Silent,
    /// A node alone has nobody to reduce with, and of a job that was not started nothing is known.
    NotTried,
}

/// A node in one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeName,
    pub own: Own,
}

/// What came of one job: of one node alone or of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    pub members: Vec<Member>,
    pub together: Together,
}

/// A node that is checked. Only nodes of one model are held against each other's speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: NodeName,
    /// Of its GPUs. `None`: only its CPUs take part. Those of two nodes need not be alike, and are busy with other things.
    pub model: Option<String>,
}
