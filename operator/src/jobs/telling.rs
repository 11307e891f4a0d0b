//! What is kept of all `MusterJob` objects, and how it is handed to the controller.

use std::{collections::BTreeSet, time::Duration};

use muster_core::id::JobName;
use muster_handle::handle::NoAnswer;
use tokio::sync::mpsc;

use super::object::{MusterJob, Seen};
use crate::{
    crd::{GROUP, JOBS},
    follow::{About, Crowded, INSTALL_OURS, News, Reader},
};

/// So many times as many are kept as of other kinds: what is kept of each beyond [`Reader::ROOM`] is less than
/// 1 KiB. 200,000 are as many as an etcd of the usual size holds with a spec of some KiB each.
pub(super) const TIMES: usize = 10;

/// Hands objects to the controller.
pub(super) struct Telling(pub(super) mpsc::Sender<News<JobName, Seen>>);

impl Reader for Telling {
    type Object = MusterJob;
    type Key = JobName;
    type Kept = Seen;

    /// 20,000 objects at some 10 KiB: twice as many as the jobs that a coordinator keeps by default.
    const ROOM: usize = 200 << 20;
    /// Users wait for their changes.
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        About {
            plural: JOBS,
            group: GROUP,
            objects: "MusterJob objects",
            meanwhile: "their jobs go on as they are",
            install: INSTALL_OURS,
        }
    }

    fn keep(object: MusterJob) -> Option<(JobName, Seen)> {
        let seen = Seen::of(object)?;
        Some((seen.object.name.clone(), seen))
    }

    fn namespace<'a>(name: &'a JobName, _: &'a Seen) -> &'a str {
        &name.namespace
    }

    fn bytes(seen: &Seen) -> usize {
        seen.bytes
    }

    fn shed(seen: &mut Seen) -> bool {
        let namespace = seen.object.name.namespace.clone();
        seen.refuse(format!(
            "the MusterJob objects of namespace {namespace} take more than their share of the coordinator's memory; delete some that are not \
             needed, and then change this one or apply it anew"
        ));
        seen.shed = true;
        true
    }

    async fn tell(&mut self, news: News<JobName, Seen>) -> Result<(), NoAnswer> {
        self.0.send(news).await.map_err(|_| NoAnswer::Ended)
    }
}

/// An object as the API server has answered, with no more room than what is known of it: an answer does not go
/// through the shares.
pub(super) fn with_room_of(known: &Seen, mut answered: Seen) -> Seen {
    if known.shed && known.generation == answered.generation {
        Telling::shed(&mut answered);
    }
    answered
}

/// Objects that may be there without being known.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    /// Namespaces of which not all objects are known.
    crowded: Crowded,
    /// Objects of theirs that are gone, as the API server has said since the last list.
    gone: BTreeSet<JobName>,
}

impl Hidden {
    pub(super) fn listed(&mut self, crowded: Crowded) {
        *self = Self {
            crowded,
            gone: BTreeSet::new(),
        };
    }

    pub(super) fn crowd(&mut self, crowded: Crowded) {
        self.crowded = crowded;
    }

    pub(super) fn gone(&mut self, name: &JobName) {
        if self.crowded.contains(&name.namespace) {
            self.gone.insert(name.clone());
        }
    }

    /// Whether the object of this name may be there although it is not known.
    pub(super) fn may_have(&self, name: &JobName) -> bool {
        self.crowded.contains(&name.namespace) && !self.gone.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_gone_is_not_hidden() {
        let name = |namespace: &str| JobName {
            namespace: namespace.into(),
            name: "digits".into(),
        };
        let mut hidden = Hidden::default();
        assert!(!hidden.may_have(&name("a")));
        hidden.crowd(["a".to_owned()].into());
        assert!(hidden.may_have(&name("a")) && !hidden.may_have(&name("b")));
        hidden.gone(&name("a"));
        assert!(!hidden.may_have(&name("a")));
        hidden.listed(["a".to_owned()].into());
        assert!(hidden.may_have(&name("a")), "another one may be there");
    }
}
