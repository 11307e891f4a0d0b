//! I24: what is left of jobs that are over. Each has exactly one record, whose sums are those of its account.

use std::time::Duration;

use muster_core::fleet::{Policy, history::HistoryRecord};

use super::*;

fn records(store: &Store, uid: &JobUid) -> usize {
    let records = store.history.values();
    records.filter(|record| record.uid == *uid).count()
}

/// A record is written after the end of its job, once, and says what the job's account says.
pub(crate) fn is_true(store: &Store, record: &HistoryRecord) -> Broken {
    let broken = |what: &str| Some(("I24", format!("{}: {what}: {record:?}", record.uid)));
    if records(store, &record.uid) > 0 {
        return broken("it has a record already");
    }
    let Some(job) = store
        .jobs
        .get(&record.uid)
        .filter(|job| job.phase.is_over())
    else {
        return broken("it is not over in the store");
    };
    let spent =
        |account: &muster_core::fleet::time_account::TimeAccount| -> Vec<(Duration, Duration)> {
            let rows = account.spent.iter();
            rows.map(|row| (row.time, row.gpu_time)).collect()
        };
    let rows = job.time.as_ref().map(spent).unwrap_or_default();
    let (time, gpu_time): (Vec<Duration>, Vec<Duration>) = rows.into_iter().unzip();
    let life = record.life();
    if (life.time, life.gpu_time) != (time.iter().sum(), gpu_time.iter().sum()) {
        return broken("its sums are not those of its account");
    }
    let of_nodes: Duration = record.culprits.iter().map(|one| one.sum.time).sum();
    if of_nodes > record.lost().time {
        return broken("nodes have cost more than was lost");
    }
    let ended = (record.phase, record.reason, record.finished);
    if ended != (job.phase, job.reason, job.finished) {
        return broken("it has ended otherwise");
    }
    None
}

/// No job is deleted before its record is written.
pub(crate) fn is_left(store: &Store, uid: &JobUid) -> Broken {
    let none = store.jobs.contains_key(uid) && records(store, uid) == 0;
    none.then(|| ("I24", format!("{uid} is deleted and has left no record")))
}

/// A world has never so many jobs, and lasts not so long, that a record must make room.
pub(crate) fn is_surplus(store: &Store, number: u64) -> Broken {
    let has_room = store.history.len() <= Policy::default().history_max;
    has_room.then(|| ("I24", format!("the records up to {number} are dropped")))
}

/// After a commit that is whole: each job that is over has one record.
pub(crate) fn all_have_left_one(world: &mut World) {
    let over = world.store.jobs.values().filter(|job| job.phase.is_over());
    let counted = over.map(|job| (job.uid.clone(), records(&world.store, &job.uid)));
    let wrong = counted.into_iter().find(|(_, count)| *count != 1);
    if let Some((uid, count)) = wrong {
        let what = format!("{uid} is over and has {count} records");
        world.fail_about(Some(&uid), "I24", what);
    }
}
