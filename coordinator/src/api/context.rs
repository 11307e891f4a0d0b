//! What every service needs: the engine's handle, and what the services share with each other.

use std::sync::Arc;

use muster_runtime::tasks::Scope;

use super::{connections::Connections, usages::Usages};
use crate::{handle::Handle, trust::Trust};

/// What every service needs.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub handle: Handle,
    /// Owns the tasks behind the streams.
    pub scope: Scope,
    pub connections: Arc<Connections>,
    pub usages: Arc<Usages>,
    /// `None`: everybody is a user of this machine.
    pub trust: Option<Arc<Trust>>,
}
