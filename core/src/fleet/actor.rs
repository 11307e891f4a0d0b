//! Who asks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::run::Owner;

/// Who made a request, as far as the coordinator could find out. Events and cordons name it. A job
/// that belongs to an object is changed by that object only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// A user of the coordinator's machine, as the kernel says.
    Local { uid: u32 },
    /// A user, as its certificate says.
    User { name: String },
    /// The agent of a node, as its certificate says.
    Host { name: String },
    /// The `MusterJob` object of the job. The API server of its cluster knows who changed it.
    Object,
    /// Nobody can tell who it is. The name is what the client says, and proves nothing; it may be
    /// empty.
    Unknown { claimed: String },
}

impl Actor {
    /// Who that is to a node that starts jobs as their owners. `None`: nobody whose name is proven there.
    pub(crate) fn owner(&self) -> Option<Owner> {
        match self {
            Actor::Local { uid } => Some(Owner::Local(*uid)),
            Actor::User { name } => Some(Owner::User(name.clone())),
            // The API server knows who it was, and no node runs jobs as users of Kubernetes.
            Actor::Object => None,
            Actor::Host { .. } | Actor::Unknown { .. } => None,
        }
    }
}

impl Actor {
    /// The name by which an operator limits what jobs of this user hold. `None`: nobody has proven who it is.
    pub(crate) fn limited_as(&self) -> Option<&str> {
        match self {
            Actor::User { name } => Some(name),
            Actor::Local { .. } | Actor::Host { .. } | Actor::Object | Actor::Unknown { .. } => {
                None
            }
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Local { uid: 0 } => f.write_str("root"),
            Actor::Local { uid } => write!(f, "user {uid}"),
            Actor::User { name } => f.write_str(name),
            Actor::Host { name } => write!(f, "host {name}"),
            Actor::Object => f.write_str("its MusterJob object"),
            Actor::Unknown { claimed } if claimed.is_empty() => f.write_str("unknown user"),
            Actor::Unknown { claimed } => f.write_str(claimed),
        }
    }
}
