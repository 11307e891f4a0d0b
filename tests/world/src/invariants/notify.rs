//! I27: what people are told. Each end of a job that a user has not brought about is told, and nothing is told that is not in
//! the store.

use muster_core::fleet::{
    job::Phase,
    notify::{Kind, Outbox},
};

use super::*;

/// All that is new in the outbox is true.
pub(crate) fn is_true(store: &Store, outbox: &Outbox) -> Broken {
    let known = |number: u64| number <= store.outbox.last;
    let new = outbox
        .messages
        .iter()
        .filter(|message| !known(message.number));
    let broken = |what: String| Some(("I27", what));
    for notice in new.flat_map(|message| &message.notices) {
        let job = notice.uid.as_ref().and_then(|uid| store.jobs.get(uid));
        let expected = match notice.kind {
            Kind::JobFailed => Phase::Failed,
            Kind::JobSucceeded => Phase::Succeeded,
            _ => continue,
        };
        if job.is_none_or(|job| job.phase != expected) {
            return broken(format!("people are told what is not so: {notice:?}"));
        }
    }
    None
}

/// After a commit that is whole: of each job that has failed or succeeded people were told.
pub(crate) fn all_ends_are_told(world: &mut World) {
    let has_end = |phase| matches!(phase, Phase::Failed | Phase::Succeeded);
    let over = world.store.jobs.values().filter(|job| has_end(job.phase));
    let untold = over
        .map(|job| &job.uid)
        .find(|uid| !world.store.told.contains(*uid));
    if let Some(uid) = untold.cloned() {
        world.fail_about(
            Some(&uid),
            "I27",
            format!("{uid} is over, and nobody was told"),
        );
    }
}
