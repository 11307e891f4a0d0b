//! What every service needs: the engine's handle, and what the services share with each other.

use std::sync::Arc;

use muster_handle::handle::Handle;
use muster_runtime::tasks::Scope;
use tonic::Status;

use super::{
    connections::Connections,
    feed::{Feed, Out, feed},
    usages::Usages,
};
use crate::{
    audit::Trail,
    trust::{Rights, Trust},
};

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
    pub trail: Trail,
}

impl Context {
    /// A stream to a user. It ends when the user may not have it any more.
    pub(crate) fn feed<T, F>(
        &self,
        rights: Rights,
        name: &'static str,
        task: impl FnOnce(Out<T>) -> F,
    ) -> Feed<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let context = self.clone();
        feed(&self.scope, name, task).until(async move { context.end_of(rights).await })
    }

    /// Waits until the caller was denied or may do less, and says which.
    pub(crate) async fn end_of(&self, rights: Rights) -> Status {
        rights.end(self.trust.as_deref().map(Trust::grants)).await
    }
}
