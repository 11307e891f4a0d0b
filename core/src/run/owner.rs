//! Whose job it is, for nodes that start each job as its owner.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A user whose name is proven: by a certificate, or by the kernel. Nobody else is an owner to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Owner {
    /// The name in the certificate of whom the cluster knows.
    User(String),
    /// The number of a user of the coordinator's own machine. Only a coordinator that serves nothing but
    /// this machine has such callers, so it is the node's machine too.
    Local(u32),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::User(name) => f.write_str(name),
            Owner::Local(uid) => write!(f, "user {uid}"),
        }
    }
}
