//! Which records somebody asks for. All that is set must fit.

use crate::{
    fleet::{history::record::HistoryRecord, job::Phase},
    id::{JobUid, NodeName},
    time::Timestamp,
};

#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub uid: Option<JobUid>,
    /// The owner in words, as people see it.
    pub owner: Option<String>,
    /// Jobs that ran on this node, as far as their records name it, and those that it broke.
    pub node: Option<NodeName>,
    /// Empty: any.
    pub phases: Vec<Phase>,
    /// Jobs that ended at this time or later, or are not over.
    pub since: Option<Timestamp>,
    /// Jobs that ended before this time. One that is not over did not.
    pub until: Option<Timestamp>,
}

impl Wanted {
    pub fn takes(&self, record: &HistoryRecord) -> bool {
        fn fits<T>(wanted: &Option<T>, is: impl FnOnce(&T) -> bool) -> bool {
            wanted.as_ref().is_none_or(is)
        }
        fits(&self.namespace, |it| record.name.namespace == *it)
            && fits(&self.name, |it| record.name.name == *it)
            && fits(&self.uid, |it| record.uid == *it)
            && fits(&self.owner, |it| record.owner_in_words() == *it)
            && fits(&self.node, |it| record.names(it))
            && (self.phases.is_empty() || self.phases.contains(&record.phase))
            && fits(&self.since, |it| record.finished.is_none_or(|at| at >= *it))
            && fits(&self.until, |it| record.finished.is_some_and(|at| at < *it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{
        actor::Actor,
        job::{Ending, Reason, Stopping, tests::record},
    };
    use std::time::Duration;

    #[test]
    fn every_word_must_fit() {
        let mut job = record();
        job.owner = Some(Actor::User { name: "ann".into() });
        job.nodes_used = ["n1".into()].into();
        let failed = Ending {
            phase: Phase::Failed,
            reason: Reason::RestartBudgetSpent,
            message: String::new(),
        };
        let at_once = Stopping {
            reason: String::new(),
            grace: Duration::ZERO,
        };
        job.end(failed, at_once);
        job.close(Timestamp(50));
        let record = HistoryRecord::of(&job, &[]);
        let takes = |wanted: Wanted| wanted.takes(&record);
        let all = || Wanted {
            namespace: Some("default".into()),
            name: Some("digits".into()),
            uid: Some("uid".into()),
            owner: Some("ann".into()),
            node: Some("n1".into()),
            phases: vec![Phase::Failed],
            since: Some(Timestamp(50)),
            until: Some(Timestamp(51)),
        };
        assert!(takes(Wanted::default()) && takes(all()));
        for (word, wrong) in [
            (
                "namespace",
                Wanted {
                    namespace: Some("x".into()),
                    ..all()
                },
            ),
            (
                "name",
                Wanted {
                    name: Some("x".into()),
                    ..all()
                },
            ),
            (
                "uid",
                Wanted {
                    uid: Some("x".into()),
                    ..all()
                },
            ),
            (
                "owner",
                Wanted {
                    owner: Some("x".into()),
                    ..all()
                },
            ),
            (
                "node",
                Wanted {
                    node: Some("x".into()),
                    ..all()
                },
            ),
            (
                "state",
                Wanted {
                    phases: vec![Phase::Succeeded],
                    ..all()
                },
            ),
            (
                "since",
                Wanted {
                    since: Some(Timestamp(51)),
                    ..all()
                },
            ),
            (
                "until",
                Wanted {
                    until: Some(Timestamp(50)),
                    ..all()
                },
            ),
        ] {
            assert!(!takes(wrong), "{word}");
        }
        let live = HistoryRecord::of(&self::record(), &[]);
        let window = |since, until| Wanted {
            since,
            until,
            ..Wanted::default()
        };
        assert!(
            window(Some(Timestamp(900)), None).takes(&live),
            "it is not over"
        );
        assert!(!window(None, Some(Timestamp(900))).takes(&live));
    }
}
